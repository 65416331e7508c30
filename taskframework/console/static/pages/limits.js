// Rate limits and concurrency limits as they are now.
import { get } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { count, perSecond } from "../lib/format.js";
import { useLoad } from "../lib/load.js";
import { Ago, Head, Section, TaskLink, Waiting } from "../parts/basics.js";
import { Table } from "../parts/table.js";

const LOOK = 2000;
const MOST = 500; // of each kind in an answer, which has no further page

export function Limits() {
  const loaded = useLoad((signal) => get("admin/limits", { limit: MOST }, signal), [], { every: LOOK });
  const ofKind = (wanted) => (loaded.data?.items ?? []).filter(({ kind }) => kind === wanted);
  const [rates, slots] = [ofKind("rate"), ofKind("concurrency")];
  const idOf = (one) => `${one.name} ${one.key}`;
  return html`<${Head} title="Limits" />
    <${Waiting} of=${loaded} />
    ${loaded.data && html`
      <${Section} title="Attempts per second"><${Table} label="Rate limits" rows=${rates} idOf=${idOf}
        columns=${RATES} empty="No rate limit has been used." /><${More} rows=${rates} /><//>
      <${Section} title="Attempts at once"><${Table} label="Concurrency limits" rows=${slots} idOf=${idOf}
        columns=${SLOTS} empty="No concurrency limit is in use now." /><${More} rows=${slots} /><//>`}`;
}

const More = ({ rows }) => rows.length >= MOST && html`<p class="quiet">At most ${count(MOST)} are listed.</p>`;
const keyOf = (one) => html`<small>${one.key ?? ""}</small>`;
const nextOf = (one) => (one.next_at ? html`<${Ago} time=${one.next_at} />` : "now");
const lastOf = (one) => html`<${Ago} time=${one.last_turn_at} />`;

const RATES = [
  { name: "Limit", cell: (one) => html`<b>${one.name}</b><span class="stand-in"> ${one.key}</span><span class="wide">${keyOf(one)}</span>
    <small class="stand-in">next ${nextOf(one)}${one.last_turn_at && html`, last ${lastOf(one)}`}</small>` },
  { name: "Rate", number: true, size: "s", cell: (one) => perSecond(one.rate) },
  { name: "At once", wide: true, number: true, size: "s", cell: (one) => count(one.burst_capacity) },
  { name: "Now", number: true, size: "s", cell: (one) => count(one.available) },
  { name: "Next", wide: true, size: "m", cell: nextOf },
  { name: "Last turn", wide: true, size: "m", cell: lastOf },
];

const SLOTS = [
  { name: "Limit", cell: (one) => html`<b>${one.name}</b>${keyOf(one)}` },
  { name: "Held", size: "m", cell: (one) => html`<span class="bar">
    <progress max=${one.number ?? one.holders.length} value=${one.holders.length} aria-label="Slots held of ${one.name}"></progress>
    <b>${count(one.holders.length)} of ${count(one.number)}</b></span>` },
  { name: "Waiting", number: true, size: "s", cell: (one) => count(one.waiting) },
  { name: "By", wide: true, cell: (one) => html`<span class="clip">${one.holders.slice(0, 4).map(({ task_id: id }) => html`<${TaskLink} key=${id} id=${id} /> `)}
    ${one.holders.length > 4 && `and ${one.holders.length - 4} more`}</span>` },
];
