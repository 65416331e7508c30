// The tasks that match the filters in the address, the newest first. The rows change live.
import { mayActForUsers } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { isAtTop, usePages, useThrottled } from "../lib/load.js";
import { useStream } from "../lib/live.js";
import { words } from "../lib/format.js";
import { STATUSES } from "../lib/status.js";
import { Head, Waiting } from "../parts/basics.js";
import { BulkActions } from "../parts/bulk.js";
import { Filters, asOptions, asTime, useTypes } from "../parts/filters.js";
import { TaskTable } from "../parts/task-table.js";

const PAUSE = 1500;
const NAMES = ["status", "task_type", "user_id", "correlation_id", "idempotency_key", "waits_for_limit", "error", "stream", "parent_task_id", "fingerprint"];
// A task may begin or cease to match these, besides its status, while it lives.
const CHANGING = ["error", "fingerprint", "waits_for_limit", "finished_after", "finished_before"];
// The names of a time filter in the address, over HTTP and on the page.
const TIMES = {
  after: ["created_after", "Created after"], before: ["created_before", "Created before"],
  finished_after: ["finished_after", "Ended after"], finished_before: ["finished_before", "Ended before"],
};

export function Tasks({ query }) {
  const types = useTypes();
  const filter = filterOf(query);
  const list = usePages("tasks", filter);
  const fresh = useChanges(list, filter);
  return html`
    <${Head} title="Tasks" actions=${html`<${BulkActions} filter=${filter} />`} />
    <${Filters} label="Tasks" query=${query} fields=${fieldsOf(types)} />
    ${fresh.isNew && html`<p class="fresh"><button type="button" data-hotkey="." onClick=${fresh.show}>Show new tasks</button></p>`}
    <${Waiting} of=${list} />
    ${list.items && html`<${TaskTable} items=${list.items.map(fresh.newest)} list=${list} />`}`;
}

// The parameters of the request, from the filters in the address.
function filterOf(query) {
  const filter = Object.fromEntries(NAMES.map((name) => [name, query[name]]).filter(([, value]) => value));
  for (const [name, [field]] of Object.entries(TIMES)) if (asTime(query[name])) filter[field] = asTime(query[name]);
  return filter;
}

function fieldsOf(types) {
  return [
    { name: "status", label: "Status", options: STATUSES.map((status) => [status, words(status)]) },
    { name: "task_type", label: "Type", options: asOptions(types) },
    { name: "error", label: "Error contains" },
    { name: "correlation_id", label: "Correlation id" },
    ...(mayActForUsers() ? [{ name: "user_id", label: "User" }] : []),
    ...Object.entries(TIMES).map(([name, [, label]]) => ({ name, label, type: "datetime-local", isRare: true })),
    { name: "idempotency_key", label: "Idempotency key", isRare: true },
    { name: "stream", label: "Stream", isRare: true },
    { name: "waits_for_limit", label: "Waits for limit (name/key)", isRare: true },
    { name: "fingerprint", label: "Cause (fingerprint)", isRare: true },
  ];
}

// Visible rows change at once. If tasks came, went or moved, the list is read again; further down the list, where that
// would move the rows that the user reads, only on request.
function useChanges(list, filter) {
  const [changed, setChanged] = useState(new Map());
  const [isNew, setNew] = useState(false);
  const reload = useThrottled(() => (isAtTop() ? list.reload() : setNew(true)), PAUSE);
  useStream("events", filter.task_type ? { task_type: filter.task_type } : {}, (events) => {
    const known = new Set((list.items ?? []).map((task) => task.task_id));
    const newest = new Map([...changed].filter(([id]) => known.has(id)));
    for (const { event, data } of events) {
      const task = data?.data;
      if (!task) reload(); // connected: anything may have happened since the list was read
      else if (known.has(data.subject)) newest.set(data.subject, task);
      else if (event === "task.submitted") reload();
      else if (event !== "task.progress" && CHANGING.some((name) => filter[name])) reload();
      const belongs = filter.status && task?.status === filter.status;
      if (task && filter.status && belongs !== known.has(data.subject)) reload();
    }
    setChanged(newest);
  });
  const newest = (task) => {
    const said = changed.get(task.task_id);
    return said && said.updated_at >= task.updated_at ? { ...task, ...said } : task;
  };
  const show = () => {
    setNew(false);
    scrollTo(0, 0);
    document.querySelector("main h1")?.focus({ preventScroll: true }); // the button that was pressed is gone
    list.reload();
  };
  return { newest, isNew, show };
}
