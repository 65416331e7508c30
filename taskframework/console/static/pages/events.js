// Events of all tasks as they come, the newest first.
import { to } from "../lib/address.js";
import { html, useRef, useState } from "../lib/dom.js";
import { at, count, inline, shortId } from "../lib/format.js";
import { useStream } from "../lib/live.js";
import { Action, Head, Status } from "../parts/basics.js";
import { Filters, asOptions, useTypes } from "../parts/filters.js";
import { Table } from "../parts/table.js";

const MOST = 2000; // events that are kept to scroll back
const KINDS = [
  "submitted", "replaced", "unblocked", "skipped", "started", "progress", "retrying", "retry_requested", "waiting", "signalled", "resumed", "sealed",
  "released", "completed", "completed_with_errors", "failed", "dead_letter", "cancel_requested", "cancelled", "replayed", "reopened", "discarded",
];

export function Events({ query }) {
  const types = useTypes();
  const [events, setEvents] = useState([]);
  const [isPaused, setPaused] = useState(false);
  const waiting = useRef([]);
  const [waits, setWaits] = useState(0); // how many events wait, for the page
  const take = () => {
    const came = waiting.current;
    waiting.current = [];
    setWaits(0);
    setEvents((old) => [...came, ...old].slice(0, MOST));
  };
  const number = useRef(0);
  useStream("events", query.task_type ? { task_type: query.task_type } : {}, (heard) => {
    // The page reconnected and may have missed events; one row says so.
    const told = heard.filter(({ event }) => event !== "connected" && event !== "resync");
    const came = told.map((event) => ({ ...event, number: ++number.current })).reverse();
    waiting.current = [...came, ...waiting.current].slice(0, MOST);
    if (isPaused) setWaits(waiting.current.length);
    else take();
  });
  const pause = () => {
    if (isPaused) take();
    setPaused(!isPaused);
  };
  const shown = events.filter((event) => fits(event, query));
  return html`
    <${Head} title="Events" actions=${html`<${Action} role="reader" hotkey="p" onPress=${pause}>${isPaused ? "Go on" : "Pause"}<//>
      <${Action} role="reader" onPress=${() => setEvents([])}>Clear<//>`}>
      ${isPaused ? `Paused; ${count(waits, waits === MOST)} new since then.` : "Events of all tasks, from now on."}
    <//>
    <${Filters} label="Events" query=${query} fields=${[
      { name: "kind", label: "What", options: KINDS.map((kind) => [kind, kind.replaceAll("_", " ")]) },
      { name: "task_type", label: "Type", options: asOptions(types) }, { name: "text", label: "Contains" },
    ]} />
    <${Table} label="Events" rows=${shown} idOf=${(event) => event.number} columns=${COLUMNS} empty="No events yet."
      href=${({ data }) => (data?.subject ? to(["tasks", data.subject]) : to(["events"]))} />`;
}

function fits({ event, data }, { kind, text, task_type: type }) {
  if (kind && event !== `task.${kind}`) return false;
  if (type && data?.data && data.data.task_type !== type) return false;
  return !text || JSON.stringify(data).toLowerCase().includes(text.toLowerCase());
}

const COLUMNS = [
  { name: "What", cell: ({ event, data }) => (data?.data
    ? html`<b>${event.replace("task.", "").replaceAll("_", " ")}</b><small>${data.data.task_type}</small>`
    : html`<b>some events were missed</b><small>the page reconnected</small>`) },
  { name: "Task", size: "m", wide: true, cell: ({ data }) => html`<code class="id">${shortId(data?.subject ?? "")}</code>` },
  { name: "Status", size: "m", cell: ({ data }) => data?.data && html`<${Status} status=${data.data.status} />` },
  { name: "Message", wide: true, cell: ({ data }) => html`<span class="clip">${said(data?.data)}</span>` },
  { name: "At", number: true, size: "m", cell: ({ data }) => (data?.time ? at(data.time) : "") },
];

function said(task) {
  if (!task) return "";
  const value = task.error?.message ?? (task.finished_at ? task.result : task.progress);
  return value === null || value === undefined ? "" : inline(value);
}
