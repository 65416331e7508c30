// Why a task, or its last attempt, failed. Operators also see the traceback of each attempt.
import { to } from "../lib/address.js";
import { get, isOperator, part } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { at, kindOfError } from "../lib/format.js";
import { useLoad } from "../lib/load.js";
import { isDead } from "../lib/status.js";

export function Failure({ task }) {
  const { error } = task;
  return html`<section class="failure">
    <div class="section-head"><h2>Error</h2>
      ${isDead(task.status) && isOperator() && error.fingerprint && html`<div class="actions">
        <a class="button" href=${to(["dead-letters"], { fingerprint: error.fingerprint })}>Others of this cause</a>
      </div>`}
    </div>
    <p><b title=${error.type}>${kindOfError(error.type)}</b> ${error.message}</p>
    <p class="quiet"><code>${error.code}</code> ${error.retryable ? "may be retried" : "not retryable"}</p>
    ${isDead(task.status) && isOperator() && html`<${Traces} id=${task.task_id} shown=${error.message} />`}
  </section>`;
}

// Tracebacks may show more of a program than its users should see, so only the dead letter has them.
function Traces({ id, shown }) {
  const { data } = useLoad((signal) => get(`admin/dead-letters/${part(id)}`, {}, signal), [id]);
  return data ? html`<${Errors} errors=${data.errors} shown=${shown} /> ` : null;
}

// The errors of a task; a message that the page shows already is not shown again.
export function Errors({ errors, shown }) {
  return (errors ?? []).map((error, index) => html`<details key=${index} open=${index === errors.length - 1}>
    <summary>${error.attempt ? `Attempt ${error.attempt}: ` : ""}${kindOfError(error.type)}${error.at ? ` at ${at(error.at)}` : ""}</summary>
    ${error.message !== shown && html`<p>${error.message}</p>`}
    ${error.traceback && html`<pre class="trace" tabindex="0" role="region" aria-label="Trace">${error.traceback}</pre>`}
  </details>`);
}
