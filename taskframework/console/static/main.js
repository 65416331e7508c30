// Begins here: who calls, what the address asks for, and what is around every page.
import { useAddress } from "./lib/address.js";
import { identify, session } from "./lib/api.js";
import { html, render, useEffect, useState } from "./lib/dom.js";
import { listen } from "./lib/keyboard.js";
import { useStore } from "./lib/store.js";
import { Dialog, Messages } from "./parts/dialog.js";
import { Help } from "./parts/help.js";
import { Shell } from "./parts/shell.js";
import { SignIn } from "./parts/sign-in.js";
import { pageOf } from "./pages/all.js";

const AGAIN = 2000;

function App() {
  const { me, needsKey, key } = useStore(session);
  const [isHelping, setHelping] = useState(false);
  useEffect(() => listen(() => setHelping(true)), []);
  useEffect(() => keepAsking(), [key]);
  if (needsKey) return html`<${SignIn} /><${Messages} />`;
  return html`
    <${Shell} me=${me} onHelp=${() => setHelping(true)}>${me && html`<${Page} />`}<//>
    <${Dialog} />
    <${Messages} />
    ${isHelping && html`<${Help} onClose=${() => setHelping(false)} />`}`;
}

// The page may be opened while the API starts: it begins as soon as somebody answers.
function keepAsking() {
  let timer = 0;
  const ask = () => identify().catch(() => (timer = setTimeout(ask, AGAIN)));
  if (!session.get().me && !session.get().needsKey) ask();
  return () => clearTimeout(timer);
}

// A page begins anew when the path changes; a filter in the address changes only what its list shows.
function Page() {
  const address = useAddress();
  const { parts, query } = address;
  const [kind, rest] = pageOf(parts);
  const place = parts.join("/");
  useEffect(() => scrollTo(0, 0), [place, query.form]);
  // What had the focus may be gone, also where only the list is another one.
  useEffect(() => {
    if (!document.activeElement?.closest("main")) document.querySelector("main h1")?.focus({ preventScroll: true });
  }, [address]);
  return html`<${kind} key=${place} query=${query} name=${rest} />`;
}

render(html`<${App} />`, document.body);
