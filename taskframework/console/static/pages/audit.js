// What operators did, when and why.
import { html } from "../lib/dom.js";
import { inline } from "../lib/format.js";
import { usePages } from "../lib/load.js";
import { Ago, Head, Waiting } from "../parts/basics.js";
import { Filters } from "../parts/filters.js";
import { Table } from "../parts/table.js";

export function Audit({ query }) {
  const list = usePages("admin/audit", { by: query.by, action: query.action }, { every: 5000 });
  return html`<${Head} title="Audit">Actions of operators, newest first.<//>
    <${Filters} label="Audit" query=${query} fields=${[{ name: "by", label: "Who" }, { name: "action", label: "What" }]} />
    <${Waiting} of=${list} />
    ${list.items && html`<${Table} label="Audit" rows=${list.items} idOf=${(one) => `${one.at} ${one.action} ${one.target}`} columns=${COLUMNS}
      more=${list.more} isDone=${list.isDone} empty="No entries." />`}`;
}

const COLUMNS = [
  { name: "What", cell: (one) => html`<b>${one.action}</b><small class="clip wide">${one.target ?? ""}</small>
    <small class="clip stand-in ${one.refusal ? "bad-text" : ""}">${one.by}: ${one.refusal ?? one.reason ?? one.target ?? inline(one.details)}</small>` },
  { name: "Who", wide: true, size: "m", cell: (one) => one.by },
  { name: "Why", wide: true, cell: (one) => html`<span class="clip" title=${one.reason}>${one.reason ?? ""}</span>
    ${one.refusal && html`<small class="clip bad-text" title=${one.refusal}>refused: ${one.refusal}</small>`}` },
  { name: "Details", wide: true, cell: (one) => Object.keys(one.details ?? {}).length > 0 && html`<code class="clip" title=${inline(one.details)}>${inline(one.details)}</code>` },
  { name: "When", number: true, size: "m", cell: (one) => html`<${Ago} time=${one.at} />` },
];
