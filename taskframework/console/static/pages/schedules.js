// Schedules: when each runs next, and the outcome of its last run.
import { go, to } from "../lib/address.js";
import { because, get, newKey, part, post } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { at } from "../lib/format.js";
import { useLoad, usePages } from "../lib/load.js";
import { say } from "../lib/messages.js";
import { Action, Ago, Facts, Head, Json, Section, Status, TaskLink, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { REASON } from "../parts/field.js";
import { Table } from "../parts/table.js";
import { MISSED, OVERLAP, ScheduleForm } from "./schedule-form.js";

const LOOK = 5000;

export function Schedules({ query }) {
  const list = usePages("admin/schedules", {}, { every: LOOK });
  if (query.form) return html`<${ScheduleForm} />`;
  return html`<${Head} title="Schedules" actions=${html`<a class="button main" data-hotkey="n" href=${to(["schedules"], { form: "new" })}>New schedule</a>`} />
    <${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Schedules" rows=${list.items} idOf=${(one) => one.name} columns=${COLUMNS} more=${list.more} isDone=${list.isDone}
      href=${(one) => to(["schedules", one.name])} empty="No schedules. They can be created here or in the settings." />`}`;
}

const textOf = (options, value) => options.find(([one]) => one === value)?.[1] ?? value;
const when = (one) => one.cron ?? `every ${one.every}`;

const COLUMNS = [
  { name: "Schedule", cell: (one) => html`<b>${one.name}</b><small>${when(one)}</small>` },
  { name: "Type", wide: true, size: "m", cell: (one) => one.task_type },
  { name: "Next run", size: "m", cell: (one) => (one.is_paused ? html`<span class="status warn">paused</span>` : html`<${Ago} time=${one.next_run_at} />`) },
  { name: "Last run", size: "m", cell: (one) => html`${one.last_run?.status && html`<${Status} status=${one.last_run.status} />`}<small><${Ago} time=${one.last_run?.at} /></small>` },
  { name: "Problem", wide: true, cell: (one) => one.problem && html`<span class="clip bad-text">${one.problem.message}</span>` },
];

export function Schedule({ name, query }) {
  const path = `admin/schedules/${part(name)}`;
  const loaded = useLoad((signal) => get(path, {}, signal, true), [name], { every: LOOK });
  const one = loaded.data;
  if (!one) return html`<${Head} title=${name} /><${Waiting} of=${loaded} what="The schedule" />`;
  if (query.form) return html`<${ScheduleForm} schedule=${one} />`;
  return html`
    <${Head} title=${one.name} actions=${html`<${Actions} one=${one} path=${path} done=${loaded.reload} />`}>
      ${one.is_paused && html`<span class="status warn">paused</span> `}<code>${when(one)}</code> ${one.cron && one.timezone}
    <//>
    <${Waiting} of=${loaded} />
    ${one.problem && html`<p class="note bad"><b>The run of ${at(one.problem.at)} could not be submitted.</b> ${one.problem.message}</p>`}
    <div class="columns">
      <${Section} title="Facts"><${Facts} rows=${[
        ["Task type", html`<a href=${to(["tasks"], { task_type: one.task_type })}>${one.task_type}</a>`], ["User", one.user_id],
        ["Last run", one.last_run && html`${one.last_run.status && html`<${Status} status=${one.last_run.status} /> `}<${TaskLink} id=${one.last_run.task_id} /> <${Ago} time=${one.last_run.at} />`],
        ["Missed runs", textOf(MISSED, one.missed)], ["If the last run has not ended", textOf(OVERLAP, one.overlap)], ["Random delay up to", one.jitter],
        ["Defined", one.is_from_settings ? "in the settings, and changed there alone" : "here, over HTTP or on the command line"],
      ]} /><//>
      <${Section} title="Next runs, in your time zone"><ol class="plain-list">${(one.next_runs ?? []).map((time) => html`<li key=${time}>${at(time)} <span class="quiet"><${Ago} time=${time} /></span></li>`)}</ol><//>
    </div>
    <${Section} title="Parameters"><${Json} value=${one.parameters} label="Parameters" /><//>`;
}

function Actions({ one, path, done }) {
  return html`
    ${!one.is_from_settings && html`<a class="button" data-hotkey="e" href=${to(["schedules", one.name], { form: "edit" })}>Edit</a>`}
    <${Action} role="operator" hotkey="r" onPress=${() => askRun(one, path)}>Run now<//>
    <${Action} role="operator" hotkey="p" onPress=${async () => (await askPause(one, path)) && done()}>${one.is_paused ? "Resume" : "Pause"}<//>
    ${!one.is_from_settings && html`<${Action} role="operator" danger onPress=${() => askDelete(one, path)}>Delete<//>`}`;
}

function askRun(one, path) {
  const key = newKey(); // one for the question: a second press after a lost answer makes no second task
  return ask({
    title: `Run ${one.name} now?`,
    text: html`<p>One task of the type <b>${one.task_type}</b> is submitted at once, in addition to the scheduled runs.</p>`,
    confirm: "Run now",
    fields: [REASON],
    run: async ({ reason }) => {
      const { data } = await post(`${path}/run`, undefined, { headers: { "Idempotency-Key": key, ...because(reason) } });
      go(["tasks", data.task_id]);
    },
  });
}

const askPause = (one, path) => ask({
  title: `${one.is_paused ? "Resume" : "Pause"} ${one.name}?`,
  text: html`<p>${one.is_paused ? "It runs again at its next time." : "It does not run until somebody resumes it. A task that is already running continues."}</p>`,
  confirm: one.is_paused ? "Resume" : "Pause",
  fields: [REASON],
  run: async ({ reason }) => {
    await post(`${path}/${one.is_paused ? "resume" : "pause"}`, undefined, { headers: because(reason) });
    say(one.is_paused ? "Resumed." : "Paused.");
  },
});

const askDelete = (one, path) => ask({
  title: `Delete ${one.name}?`,
  text: html`<p>The schedule, with its rule and parameters, is deleted and does not run again. Tasks that it has submitted are kept.</p>`,
  confirm: "Delete the schedule",
  danger: true,
  fields: [REASON],
  run: async ({ reason }) => {
    await post(path, undefined, { method: "DELETE", headers: because(reason) });
    say("Deleted.");
    go(["schedules"]);
  },
});
