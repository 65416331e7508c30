// The frame around every page: links to the other pages, the caller, and whether the page is live.
import { address, to } from "../lib/address.js";
import { away, get, isAdmin, isOperator, may, session, signOut } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/dom.js";
import { connection } from "../lib/live.js";
import { ADMINISTER, OPERATE, WORK } from "../lib/places.js";
import { useStore } from "../lib/store.js";
import { missing } from "./basics.js";
import { ThemeSwitch } from "./theme.js";

const AGAIN = 2000;

export function Shell({ me, onHelp, children }) {
  const { parts: [place = "overview"] } = useStore(address);
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [place]);
  return html`
    <a class="skip" href="#content" onClick=${toContent}>To the content</a>
    <header class="top">
      <button type="button" class="menu" aria-expanded=${isOpen} aria-controls="places" onClick=${() => setOpen(!isOpen)}>Menu</button>
      <a class="brand" href="#/overview"><img src="console/icon.svg" alt="" width="22" height="22" /> taskframework</a>
      <${State} />
      <div class="who">
        ${may("submitter") && html`<a class="button main" href="#/submit">Submit</a>`}
        <${ThemeSwitch} />
        <button type="button" class="plain" aria-label="Keyboard help" title="Keyboard help (?)" onClick=${onHelp}>?</button>
      </div>
    </header>
    <nav id="places" class=${isOpen ? "open" : ""} aria-label="Pages">
      <${Places} title="Work" places=${WORK} place=${place} />
      ${isOperator() && html`<${Places} title="Operate" places=${OPERATE} place=${place} />`}
      ${isAdmin() && html`<${Places} title="Administer" places=${ADMINISTER} place=${place} />`}
      ${me && html`<${Who} me=${me} />`}
    </nav>
    <main id="content">
      <${Away} />
      ${children}
    </main>`;
}

const Places = ({ title, places, place }) => html`<h2>${title}</h2>
  <ul>${places.map(([path, name]) => html`<li key=${path}>
    <a href=${to([path])} aria-current=${path === place ? "page" : undefined}>${name}</a>
  </li>`)}</ul>`;

// A caller with neither a key nor a token, whom no embedding application identifies, may do everything.
const NOBODY = "anonymous";

function Who({ me }) {
  const { key } = useStore(session);
  return html`<div class="me">
    <b class="clip" title=${me.principal}>${me.principal}</b>
    <small>${me.prefix || me.principal !== NOBODY ? me.roles.join(", ") : "may do everything: no keys yet"}</small>
    ${key && html`<button type="button" onClick=${signOut}>Sign out</button>`}
  </div>`;
}

const SAID = { live: "Live", connecting: "Connecting …", waiting: "Reconnecting …" };

// Whether the page receives events. Announced to screen readers only when it changes.
function State() {
  const state = useStore(connection);
  const shown = useStore(away)?.isSilent && state !== "none" ? "waiting" : state;
  return html`<span class="state ${shown}" role="status">${SAID[shown] ?? ""}</span>`;
}

// The server that is away, if any. It is polled until it is back, since some pages make no requests by themselves.
function Away() {
  const what = useStore(away);
  const isMissing = useStore(missing) > 0;
  useEffect(() => what && untilBack(), [what === null]);
  return what && html`<p class="note bad" role="alert">
    <b>${what.title}</b> ${what.isSilent ? "Check that the process of the API runs, and that this machine reaches it." : html`<code>taskframework doctor</code> says what to repair.`}
    ${isMissing ? " What is missing here could not be read yet; it comes" : " The page shows the last known state and updates itself"} when this problem is over.
  </p>`;
}

function untilBack() {
  let timer = setTimeout(look, AGAIN);
  async function look() {
    await get("tasks", { limit: 1 }).catch(() => {});
    if (timer) timer = setTimeout(look, AGAIN);
  }
  return () => {
    clearTimeout(timer);
    timer = 0;
  };
}

function toContent(event) {
  event.preventDefault();
  document.querySelector("main h1")?.focus();
}
