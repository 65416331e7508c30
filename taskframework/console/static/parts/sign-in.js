// Asks for a key, which is kept in this window until it is closed, and sent with each request.
import { session, signIn } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/dom.js";

export function SignIn() {
  const [said, setSaid] = useState(session.get().key ? "The key is no longer valid." : "");
  useEffect(() => {
    document.title = "Sign in · taskframework";
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const key = new FormData(event.target).get("key").trim();
    try {
      if ((await signIn(key)) === null) setSaid("This key is not valid: it is mistyped, has expired or was revoked.");
      else location.reload(); // so that no data of the previous caller is left
    } catch (problem) {
      setSaid(problem.message);
    }
  };
  return html`<main class="sign-in">
    <form onSubmit=${submit}>
      <h1>taskframework</h1>
      <p>Callers of this installation show an API key. <code>taskframework keys create</code> makes one.</p>
      <label class="field"><span>API key</span>
        <input name="key" type="password" required autofocus autocomplete="off" spellcheck=${false} />
      </label>
      <p class="said" role="alert">${said}</p>
      <button type="submit" class="main">Sign in</button>
      <p class="quiet">It stays in this window and is gone when you close it.</p>
    </form>
  </main>`;
}
