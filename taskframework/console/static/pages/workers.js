// The worker processes, and the tasks that one of them runs.
import { to } from "../lib/address.js";
import { get, part } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { at, count } from "../lib/format.js";
import { useLoad, usePages } from "../lib/load.js";
import { Ago, Facts, Head, Section, Waiting } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { TaskTable } from "../parts/task-table.js";

const LOOK = 3000;

export function Workers() {
  const list = usePages("admin/workers", {}, { every: LOOK });
  return html`<${Head} title="Workers" />
    <${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Workers" rows=${list.items} idOf=${(one) => one.worker_id} columns=${COLUMNS} more=${list.more} isDone=${list.isDone}
      href=${(one) => to(["workers", one.worker_id])} empty="No workers, so no tasks are executed. To start one: taskframework worker." />`}`;
}

const Health = ({ one }) => html`<span class="status ${one.is_lost ? "bad" : "good"}">${one.is_lost ? "lost" : "there"}</span>`;

const COLUMNS = [
  { name: "Worker", cell: (one) => html`<b>${one.host}</b><small>${one.worker_id}</small>` },
  { name: "State", size: "m", cell: (one) => html`<${Health} one=${one} />` },
  { name: "Runs", cell: (one) => html`<${Load} one=${one} />` },
  { name: "Types", wide: true, cell: (one) => html`<span class="clip" title=${one.task_types.join(", ")}>${one.task_types.join(", ")}</span>` },
  { name: "Version", wide: true, size: "s", cell: (one) => one.release },
  { name: "Since", wide: true, number: true, size: "m", cell: (one) => html`<${Ago} time=${one.started_at} />` },
];

// The tasks of a lost worker, as of its last report, may run elsewhere by now.
const Load = ({ one }) => one.is_lost ? html`seen <${Ago} time=${one.seen_at} />` : html`<span class="bar">
  <progress max=${one.concurrency} value=${one.in_flight} aria-label="Load of ${one.worker_id}"></progress><b>${count(one.in_flight)} of ${count(one.concurrency)}</b>
</span>`;

export function Worker({ name }) {
  const all = useLoad((signal) => get("admin/workers", { limit: 500 }, signal), [], { every: LOOK });
  const runs = usePages(`admin/workers/${part(name)}/tasks`, {}, { every: LOOK });
  const one = all.data?.items.find(({ worker_id: id }) => id === name);
  return html`<${Head} title=${one?.host ?? "Worker"}><code class="id">${name}</code><//>
    ${one && html`<${Section} title="Facts"><${Facts} rows=${[
      ["State", html`<${Health} one=${one} />`], ["Process", one.pid], ["Version", one.release], ["Load", html`<${Load} one=${one} />`],
      ["Since", at(one.started_at)], ["Seen", html`<${Ago} time=${one.seen_at} />`], ["Executes", one.task_types.join(", ")],
    ]} /><//>`}
    <${Section} title="Running tasks">
      <${Waiting} of=${runs} />
      ${runs.items && html`<${TaskTable} items=${runs.items} list=${runs} label="Running tasks" empty="No running tasks." />`}
    <//>`;
}
