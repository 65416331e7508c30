// The installation at a glance: first the problems, then how many tasks wait, run and end.
import { to } from "../lib/address.js";
import { get, isOperator, session } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { count, perSecond, plural, secondsSince, short } from "../lib/format.js";
import { useLoad, usePages } from "../lib/load.js";
import { STATUSES, isDead } from "../lib/status.js";
import { Head, Section, Waiting } from "../parts/basics.js";
import { Lines } from "../parts/chart.js";
import { Table } from "../parts/table.js";
import { TaskTable } from "../parts/task-table.js";
import { Tile } from "../parts/tile.js";

const LOOK = 2000;
const FRESH = 10;
const DEAD = STATUSES.filter(isDead);
const KEPT = 90; // reads that a chart shows: three minutes

export function Overview() {
  return isOperator() ? html`<${Installation} />` : html`<${Own} />`;
}

// The values of each read, kept while the window is open, so that the charts continue where they were.
const seen = { total: [], types: new Map() };

function remember(data) {
  const sum = (name) => data.types.reduce((all, type) => all + (type[name] ?? 0), 0);
  push(seen.total, { waiting: sum("waiting"), finished: sum("finished_per_second"), failed: sum("failed_per_second") });
  for (const type of data.types) {
    if (!seen.types.has(type.task_type)) seen.types.set(type.task_type, []);
    push(seen.types.get(type.task_type), { finished: type.finished_per_second ?? 0, failed: type.failed_per_second ?? 0 });
  }
}

function push(list, value) {
  list.push(value);
  if (list.length > KEPT) list.shift();
}

function Installation() {
  const loaded = useLoad((signal) => get("admin/overview", {}, signal).then((data) => (remember(data), data)), [], { every: LOOK });
  const { data } = loaded;
  if (!data) return html`<${Head} title="Overview" /><${Waiting} of=${loaded} />`;
  return html`<${Head} title="Overview">${countedText(data)}<//>
    <${Problems} problems=${data.problems} letters=${data.dead_letters} isOld=${Boolean(loaded.problem)} />
    <div class="tiles">${tilesOf(data)}</div>
    <${Charts} isBounded=${data.types.some((type) => type.is_bounded)} />
    <${Section} title="Task types">
      <${Table} label="Task types" rows=${data.types} idOf=${(type) => type.task_type} columns=${TYPES}
        href=${(type) => to(["tasks"], { task_type: type.task_type })} empty="No worker has declared a task type yet." />
    <//>`;
}

// The age of the numbers by status, unless they are as new as they are with few tasks: those are counted every five seconds.
function countedText({ at, counted_at: counted }) {
  const age = counted ? secondsSince(counted, Date.parse(at)) : 0;
  return age > FRESH && `Queued tasks and dead letters as of ${short(age)} ago.`;
}

function Problems({ problems, letters, isOld }) {
  if (problems.length === 0 && isOld) return null; // the present problems are not known, and the page says why
  if (problems.length === 0 && letters) {
    return html`<p class="note"><b>No problems now.</b> ${plural(letters, "dead letter")} from earlier: <a href=${to(["dead-letters"])}>show them</a></p>`;
  }
  if (problems.length === 0) return html`<p class="note good"><b>No problems now.</b></p>`;
  return html`<section aria-label="Problems"><ul class="problems">
    ${problems.map((one) => html`<li key=${one.text}><b>${one.text}</b> <code>${one.code}</code>
      ${placeOf(one) && html`<a class="button" data-row href=${placeOf(one)}>Show</a>`}</li>`)}
  </ul></section>`;
}

// The page of the console that shows more about a problem, by the kind of problem.
const PLACES = {
  no_worker: () => to(["workers"]), worker_lost: () => to(["workers"]), failing: (type) => to(["dead-letters"], { task_type: type }),
  retrying: (type) => to(["tasks"], { status: "RETRYING", task_type: type }), behind: (type) => to(["tasks"], { status: "QUEUED", task_type: type }),
  halted: () => to(["streams"], { is_halted: true }), schedule: () => to(["schedules"]), paused: () => to(["queues"]),
};
const placeOf = ({ code, task_type: type }) => PLACES[code]?.(type);

function tilesOf({ by_status: statuses, workers, dead_letters: letters }) {
  const of = (name) => statuses[name]; // undefined until the tasks have been counted
  const tile = (name, value, href, kind = "") => html`<${Tile} name=${name} value=${value} href=${href} kind=${kind} />`;
  return html`
    ${tile("queued", count(of("QUEUED")), to(["tasks"], { status: "QUEUED" }))}
    ${tile("running", count(of("RUNNING")), to(["tasks"], { status: "RUNNING" }), "busy")}
    ${tile("being retried", count(of("RETRYING")), to(["tasks"], { status: "RETRYING" }))}
    ${tile("dead letters", count(letters), to(["dead-letters"]), letters ? "bad" : "")}
    ${tile("workers", count(workers), to(["workers"]), workers ? "" : "bad")}`;
}

function Charts({ isBounded }) {
  const total = seen.total;
  const last = total.at(-1);
  const of = (name) => total.map((one) => one[name]);
  return html`<div class="charts">
    <figure><figcaption>Finished <b>${perSecond(last.finished)}</b> <span class="bad-text">${last.failed > 0 && `failed ${perSecond(last.failed)}`}</span></figcaption>
      <${Lines} label="Finished and failed per second" format=${perSecond}
        series=${[{ name: "finished", values: of("finished"), kind: "good" }, { name: "failed", values: of("failed"), kind: "bad" }]} /></figure>
    <figure><figcaption>Waiting <b>${count(last.waiting, isBounded)}</b></figcaption>
      <${Lines} label="Waiting" format=${count} series=${[{ name: "waiting", values: of("waiting"), kind: "busy" }]} /></figure>
  </div>`;
}

function TypeChart({ name }) {
  const values = seen.types.get(name) ?? [];
  return html`<${Lines} label="${name}, per second" format=${perSecond} series=${[
    { name: "finished", values: values.map((one) => one.finished), kind: "good" }, { name: "failed", values: values.map((one) => one.failed), kind: "bad" },
  ]} />`;
}

const TYPES = [
  { name: "Type", cell: (type) => html`<b>${type.task_type}</b><small>${type.is_paused ? "paused" : ""}</small>` },
  { name: "Waiting", number: true, size: "s", cell: (type) => count(type.waiting, type.is_bounded) },
  { name: "Oldest", wide: true, number: true, size: "s", cell: (type) => (type.oldest_waiting_at ? short(secondsSince(type.oldest_waiting_at)) : "–") },
  { name: "Running", number: true, size: "s", cell: (type) => count(type.running, type.is_running_bounded) },
  { name: "Retrying", wide: true, number: true, size: "s", cell: (type) => count(type.retrying, type.is_bounded) },
  { name: "Finished", wide: true, number: true, size: "s", cell: (type) => perSecond(type.finished_per_second) },
  { name: "Failed", wide: true, number: true, size: "s", cell: (type) => html`<span class=${type.failed_per_second > 0 ? "bad-text" : ""}>${perSecond(type.failed_per_second)}</span>` },
  { name: "Last minutes", wide: true, cell: (type) => html`<${TypeChart} name=${type.task_type} />` },
];

// For callers who see only their own tasks.
function Own() {
  return html`<${Head} title="Overview">Tasks of ${session.get().me.principal}.<//><${Recent} />`;
}

const newestOf = (pages) => pages?.flatMap((page) => page.items).sort((one, other) => (one.created_at < other.created_at ? 1 : -1));

function Recent() {
  const running = usePages("tasks", { status: "RUNNING" }, { limit: 10, every: LOOK });
  const failed = useLoad((signal) => Promise.all(DEAD.map((status) => get("tasks", { status, limit: 10 }, signal))), [], { every: LOOK });
  const newest = usePages("tasks", {}, { limit: 10, every: LOOK });
  const part = (title, list) => html`<${Section} title=${title}>
    <${Waiting} of=${list} />${list.items && html`<${TaskTable} items=${list.items.slice(0, 10)} label=${title} />`}
  <//>`;
  return html`${part("Running", running)}${part("Failed", { ...failed, items: newestOf(failed.data) })}${part("The newest", newest)}`;
}
