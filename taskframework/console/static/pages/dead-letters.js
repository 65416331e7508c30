// Tasks that failed for good: by cause, then one by one; and the actions on all dead letters of a cause.
import { refine, to } from "../lib/address.js";
import { mayActForUsers, post } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { count, kindOfError, plural, shortId } from "../lib/format.js";
import { usePages } from "../lib/load.js";
import { Action, Ago, Head, Status, Waiting } from "../parts/basics.js";
import { askBulk } from "../parts/bulk.js";
import { Bars } from "../parts/chart.js";
import { Filters, asOptions, asTime, useTypes } from "../parts/filters.js";
import { Table } from "../parts/table.js";

const LOOK = 3000;
const MOST_TOLD = 20;
const NAMES = ["fingerprint", "task_type", "kind", "text", "user_id"];
const TIMES = { after: "finished_after", before: "finished_before" };

export function DeadLetters({ query }) {
  const types = useTypes();
  const isEach = query.view === "each" || [...NAMES, ...Object.keys(TIMES)].some((name) => name !== "task_type" && query[name]);
  return html`
    <${Head} title="Dead letters" actions=${html`<${Views} query=${query} isEach=${isEach} />`}>
      Tasks that failed for good, and messages that nobody could read.
    <//>
    <${Filters} label="Dead letters" query=${query} fields=${[
      { name: "text", label: "Error contains" }, { name: "task_type", label: "Type", options: asOptions(types) },
      { name: "kind", label: "Kind", options: [["task", "tasks"], ["message", "messages"]] },
      ...(mayActForUsers() ? [{ name: "user_id", label: "User" }] : []), { name: "fingerprint", label: "Cause", isRare: true },
      { name: "after", label: "Since", type: "datetime-local", isRare: true }, { name: "before", label: "Until", type: "datetime-local", isRare: true },
    ]} />
    ${isEach ? html`<${Each} query=${query} />` : html`<${Groups} query=${query} />`}`;
}

const Views = ({ query, isEach }) => html`<div class="switch" role="group" aria-label="View">
  <a href=${to(["dead-letters"], { task_type: query.task_type })} aria-current=${isEach ? undefined : "true"}>By cause</a>
  <a href=${to(["dead-letters"], { ...query, view: "each" })} aria-current=${isEach ? "true" : undefined}>Each</a>
</div>`;

function Groups({ query }) {
  const list = usePages("admin/dead-letters/groups", { task_type: query.task_type }, { every: LOOK });
  return html`<${Waiting} of=${list} /><${WithAll} list=${list} filter=${filterOf({ task_type: query.task_type })} />
    ${list.items && html`<${Table} label="Causes" rows=${list.items} idOf=${(group) => group.fingerprint} columns=${GROUPS} more=${list.more}
      isDone=${list.isDone} href=${(group) => to(["dead-letters"], { fingerprint: group.fingerprint, task_type: query.task_type })} empty="No dead letters. No task has failed for good." />`}`;
}

const GROUPS = [
  { name: "Cause", cell: ({ error, task_types: types, fingerprint }) => html`<b>${error.message || kindOfError(error.type ?? "")}</b>
    <small>${[...types, error.type ? kindOfError(error.type) : "message", fingerprint].join(" · ")}</small>` },
  { name: "Count", number: true, size: "s", cell: (group) => html`<b>${count(group.count)}</b>` },
  { name: "Last 24 hours", wide: true, size: "m", cell: ({ trend }) => trend && html`<${Bars} values=${trend}
    label="By hour: ${trend.reduce((sum, one) => sum + one, 0)} in the last 24 hours, ${trend.at(-1)} in the last hour" />` },
  { name: "Oldest", wide: true, number: true, size: "m", cell: (group) => html`<${Ago} time=${group.first_at} />` },
  { name: "Newest", number: true, size: "m", cell: (group) => html`<${Ago} time=${group.last_at} />` },
];

// The parameters of the request, from the filters in the address.
function filterOf(query) {
  const times = Object.entries(TIMES).map(([name, field]) => [field, asTime(query[name])]);
  return Object.fromEntries([...NAMES.map((name) => [name, query[name]]), ...times].filter(([, value]) => value));
}

// The actions on all dead letters of a list; only with at least one filter.
const WithAll = ({ list, filter }) => list.items?.length > 0 && Object.keys(filter).length > 0 && html`<div class="actions bulk">
  <span>With all of these:</span>
  <${Action} role="operator" hotkey="d" onPress=${() => dryRun(filter)}>Dry run<//>
  <${Action} role="operator" hotkey="r" onPress=${() => askReplay(filter).then(list.reload)}>Replay<//>
  <${Action} role="operator" danger onPress=${() => askDiscard(filter).then(list.reload)}>Discard<//>
</div>`;

function Each({ query }) {
  const filter = filterOf(query);
  const list = usePages("admin/dead-letters", filter, { every: LOOK });
  return html`<${WithAll} list=${list} filter=${filter} />
    ${list.problem && query.fingerprint && !list.problem.isAway && html`<p><button type="button" onClick=${() => refine({ fingerprint: "" })}>Show all</button></p>`}
    <${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Dead letters" rows=${list.items} idOf=${(letter) => letter.id} columns=${LETTERS} more=${list.more}
      isDone=${list.isDone} href=${(letter) => to(["dead-letters", letter.id])} empty="No dead letters match." />`}`;
}

const LETTERS = [
  { name: "Dead letter", size: "l", cell: (letter) => html`<b>${letter.task_type ?? "message"}</b><small>${shortId(letter.id)}</small>` },
  { name: "Error", cell: (letter) => html`<span class="clip bad-text">${letter.error?.message || letter.reason}</span>
    <small>${letter.error && kindOfError(letter.error.type)}</small>` },
  { name: "Status", wide: true, size: "m", cell: (letter) => letter.status && html`<${Status} status=${letter.status} />` },
  { name: "At", number: true, size: "m", cell: (letter) => html`<${Ago} time=${letter.at} />` },
];

// The outcome of a dry run for all that the filter finds; nothing is changed.
const dry = async (filter) => (await post("admin/dead-letters/replay", { filter, dry_run: true })).data;

async function dryRun(filter) {
  const result = await dry(filter);
  await askBulk({
    path: "admin/dead-letters/replay", filter, name: "Replay", title: "What a replay would do", mayReopen: true,
    text: html`${saidOf(result)} Nothing was changed.
      <ul class="refused">${[...result.refused, ...result.invalid].slice(0, MOST_TOLD).map((one) => html`<li key=${one.id}>
        <code>${shortId(one.id)}</code> ${(one.error ?? one.warning).detail}</li>`)}</ul>`,
  });
}

function saidOf({ total, items, replayed, refused, invalid }) {
  const looked = items.length < total ? ` Of the newest ${count(items.length)}, ` : " ";
  return `${plural(total, "dead letter")} found.${looked}${count(replayed)} would be queued again, ${count(refused.length)} refused; `
    + `${count(invalid.length)} would fail at once because their parameters are no longer valid.`;
}

async function askReplay(filter) {
  const { total, items, refused } = await dry(filter);
  const most = total - refused.length;
  return askBulk({
    path: "admin/dead-letters/replay", filter, name: "Replay", mayReopen: true,
    title: `Replay ${items.length < total ? "up to " : ""}${plural(most, "dead letter")}?`,
    text: html`Each is queued again with all its attempts and its own parameters, and runs from the beginning.
      ${refused.length > 0 && html` <b>${count(refused.length)} more ${refused.length === 1 ? "is" : "are"} refused</b>, such as: ${refused[0].error.detail}`}`,
  });
}

async function askDiscard(filter) {
  const { total } = (await post("admin/dead-letters/discard", { filter, dry_run: true })).data;
  return askBulk({
    path: "admin/dead-letters/discard", filter, name: "Discard", danger: true, hasRate: false, needsReason: true,
    title: `Discard ${plural(total, "dead letter")}?`,
    text: "They are removed from the list. A task can still be retried by its id; a message is deleted.",
  });
}
