// The start of the console: finds the caller, the page of the address, and draws the frame around it.
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

// The page may be opened while the API starts: it begins as soon as the API answers.
function keepAsking() {
  let timer = 0;
  const ask = () => identify().catch(() => (timer = setTimeout(ask, AGAIN)));
  if (!session.get().me && !session.get().needsKey) ask();
  return () => clearTimeout(timer);
}

// A page starts again when the path changes; a filter in the address changes only what its list shows.
function Page() {
  const address = useAddress();
  const { parts, query } = address;
  const [kind, rest] = pageOf(parts);
  const place = parts.join("/");
  useEffect(() => scrollTo(0, 0), [place, query.form]);
  // The element with the focus may be gone, even if only the list has changed.
  useEffect(() => {
    if (!document.activeElement?.closest("main")) document.querySelector("main h1")?.focus({ preventScroll: true });
  }, [address]);
  return html`<${kind} key=${place} query=${query} name=${rest} />`;
}

render(html`<${App} />`, document.body);
