// Questions before something is done, and the place of short messages after it.
import { address } from "../lib/address.js";
import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { messages } from "../lib/messages.js";
import { store, useStore } from "../lib/store.js";
import { Problem } from "./basics.js";
import { Field } from "./field.js";

const question = store(null);

// Asks before an action. `run(values)` does the action; if it is refused, the dialog shows why and stays open.
// fields: as `Field` takes them. Resolves to the return value of `run`, or undefined if the user closed the dialog.
export function ask(given) {
  return new Promise((resolve) => question.set({ ...given, resolve, opener: document.activeElement }));
}

export function Dialog() {
  const asked = useStore(question);
  return asked && html`<${Question} key=${asked.title} ...${asked} />`;
}

function Question({ title, text, confirm, danger, fields = [], run, resolve, opener }) {
  const dialog = useRef(null);
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  // It is about what the page showed: after a step back it would act on something that is no longer shown.
  const place = useStore(address).parts.join("/");
  const first = useRef(place);
  useEffect(() => void (place !== first.current && giveUp()), [place]);
  const close = (result) => {
    dialog.current?.close();
    question.set(null);
    resolve(result);
    // Move the focus back to the button, or to the head of the page if the action removed the button.
    setTimeout(() => (document.activeElement === document.body || !document.activeElement) && (backTo(opener) ?? document.querySelector("main h1"))?.focus());
  };
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    try {
      close(await run(Object.fromEntries(new FormData(event.target))) ?? true);
    } catch (refused) {
      setProblem(refused);
      setBusy(false);
      if (!dialog.current.open) dialog.current.showModal(); // a second Escape closes it, even if the first was prevented
    }
  };
  // A running action cannot be taken back, and its result must still be shown.
  const giveUp = () => isBusy || close();
  return html`<dialog ref=${dialog} aria-labelledby="question" onCancel=${(event) => (event.preventDefault(), giveUp())}>
    <form onSubmit=${submit}>
      <h2 id="question">${title}</h2>
      <div class="text">${text}</div>
      ${fields.map((field) => html`<${Field} key=${field.name} ...${field} />`)}
      ${problem && (problem.isAway ? html`<p class="note bad" role="alert">${problem.message}</p>` : html`<${Problem} problem=${problem} />`)}
      <div class="actions">
        <button type="button" onClick=${giveUp} disabled=${isBusy}>No, go back</button>
        <button type="submit" class=${danger ? "danger main" : "main"} disabled=${isBusy}>${confirm}</button>
      </div>
    </form>
  </dialog>`;
}

const backTo = (element) => (element?.isConnected && element !== document.body && !element.disabled ? element : null);

export function Messages() {
  const shown = useStore(messages);
  return html`<div class="messages" role="status" aria-live="polite">
    ${shown.map(({ id, text, kind }) => html`<p key=${id} class=${kind}>${text}</p>`)}
  </div>`;
}
