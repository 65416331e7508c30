// The filters above a list. They are in the address, so that the view can be bookmarked and sent to others.
import { refine } from "../lib/address.js";
import { get } from "../lib/api.js";
import { html, useEffect, useRef } from "../lib/dom.js";
import { useLoad } from "../lib/load.js";

const PAUSE = 300;

// fields: {name, label, options: [[value, text]] | undefined, type, isRare: folded away}; `/` leads to the first text field.
export function Filters({ label, fields, query, children }) {
  const search = fields.find((field) => !field.options);
  const isFiltered = fields.some(({ name }) => query[name]);
  const rare = fields.filter((field) => field.isRare);
  const shown = (some) => some.map((field) => html`<${Filter} key=${field.name} ...${field} value=${query[field.name] ?? ""} isSearch=${field === search} />`);
  return html`<form class="filters" role="search" aria-label=${label} onSubmit=${(event) => event.preventDefault()}>
    ${shown(fields.filter(({ isRare }) => !isRare))}
    ${rare.length > 0 && html`<details open=${rare.some(({ name }) => query[name])}><summary>More filters</summary><div class="filters">${shown(rare)}</div></details>`}
    ${isFiltered && html`<button type="button" onClick=${() => refine(Object.fromEntries(fields.map(({ name }) => [name, ""])))}>Clear</button>`}
    ${children}
  </form>`;
}

function Filter({ name, label, options, type = "search", value, isSearch }) {
  const timer = useRef(0);
  const input = useRef(null);
  useEffect(() => {
    // Take over values that changed elsewhere, such as by a step back; not while the user types.
    if (input.current && document.activeElement !== input.current) input.current.value = value;
  }, [value]);
  // What was typed last belongs to this page, not to the next one.
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (event) => {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => refine({ [name]: text.trim() }), options ? 0 : PAUSE);
  };
  return html`<label><span>${label}</span>
    ${options
      ? html`<select name=${name} value=${value} onChange=${change}>
          <option value="">all</option>
          ${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}
        </select>`
      : html`<input ref=${input} name=${name} type=${type} defaultValue=${value} data-search=${isSearch || undefined}
          autocomplete="off" spellcheck=${false} onInput=${change} />`}
  </label>`;
}

// The known task types, as options of a filter.
export function useTypes() {
  const types = useLoad(async (signal) => (await get("task-types", {}, signal)).items, []);
  return types.data ?? [];
}

export const asOptions = (types) => types.map(({ task_type: type }) => [type, type]);

// The value of a local-time input in the form that the API accepts.
export const asTime = (local) => {
  const time = local ? new Date(local) : null;
  return time && !Number.isNaN(time.getTime()) ? time.toISOString() : "";
};
