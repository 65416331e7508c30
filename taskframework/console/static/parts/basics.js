// The small components that every page uses.
import { may } from "../lib/api.js";
import { to } from "../lib/address.js";
import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { ago, asJson, at, inline, shortId, words } from "../lib/format.js";
import { say } from "../lib/messages.js";
import { kindOf, percentOf } from "../lib/status.js";
import { store } from "../lib/store.js";

export const Status = ({ status }) => html`<span class="status ${kindOf(status)}">${words(status)}</span>`;

// A time as its distance from now, which is updated by itself; a tooltip shows the time itself.
export function Ago({ time }) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!time) return undefined;
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [time]);
  return time ? html`<time datetime=${time} title=${at(time)}>${ago(time)}</time>` : html`<span class="quiet">–</span>`;
}

export const TaskLink = ({ id, ...rest }) =>
  html`<a class="id" href=${to(["tasks", id])} title=${id} ...${rest}>${shortId(id)}</a>`;

// The progress of a task: a bar if it says how much is done, otherwise its text.
export function Progress({ progress, label = "Progress" }) {
  if (progress === null || progress === undefined) return null;
  const percent = percentOf(progress);
  if (percent === null) return html`<code class="clip">${inline(progress)}</code>`;
  return html`<span class="bar">
    <progress max="100" value=${percent} aria-label=${label}></progress><b>${Math.floor(percent)} %</b>
  </span>`;
}

export const Json = ({ value, label }) =>
  html`<pre class="json" tabindex="0" role="region" aria-label=${label}>${asJson(value)}</pre>`;

// What went wrong with a request, and what to do. `isBrief` leaves out the wrong fields if they are shown beside it.
export function Problem({ problem, isBrief = false }) {
  if (!problem || problem.isAway) return null; // the page says itself that the API is away
  return html`<div class="note bad" role="alert">
    <b>${problem.message}</b> ${problem.hint}
    ${problem.errors?.length > 0 && !isBrief && html`<ul>${problem.errors.map((one) => html`<li><code>${one.field}</code> ${one.message}</li>`)}</ul>`}
  </div>`;
}

// How many parts of the page have not been read yet.
export const missing = store(0);

// Takes the place of content that is being read or could not be read; shows nothing once the content is there.
export function Waiting({ of }) {
  const isMissing = of.data === undefined && of.items === undefined;
  useEffect(() => {
    if (!isMissing) return undefined;
    missing.set(missing.get() + 1);
    return () => missing.set(missing.get() - 1);
  }, [isMissing]);
  if (of.problem) return html`<${Problem} problem=${of.problem} />`;
  return isMissing ? html`<p class="quiet">Reading …</p>` : null;
}

// The head of a page: its name, its buttons, and a line of text.
export function Head({ title, actions, children }) {
  const heading = useRef(null);
  // It replaces the head that was shown while the page was read, and that may have had the focus.
  useEffect(() => {
    if (document.activeElement === document.body) heading.current.focus({ preventScroll: true });
  }, []);
  useEffect(() => {
    document.title = `${title} · taskframework`;
  }, [title]);
  return html`<header class="head">
    <h1 tabindex="-1" ref=${heading}>${title}</h1>
    ${actions && html`<div class="actions">${actions}</div>`}
    ${children && html`<div class="about">${children}</div>`}
  </header>`;
}

// A button that is shown only to callers who may press it. `hotkey` presses it from the keyboard.
export function Action({ role = "submitter", hotkey, danger, onPress, children, ...rest }) {
  const [isBusy, setBusy] = useState(false);
  if (!may(role)) return null;
  const press = async () => {
    if (isBusy) return;
    setBusy(true);
    try {
      await onPress();
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      say(`${problem.message} ${problem.hint}`, "bad");
    } finally {
      setBusy(false);
    }
  };
  return html`<button type="button" class=${danger ? "danger" : ""} data-hotkey=${hotkey} aria-disabled=${isBusy}
    aria-keyshortcuts=${hotkey} onClick=${press} ...${rest}>${children}</button>`;
}

// Facts as names and values; those without a value are left out.
export function Facts({ rows }) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "");
  return html`<dl class="facts">${known.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export const Section = ({ title, actions, children }) => html`<section>
  <div class="section-head"><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</div>
  ${children}
</section>`;
