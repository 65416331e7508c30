// One task: its status and why, its parameters, its history, and the actions on it.
import { to } from "../lib/address.js";
import { get, isOperator, part, post } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { at, count, inline, lasting, plural, secondsSince, words } from "../lib/format.js";
import { useLoad, useThrottled } from "../lib/load.js";
import { useStream } from "../lib/live.js";
import { say } from "../lib/messages.js";
import { isDead, isFinal, mayRetry, percentOf } from "../lib/status.js";
import { Action, Ago, Facts, Head, Json, Problem, Progress, Section, Status, TaskLink, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { Failure } from "../parts/failure.js";
import { REOPEN } from "../parts/field.js";
import { Subtasks } from "../parts/subtasks.js";
import { Timeline } from "../parts/timeline.js";

const PAUSE = 400;
const LOOK = 5000;

export function Task({ name }) {
  const path = `tasks/${part(name)}`;
  // An ended task sends no events, so read it now and then: it may be queued again.
  const loaded = useLoad((signal) => get(path, {}, signal), [name], { every: (one) => (isFinal(one.status) ? LOOK : 0) });
  const [report, setReport] = useState(null);
  const [told, setTold] = useState(0);
  const reload = useThrottled(() => (loaded.reload(), setTold((n) => n + 1)), PAUSE);
  const task = loaded.data && { ...loaded.data, ...(isNewer(report, loaded.data) ? { progress: report.progress } : {}) };
  // An ended task sends no more events; a task that is queued again gets a new stream.
  const stream = task && !isFinal(task.status) ? `${path}/events` : null;
  useStream(stream, {}, (events) => {
    const reports = events.filter(({ event }) => event === "task.progress");
    if (reports.length) setReport(reports.at(-1).data.data);
    if (reports.length < events.length) reload();
  });
  if (!task) return html`<${Head} title="Task" /><${Waiting} of=${loaded} />`;
  return html`
    <${Head} title=${task.task_type} actions=${html`<${Actions} task=${task} done=${reload} />`}>
      <${Status} status=${task.status} /> <code class="id">${task.task_id}</code>
    <//>
    <${Problem} problem=${loaded.problem} />
    <${Explain} task=${task} told=${told} />
    ${!isFinal(task.status) && task.progress !== null && html`<div class="big-progress"><${Progress} progress=${task.progress} />
      ${saysMore(task.progress) && html`<code class="clip">${inline(task.progress)}</code>`}</div>`}
    ${task.error && html`<${Failure} task=${task} />`}
    <div class="columns">
      <${Section} title="Facts"><${TaskFacts} task=${task} /><//>
      <${Section} title="Timeline"><${Timeline} history=${task.history} /><//>
    </div>
    <${Section} title="Parameters"><${Json} value=${task.parameters} label="Parameters" /><//>
    ${task.result !== null && html`<${Section} title="Result"><${Json} value=${task.result} label="Result" /><//>`}
    ${task.subtasks && html`<${Section} title="Sub-tasks"><${Subtasks} task=${task} told=${told} /><//>`}`;
}

// Whether a report of progress is newer than what was read: a task that is queued again has no progress yet.
const isNewer = (report, task) => report && !isFinal(task.status) && report.updated_at >= task.updated_at;

// Whether the progress of a task contains more than a bar shows.
const saysMore = (progress) => typeof progress === "object" && Object.keys(progress).length > 1 && percentOf(progress) !== null;

function Actions({ task, done }) {
  const act = async (run) => (await run()) && done();
  return html`
    ${isDead(task.status) && isOperator() && html`<a class="button" href=${to(["dead-letters", task.task_id])}>Edit and replay</a>`}
    ${mayRetry(task.status) && html`<${Action} hotkey="r" onPress=${() => act(() => askRetry(task))}>${task.status === "RETRYING" ? "Try again now" : "Retry"}<//>`}
    ${!isFinal(task.status) && html`<${Action} danger hotkey="c" onPress=${() => act(() => askCancel(task))}>Cancel<//>`}`;
}

const askRetry = (task) => (task.status === "RETRYING" ? ask({
  title: "Try again now?",
  text: html`<p>Its next attempt is due at once. Attempts left: ${count(task.max_attempts - task.attempt)}.</p>`,
  confirm: "Try again now",
  run: async () => {
    await post(`tasks/${part(task.task_id)}/retry`);
    say("It is due now.");
  },
}) : ask({
  title: "Retry this task?",
  text: html`<p>It is queued again and has ${plural(task.max_attempts, "attempt")}, with the same parameters. What it did before stays done.</p>`,
  confirm: "Retry",
  fields: task.parent_task_id ? [REOPEN] : [],
  run: async ({ reopen }) => {
    await post(`tasks/${part(task.task_id)}/retry`, reopen ? { reopen: true } : undefined);
    say("Queued again.");
  },
}));

const askCancel = (task) => ask({
  title: "Cancel this task?",
  text: html`<p>${task.status === "RUNNING"
    ? "It is running: it is asked to stop, and may still complete."
    : `${task.attempt > 0 ? "No attempt is running, so it" : "It has not started, so it"} ends as cancelled at once.`}
    ${task.subtasks ? " All its sub-tasks are cancelled with it." : ""}</p>`,
  confirm: "Cancel the task",
  danger: true,
  fields: [{ name: "reason", label: "Reason", hint: "Kept in its history", maxlength: 500 }],
  run: async ({ reason }) => {
    const { data } = await post(`tasks/${part(task.task_id)}/cancel`, reason ? { reason } : {});
    say(data.status === "CANCELLED" ? "Cancelled." : "Asked to stop.");
  },
});

// One cause, and what would change it. An ended task needs no explanation besides its status.
function Explain({ task, told }) {
  const { data } = useLoad(
    (signal) => (isFinal(task.status) ? null : get(`tasks/${part(task.task_id)}/explain`, {}, signal)),
    [task.task_id, task.status, told],
    { every: isFinal(task.status) ? 0 : LOOK },
  );
  return data ? html`<p class="note explain"><b>${data.because}</b> ${data.change} <code>${data.code}</code></p>` : null;
}

function TaskFacts({ task }) {
  const took = task.finished_at && secondsSince(task.created_at, Date.parse(task.finished_at));
  return html`<${Facts} rows=${[
    ["Attempt", `${task.attempt} of ${task.max_attempts}`],
    ["Generation", task.generation > 0 && `${task.generation} (times it was queued again)`],
    ["Lane", task.priority],
    ["User", html`<a href=${to(["tasks"], { user_id: task.user_id })}>${task.user_id}</a>`],
    ["Correlation id", task.correlation_id && html`<a class="id" href=${to(["tasks"], { correlation_id: task.correlation_id })}>${task.correlation_id}</a>`],
    ["Parent", task.parent_task_id && html`<${TaskLink} id=${task.parent_task_id} />`],
    ["Stream", task.stream && html`<a href=${to(["streams"], { key: task.stream.key, user_id: task.user_id })}>${task.stream.key}</a> at position ${task.stream.position}`],
    ["Version", task.unique && `${task.unique.version} of ${task.unique.key}`],
    ["Created", html`${at(task.created_at)}, <${Ago} time=${task.created_at} />`],
    ["Not before", Date.parse(task.not_before) > Date.now() && at(task.not_before)],
    ["Deadline", task.deadline && at(task.deadline)],
    ["Finished", task.finished_at && html`${at(task.finished_at)}, ${words(task.status)}`],
    ["Total time", took && lasting(took)],
  ]} />`;
}
