// Waiting tasks by task type and lane; and pausing a type.
import { to } from "../lib/address.js";
import { get, part, post } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { at, count, perSecond, secondsSince, short } from "../lib/format.js";
import { useLoad } from "../lib/load.js";
import { say } from "../lib/messages.js";
import { Action, Head, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { Table } from "../parts/table.js";

const LOOK = 2000;
const LANES = ["high", "normal", "low"];

export function Queues() {
  const loaded = useLoad((signal) => get("admin/queues", {}, signal), [], { every: LOOK });
  return html`<${Head} title="Queues">Tasks that wait for a worker, by task type and lane.<//>
    <${Waiting} of=${loaded} />
    ${loaded.data && html`<${Table} label="Queues" rows=${loaded.data.items} idOf=${(one) => one.task_type} columns=${columns(loaded.reload)}
      href=${(one) => to(["tasks"], { task_type: one.task_type, status: "QUEUED" })} empty="No worker has declared a task type yet." />`}`;
}

const columns = (reload) => [
  { name: "Type", cell: (one) => html`<b>${one.task_type}</b><small title=${one.paused && pausedBy(one.paused)}>${one.paused ? pausedBy(one.paused) : one.is_running ? "runs" : ""}</small>` },
  { name: "State", wide: true, size: "m", cell: (one) => html`<span class="status ${one.is_paused ? "warn" : "good"}">${one.is_paused ? "paused" : "open"}</span>` },
  { name: "Waiting", number: true, size: "s", narrow: true, cell: (one) => count(LANES.reduce((sum, lane) => sum + one.lanes[lane].waiting, 0), one.is_bounded) },
  ...LANES.map((lane) => ({ name: lane, number: true, size: "s", wide: "widest", cell: (one) => count(one.lanes[lane].waiting, one.lanes[lane].is_bounded) })),
  { name: "Oldest", wide: true, number: true, size: "s", cell: oldestOf },
  { name: "In", wide: true, number: true, size: "s", cell: (one) => perSecond(rateOf(one, "in")) },
  { name: "Out", wide: true, number: true, size: "s", cell: (one) => perSecond(rateOf(one, "out")) },
  { name: "", size: "act", number: true, cell: (one) => html`<${Action} role="operator" aria-label="${one.is_paused ? "Resume" : "Pause"} ${one.task_type}"
    onPress=${async () => (await askPause(one)) && reload()}>${one.is_paused ? "Resume" : "Pause"}<//>` },
];

const pausedBy = ({ by, at: time, reason }) => `paused by ${by} at ${at(time)}${reason ? `: ${reason}` : ""}`;
function oldestOf({ lanes }) {
  const times = Object.values(lanes).map((lane) => lane.oldest_at).filter(Boolean);
  return times.length ? short(secondsSince(times.sort()[0])) : "–";
}

const rateOf = ({ lanes }, way) => LANES.reduce((sum, lane) => sum + lanes[lane][`${way}_per_second`], 0);

const askPause = (one) => ask({
  title: `${one.is_paused ? "Resume" : "Pause"} ${one.task_type}?`,
  text: html`<p>${one.is_paused
    ? html`${one.task_type} was ${pausedBy(one.paused)}. Its tasks start again in all workers.`
    : "No worker starts tasks of this type until somebody resumes it. Running tasks continue to their end. New submissions are accepted and wait."}</p>`,
  confirm: one.is_paused ? "Resume" : "Pause the type",
  danger: !one.is_paused,
  fields: one.is_paused ? [] : [{ name: "reason", label: "Reason", hint: "Shown with the queue", maxlength: 500 }],
  run: async ({ reason }) => {
    const path = `admin/queues/${part(one.task_type)}/${one.is_paused ? "resume" : "pause"}`;
    await post(path, one.is_paused ? undefined : { reason: reason || null });
    say(one.is_paused ? `${one.task_type} begins again.` : `${one.task_type} is paused.`);
  },
});
