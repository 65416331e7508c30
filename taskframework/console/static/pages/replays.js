// Actions on many tasks that run in the background: replays, retries and cancels, with their progress.
import { to } from "../lib/address.js";
import { because, get, part, post } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { at, count, inline, perSecond, shortId } from "../lib/format.js";
import { useLoad, usePages } from "../lib/load.js";
import { say } from "../lib/messages.js";
import { Action, Ago, Facts, Head, Progress, Section, TaskLink, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { REASON } from "../parts/field.js";
import { Table } from "../parts/table.js";
import { Tile } from "../parts/tile.js";

const LOOK = 1000;
const KINDS = { RUNNING: "busy", DONE: "good", STOPPED: "warn" };

const NAMES = { replay: "Replay", discard: "Discard", retry: "Retry of many", cancel: "Cancel of many" };

const State = ({ status }) => html`<span class="status ${KINDS[status]}">${status.toLowerCase()}</span>`;
const doneOf = (one) => one.done + one.refused + one.failed + one.skipped;
const percentOf = (one) => (one.total > 0 ? (100 * doneOf(one)) / one.total : null);

export function Replays() {
  const list = usePages("admin/replays", {}, { every: LOOK });
  return html`<${Head} title="Replays">Actions on many tasks at once: replays, discards, retries and cancels. They run in the background.<//>
    <${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Replays" rows=${list.items} idOf=${(one) => one.replay_id} columns=${COLUMNS} more=${list.more} isDone=${list.isDone}
      href=${(one) => to(["replays", one.replay_id])} empty="No actions on many tasks yet." />`}`;
}

const COLUMNS = [
  { name: "Replay", cell: (one) => html`<b>${one.action}</b><small>${shortId(one.replay_id)}</small>` },
  { name: "State", size: "m", cell: (one) => html`<${State} status=${one.status} />` },
  { name: "Handled", cell: (one) => html`<${Progress} progress=${percentOf(one)} label="Handled of ${shortId(one.replay_id)}" />
    <small>${doneText(one)} done${one.refused + one.failed > 0 ? `, ${count(one.refused + one.failed)} not` : ""}</small>` },
  { name: "By", wide: true, size: "m", cell: (one) => one.by },
  { name: "Why", wide: true, cell: (one) => html`<span class="clip">${one.reason ?? ""}</span>` },
  { name: "Begun", number: true, size: "m", wide: true, cell: (one) => html`<${Ago} time=${one.at} />` },
];

export function Replay({ name }) {
  const path = `admin/replays/${part(name)}`;
  const loaded = useLoad((signal) => get(path, {}, signal), [name], { every: LOOK });
  const one = loaded.data;
  if (!one) return html`<${Head} title="Replay" /><${Waiting} of=${loaded} />`;
  const stop = async () => (await askStop(one, path)) && loaded.reload();
  return html`
    <${Head} title=${NAMES[one.action]} actions=${one.status === "RUNNING" && html`<${Action} role="operator" danger hotkey="s" onPress=${stop}>Stop<//>`}>
      <${State} status=${one.status} /> <code class="id">${one.replay_id}</code>
    <//>
    <${Waiting} of=${loaded} />
    <div class="big-progress"><${Progress} progress=${percentOf(one)} label="Handled" /></div>
    <div class="tiles">
      <${Tile} name="in all" value=${count(one.total, one.is_total_bounded)} /><${Tile} name="done" value=${count(one.done)} kind="good" />
      <${Tile} name="refused" value=${count(one.refused)} kind=${one.refused ? "bad" : ""} />
      <${Tile} name="failed" value=${count(one.failed)} kind=${one.failed ? "bad" : ""} />
      <${Tile} name="skipped" value=${count(one.skipped)} />
      ${one.status !== "DONE" && html`<${Tile} name=${one.status === "STOPPED" ? "not done" : "to do"} value=${count(one.remaining + one.in_hand)} />`}
      <${Tile} name="at the most" value=${one.rate ? perSecond(one.rate) : "–"} />
    </div>
    <${Section} title="Facts"><${Facts} rows=${[
      ["By", one.by], ["Begun", html`${at(one.at)}, <${Ago} time=${one.at} />`], ["Reason", one.reason], ["Filter", one.filter && html`<code>${inline(one.filter)}</code>`],
      ["Finished", one.finished_at && at(one.finished_at)],
    ]} /><//>
    ${one.refusals.length > 0 && html`<${Section} title="Not done (the last ones)"><ul class="plain-list">
      ${one.refusals.map(({ id, problem }) => html`<li key=${id}><${TaskLink} id=${id} /> ${problem}</li>`)}
    </ul><//>`}`;
}

const askStop = (one, path) => ask({
  title: "Stop this action?",
  text: html`<${Standing} path=${path} begun=${one} />`,
  confirm: "Stop it",
  danger: true,
  fields: [REASON],
  run: async ({ reason }) => {
    const { data } = await post(`${path}/stop`, undefined, { headers: because(reason) });
    if (data.status === "DONE") say(`It had already finished: ${doneText(data)}.`, "bad");
    else say(`Stopped after ${doneText(data)}${data.in_hand > 0 ? `; ${count(data.in_hand)} in hand are still finished` : ""}.`);
  },
});

// The progress of the action while the dialog is open: the action continues until it is stopped.
function Standing({ path, begun }) {
  const { data: one = begun } = useLoad((signal) => get(path, {}, signal), [path], { every: LOOK });
  if (one.status !== "RUNNING") return html`<p>It has finished: ${doneText(one)}. There is nothing left to stop.</p>`;
  return html`<p>${doneText(one)} are done and stay as they are${one.refused + one.failed > 0 && `, ${count(one.refused + one.failed)} could not be done`}.
    The other ${count(one.remaining)} will not be changed.</p>`;
}

const doneText = (one) => `${count(one.done)} of ${count(one.total, one.is_total_bounded)}`;
