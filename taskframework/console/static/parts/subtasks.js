// The sub-tasks below a task, opened level by level.
import { part } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/dom.js";
import { count, shortId } from "../lib/format.js";
import { usePages } from "../lib/load.js";
import { to } from "../lib/address.js";
import { Progress, Status, Waiting } from "./basics.js";
import { Said } from "./task-table.js";

const LOOK = 2000;

export function Subtasks({ task, told }) {
  const { planned, done, failed, cancelled } = task.subtasks;
  return html`
    <p>${count(done)} of ${count(planned)} done${failed > 0 && html`, <b class="bad-text">${count(failed)} failed</b>`}${cancelled > 0 && `, ${count(cancelled)} cancelled`}
      ${planned > 0 && html` <${Progress} progress=${(100 * done) / planned} label="Sub-tasks done" />`}</p>
    <${Below} id=${task.task_id} told=${told} isLive=${task.finished_at === null} />`;
}

function Below({ id, told, isLive }) {
  const list = usePages(`tasks/${part(id)}/subtasks`, {}, { limit: 50, every: isLive ? LOOK : 0 });
  useEffect(() => void (told && list.reload()), [told]);
  return html`<${Waiting} of=${list} />
    <ul class="tree">
      ${(list.items ?? []).map((task) => html`<${Branch} key=${task.task_id} task=${task} />`)}
      ${!list.isDone && html`<li><button type="button" onClick=${list.more}>More</button></li>`}
    </ul>`;
}

function Branch({ task }) {
  const [isOpen, setOpen] = useState(false);
  return html`<li>
    <div class="branch">
      ${task.subtasks && html`<button type="button" class="plain" aria-expanded=${isOpen} aria-label="Sub-tasks of ${shortId(task.task_id)}"
        onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"}</button>`}
      <a data-row href=${to(["tasks", task.task_id])}>${task.task_type} <small>${shortId(task.task_id)}</small></a>
      <${Status} status=${task.status} /> <${Said} task=${task} />
    </div>
    ${isOpen && html`<${Below} id=${task.task_id} isLive=${task.finished_at === null} />`}
  </li>`;
}
