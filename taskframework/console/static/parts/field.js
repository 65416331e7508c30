// A field of a form or a dialog, and the fields that several of them share.
import { html } from "../lib/dom.js";

// `value` is the initial value: typed text stays while the page around it changes. `options`, [[value, text]], makes the field a choice. A ticked box has the value "on".
export function Field({ name, label, value = "", type = "text", options, isRequired, hint, ...rest }) {
  if (type === "checkbox") return html`<label class="check"><input name=${name} type=${type} /> <span>${label}</span></label>`;
  return html`<label class="field"><span>${label}</span>
    ${options
      ? html`<select name=${name} ...${rest}>${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}</select>`
      : html`<input name=${name} type=${type} defaultValue=${value} required=${isRequired} autocomplete="off" ...${rest} />`}
    ${hint && html`<small>${hint}</small>`}
  </label>`;
}

export const REASON = { name: "reason", label: "Reason", hint: "Kept in the audit log", maxlength: 500 };

// A sub-task whose parent has ended is refused, unless the parent waits again.
export const REOPEN = { name: "reopen", label: "A parent that has ended waits for its sub-task again, and ends again", type: "checkbox" };
