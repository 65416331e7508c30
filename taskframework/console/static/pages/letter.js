// One dead letter in full: why it failed, its history, its parameters, which can be changed, dry run and replay.
import { go, to } from "../lib/address.js";
import { Problem, get, part, post } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { asJson, at, kindOfError } from "../lib/format.js";
import { useLoad } from "../lib/load.js";
import { say } from "../lib/messages.js";
import { Action, Facts, Head, Section, Status, TaskLink, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { Editor } from "../parts/editor.js";
import { Errors } from "../parts/failure.js";
import { REASON, REOPEN } from "../parts/field.js";
import { useTypes } from "../parts/filters.js";
import { Message, Repair } from "../parts/message.js";
import { Timeline } from "../parts/timeline.js";

const LOOK = 5000;

export function Letter({ name }) {
  const loaded = useLoad((signal) => get(`admin/dead-letters/${part(name)}`, {}, signal, true), [name], { every: () => LOOK });
  const letter = loaded.data;
  if (!letter) return html`<${Head} title="Dead letter" /><${Waiting} of=${loaded} />`;
  return html`<${Workbench} letter=${letter} isGone=${loaded.problem?.status === 404} />`;
}

function Workbench({ letter, isGone }) {
  const types = useTypes();
  const schema = types.find((type) => type.task_type === letter.task_type)?.parameters_schema;
  const [parameters, setParameters] = useState(letter.parameters);
  const [outcome, setOutcome] = useState(null);
  const isTask = letter.kind === "task";
  const edit = (value) => {
    setParameters(() => value);
    setOutcome(null);
  };
  const body = { ids: [letter.id], ...(isTask && asJson(parameters) !== asJson(letter.parameters) ? { parameters } : {}) };
  const tryOut = async () => setOutcome(await outcomeOf({ ...body, dry_run: true }));
  return html`
    <${Head} title=${letter.task_type ?? "Unreadable message"} actions=${!isGone && html`
      ${isTask && html`<${Action} role="operator" hotkey="d" disabled=${parameters === undefined} onPress=${tryOut}>Dry run<//>
        <${Action} role="operator" class="main" hotkey="r" disabled=${parameters === undefined} onPress=${() => askReplay(letter, body)}>Replay<//>`}
      <${Action} role="operator" danger onPress=${() => askDiscard(letter)}>Discard<//>`}>
      ${letter.status && html`<${Status} status=${letter.status} /> `}<code class="id">${letter.id}</code>
    <//>
    ${isGone && html`<p class="note" role="status"><b>This is no longer a dead letter:</b> somebody replayed, repaired or discarded it.
      ${letter.task_id && html`<${TaskLink} id=${letter.task_id} />`}</p>`}
    <${Outcome} outcome=${outcome} isEdited=${"parameters" in body} />
    <section class="failure"><div class="section-head"><h2>Why</h2>
        ${letter.error?.fingerprint && html`<div class="actions"><a class="button" href=${to(["dead-letters"], { fingerprint: letter.error.fingerprint })}>Others with this cause</a></div>`}
      </div>
      <p>${letter.error ? html`<b title=${letter.error.type}>${kindOfError(letter.error.type)}</b> ${letter.error.message}` : letter.reason}</p>
      <${Errors} errors=${letter.errors} shown=${letter.error?.message} />
    </section>
    ${isTask && html`<${Section} title="Parameters">
      <${Editor} label="Parameters of the replay" value=${letter.parameters} tell=${edit} errors=${outcome?.errors} schema=${schema} /><//>`}
    ${!isTask && html`<${Repair} letter=${letter} /><${Message} letter=${letter} />`}
    <div class="columns">
      <${Section} title="Facts"><${Facts} rows=${[
        ["Task", letter.task_id && html`<${TaskLink} id=${letter.task_id} />`], ["Reason", letter.reason], ["At", at(letter.at)],
        ["Attempts", letter.attempt], ["Queue", letter.queue], ["Bytes", letter.body_size],
      ]} /><//>
      ${letter.history && html`<${Section} title="Timeline"><${Timeline} history=${letter.history} /><//>`}
    </div>`;
}

function Outcome({ outcome, isEdited }) {
  if (!outcome) return null;
  if (outcome.refused) return html`<p class="note bad" role="alert"><b>It would be refused.</b> ${outcome.refused}</p>`;
  if (outcome.warning) return html`<p class="note bad" role="alert"><b>It would be queued again and fail at once.</b> ${outcome.warning}</p>`;
  return html`<p class="note good" role="status"><b>It would be queued again${isEdited ? " with the changed parameters" : ""}.</b> Nothing has been changed yet.</p>`;
}

// The problem that the API reports for one id: a refusal, or in a dry run parameters that no longer fit.
async function outcomeOf(body) {
  try {
    const [{ error, warning }] = (await post("admin/dead-letters/replay", body)).data.items;
    return { refused: error?.detail, warning: warning?.detail, errors: (error ?? warning)?.errors ?? [] };
  } catch (problem) {
    if (problem.isAway) throw problem;
    return { refused: `${problem.message} ${problem.hint}`, errors: problem.errors };
  }
}

const askReplay = (letter, body) => ask({
  title: "Replay this dead letter?",
  text: html`<p>It is queued again with all its attempts${"parameters" in body ? html` and <b>the changed parameters</b>` : " and the same parameters"}. What it did before stays done.</p>`,
  confirm: "Replay",
  fields: [REASON, REOPEN],
  run: async ({ reason, reopen }) => {
    const outcome = await outcomeOf({ ...body, ...(reason ? { reason } : {}), ...(reopen ? { reopen: true } : {}) });
    if (outcome.refused) throw Object.assign(new Error(outcome.refused), { errors: outcome.errors });
    say("Queued again.");
    go(["tasks", letter.task_id]);
  },
});

const askDiscard = (letter) => ask({
  title: "Discard this dead letter?",
  text: html`<p>It is removed from the list. ${letter.kind === "task" ? "The task can still be retried by its id." : "The message is deleted."}</p>`,
  confirm: "Discard",
  danger: true,
  fields: [{ ...REASON, isRequired: true }],
  run: async ({ reason }) => {
    const [{ error }] = (await post("admin/dead-letters/discard", { ids: [letter.id], reason })).data.items;
    if (error) throw new Problem(error.status, error);
    say("Discarded.");
    go(["dead-letters"]);
  },
});
