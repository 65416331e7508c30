// A field of a form or of a question, and those that many of them have.
import { html } from "../lib/dom.js";

// `value` is what it begins with: what is typed stays while the page around changes. `options`, [[value, text]], makes it a choice. Of a box that is ticked the value is "on".
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

// A sub-task whose parent is over is refused unless the parent is to wait again.
export const REOPEN = { name: "reopen", label: "A parent that has ended waits for its sub-task again, and ends again", type: "checkbox" };
