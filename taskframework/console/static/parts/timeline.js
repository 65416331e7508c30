// The events of a task in order, and the time between each two of them.
import { html } from "../lib/dom.js";
import { at, inline, lasting, secondsSince } from "../lib/format.js";

const KINDS = { completed: "good", failed: "bad", dead_letter: "bad", retrying: "warn", released: "warn", retry_requested: "warn", started: "busy" };

export function Timeline({ history }) {
  return html`<ol class="timeline">
    ${history.map((entry, index) => html`<li key=${entry.sequence} class=${KINDS[entry.type] ?? "calm"}>
      <b>${entry.type.replaceAll("_", " ")}</b>${entry.attempt > 0 && html` <span class="quiet">attempt ${entry.attempt}</span>`}
      <time datetime=${entry.at} title=${at(entry.at)}>${index ? `+${lasting(secondsSince(history[index - 1].at, Date.parse(entry.at)))}` : at(entry.at)}</time>
      ${entry.worker_id && html`<small>on ${entry.worker_id}</small>`}
      ${said(entry.data)}
    </li>`)}
  </ol>`;
}

// The message of an error is enough: its kind is shown above.
const said = (data) => data && html`<small>
  ${Object.entries(data).filter(([name, value]) => value !== null && !(data.message && name !== "message")).map(([name, value]) => html`<span key=${name}>${name.replaceAll("_", " ")}: <code>${inline(value)}</code> </span>`)}
</small>`;
