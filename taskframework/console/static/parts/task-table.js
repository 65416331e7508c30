// Tasks as rows, for every page that shows some.
import { to } from "../lib/address.js";
import { html } from "../lib/dom.js";
import { inline, kindOfError, shortId } from "../lib/format.js";
import { isFinal } from "../lib/status.js";
import { Ago, Progress, Status } from "./basics.js";
import { Table } from "./table.js";

export function TaskTable({ items, list = {}, label = "Tasks", empty = "No tasks match." }) {
  return html`<${Table} label=${label} rows=${items} idOf=${(task) => task.task_id} empty=${empty}
    more=${list.more} isDone=${list.isDone ?? true} href=${(task) => to(["tasks", task.task_id])} columns=${COLUMNS} />`;
}

const COLUMNS = [
  { name: "Task", cell: (task) => html`<b>${task.task_type}</b><small title=${task.task_id}>${shortId(task.task_id)}</small>` },
  { name: "Status", size: "m", cell: (task) => html`<${Status} status=${task.status} />` },
  { name: "Message", wide: true, cell: (task) => html`<${Said} task=${task} />` },
  { name: "Attempt", wide: true, number: true, size: "s", cell: (task) => `${task.attempt} of ${task.max_attempts}` },
  { name: "User", wide: true, size: "m", cell: (task) => html`<span class="clip">${task.user_id}</span>` },
  { name: "Created", number: true, size: "m", cell: (task) => html`<${Ago} time=${task.created_at} />` },
];

// The message first: where there is little room, the class alone says too little.
const Failed = ({ error: { type, message } }) => html`<span class="clip bad-text" title=${message}>${message} <b>${kindOfError(type)}</b></span>`;

// The progress of a running task, the error of a failed or retried task, the result of a task that succeeded.
export function Said({ task }) {
  if (task.error && !(task.status === "RUNNING" && task.progress !== null)) return html`<${Failed} error=${task.error} />`;
  if (!isFinal(task.status)) return html`<${Progress} progress=${task.progress} label="Progress of ${shortId(task.task_id)}" />`;
  return task.result === null ? null : html`<code class="clip">${inline(task.result)}</code>`;
}
