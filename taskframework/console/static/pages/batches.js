// Batches, and the live progress of one of them.
import { to } from "../lib/address.js";
import { get, part, post } from "../lib/api.js";
import { html, useEffect } from "../lib/dom.js";
import { at, count, lasting, perSecond, plural, secondsSince, shortId, words } from "../lib/format.js";
import { useLoad, usePages, useThrottled } from "../lib/load.js";
import { useStream } from "../lib/live.js";
import { say } from "../lib/messages.js";
import { STATUSES, isFinal } from "../lib/status.js";
import { Action, Ago, Facts, Head, Json, Problem, Progress, Section, Status, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { Filters, asOptions, useTypes } from "../parts/filters.js";
import { Table } from "../parts/table.js";
import { Tile } from "../parts/tile.js";

const LOOK = 2000;
const PAUSE = 500;

export function Batches({ query }) {
  const types = useTypes();
  const list = usePages("batches", { status: query.status, task_type: query.task_type }, { every: LOOK });
  return html`<${Head} title="Batches" />
    <${Filters} label="Batches" query=${query} fields=${[
      { name: "status", label: "Status", options: STATUSES.map((status) => [status, words(status)]) },
      { name: "task_type", label: "Type", options: asOptions(types) },
    ]} />
    <${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Batches" rows=${list.items} idOf=${(one) => one.batch_id} columns=${COLUMNS} more=${list.more}
      isDone=${list.isDone} href=${(one) => to(["batches", one.batch_id])} empty="No batches match." />`}`;
}

const COLUMNS = [
  { name: "Batch", cell: (one) => html`<b>${one.task_type}</b><small>${shortId(one.batch_id)}</small>` },
  { name: "Status", size: "m", cell: (one) => html`<${Status} status=${one.status} />` },
  { name: "Done", cell: (one) => html`<${Progress} progress=${one.percent} label="Done of ${shortId(one.batch_id)}" />` },
  { name: "Failed", wide: true, number: true, size: "s", cell: (one) => (one.failed ? html`<b class="bad-text">${count(one.failed)}</b>` : "0") },
  { name: "Items", wide: true, number: true, size: "s", cell: (one) => count(one.total) },
  { name: "Created", wide: true, number: true, size: "m", cell: (one) => html`<${Ago} time=${one.created_at} />` },
];

export function Batch({ name }) {
  const path = `batches/${part(name)}`;
  // A cancelled batch ends before its last items end.
  const loaded = useLoad((signal) => get(path, {}, signal), [name], { every: (one) => (isFinal(one.status) && one.done < one.total ? LOOK : 0) });
  const results = usePages(`${path}/results`, {}, { limit: 100 });
  const batch = loaded.data;
  const isLive = batch && !isFinal(batch.status);
  const reload = useThrottled(loaded.reload, PAUSE);
  useStream(isLive ? `${path}/events` : null, {}, reload);
  useEffect(() => void results.reload(), [batch?.status, batch?.total, JSON.stringify(batch?.counts)]);
  if (!batch) return html`<${Head} title="Batch" /><${Waiting} of=${loaded} />`;
  return html`
    <${Head} title="Batch of ${batch.task_type}" actions=${html`<${Actions} batch=${batch} done=${reload} />`}>
      <${Status} status=${batch.status} /> <code class="id">${batch.batch_id}</code>
    <//>
    <${Problem} problem=${loaded.problem} />
    <div class="big-progress"><${Progress} progress=${batch.percent} label="Done" /></div>
    ${batch.error && html`<p class="note bad"><b>${batch.error.type}</b> ${batch.error.message}</p>`}
    <div class="tiles">
      <${Tile} name="items" value=${count(batch.total)} />
      <${Tile} name="done" value=${count(batch.done)} />
      <${Tile} name="failed" value=${count(batch.failed)} kind=${batch.failed ? "bad" : ""} />
      <${Tile} name="a second" value=${perSecond(batch.rate).replace("/s", "")} />
      <${Tile} name=${isLive ? "to go" : "took"} value=${lasting(isLive ? batch.estimated_end && -secondsSince(batch.estimated_end) : secondsSince(batch.created_at, Date.parse(batch.finished_at)))} />
    </div>
    <${Section} title="Facts"><${Facts} rows=${[
      ["Succeeds when", words(batch.policy)], ["Items per task", batch.chunk_size > 1 && batch.chunk_size], ["Upload", !batch.is_sealed && (batch.finished_at ? "not complete when the batch ended" : "not complete yet")],
      ["User", batch.user_id], ["Created", at(batch.created_at)], ["First result", batch.first_result_at && at(batch.first_result_at)],
      ["Finished", batch.finished_at && at(batch.finished_at)], ["Correlation id", html`<a class="id" href=${to(["tasks"], { correlation_id: batch.correlation_id })}>${batch.correlation_id}</a>`],
    ]} /><//>
    ${batch.result !== null && html`<${Section} title="Result"><${Json} value=${batch.result} label="Result" /><//>`}
    <${Section} title="Items"><${Problem} problem=${results.problem} />
      ${results.items && html`<${Table} label="Items" rows=${results.items} idOf=${(one) => one.index} columns=${ITEMS} more=${results.more}
        isDone=${results.isDone} href=${(one) => to(["tasks", one.task_id])} />`}<//>`;
}

const ITEMS = [
  { name: "Item", size: "s", cell: (one) => html`<b>${count(one.index)}</b>` },
  { name: "Status", size: "m", cell: (one) => html`<${Status} status=${one.status} />` },
  { name: "Message", cell: (one) => html`<span class="clip ${one.error ? "bad-text" : ""}">${one.error ? one.error.message : one.result === null ? "" : JSON.stringify(one.result)}</span>` },
];

function Actions({ batch, done }) {
  const act = async (run) => (await run()) && done();
  return html`
    ${isFinal(batch.status) && batch.failed > 0 && html`<${Action} hotkey="r" onPress=${() => act(() => askRetryFailed(batch))}>Retry failed<//>`}
    ${!isFinal(batch.status) && html`<${Action} danger hotkey="c" onPress=${() => act(() => askCancel(batch))}>Cancel<//>`}`;
}

const askRetryFailed = (batch) => ask({
  title: `Retry ${plural(batch.failed, "failed item")}?`,
  text: html`<p>Each is queued again with all its attempts; the others stay as they are. The batch runs until they have ended.</p>`,
  confirm: `Retry ${count(batch.failed)}`,
  run: async () => {
    await post(`batches/${part(batch.batch_id)}/retry-failed`);
    say("Queued again.");
  },
});

const askCancel = (batch) => ask({
  title: "Cancel this batch?",
  text: html`<p>${plural(batch.total - batch.done, "item")} of ${count(batch.total)} ${batch.total - batch.done === 1 ? "is" : "are"} not finished and will be cancelled. Running ones are asked to stop.</p>`,
  confirm: "Cancel the batch",
  danger: true,
  fields: [{ name: "reason", label: "Reason", hint: "Kept in its history", maxlength: 500 }],
  run: async ({ reason }) => {
    await post(`batches/${part(batch.batch_id)}/cancel`, reason ? { reason } : {});
    say("The batch is cancelled.");
  },
});
