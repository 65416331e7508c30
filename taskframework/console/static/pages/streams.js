// The ordered streams, and one of them: which task has the turn, how many wait, and the results so far.
import { to } from "../lib/address.js";
import { get, isOperator, mayActForUsers, part, post } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { count, inline, plural } from "../lib/format.js";
import { useLoad, usePages } from "../lib/load.js";
import { say } from "../lib/messages.js";
import { Action, Facts, Head, Section, Status, TaskLink, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { Filters } from "../parts/filters.js";
import { Table } from "../parts/table.js";
import { TaskTable } from "../parts/task-table.js";

const LOOK = 2000;

export function Streams({ query }) {
  return html`<${Head} title="Streams">Tasks of one key that run one after another, or give their results in order.<//>
    <${Filters} label="Streams" query=${query} fields=${[
      { name: "key", label: "Key of a stream" }, ...(mayActForUsers() ? [{ name: "user_id", label: "User, if not you" }] : []),
      ...(isOperator() && !query.key ? [{ name: "is_halted", label: "State", options: [["true", "halted"], ["false", "not halted"]] }] : []),
    ]} />
    ${query.key ? html`<${Stream} key=${`${query.key} ${query.user_id}`} name=${query.key} user=${query.user_id} />`
      : isOperator() ? html`<${All} query=${query} />`
      : html`<p class="empty">Give the key of a stream to see it. A task of a stream also has a link to it.</p>`}`;
}

function All({ query }) {
  const list = usePages("admin/streams", { is_halted: query.is_halted, user_id: query.user_id }, { limit: 100, every: LOOK });
  return html`<${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Streams" rows=${list.items} columns=${STREAMS}
      more=${list.more} isDone=${list.isDone} idOf=${(one) => `${one.user_id} ${one.key}`} href=${(one) => to(["streams"], { key: one.key, user_id: one.user_id })}
      empty=${query.is_halted === "true" ? "No stream has halted." : "No streams."} />`}`;
}

const STREAMS = [
  { name: "Key", cell: (one) => html`<b class="clip">${one.key}</b><small>${one.user_id}</small>` },
  { name: "Mode", size: "m", wide: true, cell: (one) => one.mode.replaceAll("_", " ") },
  { name: "Submitted", size: "m", number: true, cell: (one) => count(one.next_position) },
  { name: "State", size: "m", cell: (one) => html`<span class="status ${one.is_halted ? "bad" : "good"}">${one.is_halted ? "halted" : "open"}</span>` },
];

function Stream({ name, user }) {
  const path = `streams/${part(name)}`;
  const owner = { user_id: user };
  const loaded = useLoad((signal) => get(path, owner, signal), [name, user], { every: LOOK });
  const waiting = usePages("tasks", { stream: name, ...owner }, { limit: 100, every: LOOK });
  const results = usePages(`${path}/results`, owner, { limit: 100, every: LOOK, isEndless: true });
  const stream = loaded.data;
  if (!stream) return html`<${Waiting} of=${loaded} />`;
  return html`
    ${stream.is_halted && html`<div class="note bad">
      <b>The stream is halted.</b> The task whose turn it is failed, and ${plural(stream.waiting, "task waits", "tasks wait")} after it.
      Replay that task, or continue the stream without it.
      <div class="actions">
        <a class="button" href=${to([isOperator() ? "dead-letters" : "tasks", stream.turn.task_id])}>Show the failed task</a>
        <${Action} danger hotkey="o" onPress=${async () => (await askGoOn(stream, path, owner)) && loaded.reload()}>Continue without it<//>
      </div></div>`}
    <${Section} title=${stream.key}><${Facts} rows=${[
      ["Mode", stream.mode.replaceAll("_", " ")],
      ["Whose turn", stream.turn && html`<${TaskLink} id=${stream.turn.task_id} /> at position ${count(stream.turn.position)}`],
      ["Waiting", stream.mode === "serial" && count(stream.waiting)],
      ["Submitted so far", count(stream.next_position)],
    ]} /><//>
    <${Section} title="Tasks, the newest first">${waiting.items && html`<${TaskTable} items=${waiting.items} list=${waiting} label="Tasks of the stream" />`}<//>
    <${Section} title="Results in order">${results.items && html`<${Table} label="Results" rows=${results.items} columns=${RESULTS}
      more=${results.more} isDone=${results.isDone} idOf=${(one) => one.position} href=${(one) => one.task_id && to(["tasks", one.task_id])} empty="No results yet." />`}<//>`;
}

const RESULTS = [
  { name: "Position", size: "s", cell: (one) => html`<b>${count(one.position)}</b>` },
  { name: "Status", size: "m", cell: (one) => html`<${Status} status=${one.status} />` },
  { name: "Result", cell: (one) => html`<span class="clip ${one.error ? "bad-text" : ""}">${one.error ? one.error.message : one.result === null ? "" : inline(one.result)}</span>` },
];

const askGoOn = (stream, path, owner) => ask({
  title: "Continue the stream?",
  text: html`<p>The task at position ${count(stream.turn.position)} stays failed and loses its turn. The ${plural(stream.waiting, "task")} after it run without its work.</p>`,
  confirm: "Continue without it",
  danger: true,
  run: async () => {
    await post(`${path}/go-on`, undefined, { query: { ...owner, position: stream.turn.position } });
    say("The stream continues.");
  },
});
