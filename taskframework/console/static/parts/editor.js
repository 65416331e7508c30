// Parameters as JSON that can be changed. If the text is not JSON, an error beside it says so before anything is sent.
import { html, useLayoutEffect, useState } from "../lib/dom.js";
import { asJson } from "../lib/format.js";
import { parse, refuseRounded } from "../lib/json.js";

// `value` is what is stored, and is shown until the user types; what was typed stays when the stored value changes.
// `tell(value)` gets the value of the text that is shown, so that this is what is sent; undefined while it is not JSON.
export function Editor({ id = "parameters", label = "Parameters", value, tell, errors = [], schema }) {
  const stored = asJson(value);
  const [typed, setTyped] = useState(null);
  const text = typed?.text ?? stored;
  const [read, wrong] = typed ? meant(text) : [value, ""];
  useLayoutEffect(() => tell(read), [text]);
  const change = (event) => setTyped({ text: event.target.value, over: typed?.over ?? stored });
  const problems = [wrong, ...errors.map(({ field, message }) => `${field}: ${message}`)].filter(Boolean);
  const said = typed && typed.over !== stored ? [CHANGED, ...problems] : problems;
  return html`<div class="editor">
    <label for=${id}>${label}</label>
    <textarea id=${id} rows=${Math.min(16, Math.max(4, text.split("\n").length + 1))} spellcheck=${false}
      aria-invalid=${problems.length > 0} aria-describedby="${id}-said" value=${text} onInput=${change}></textarea>
    <div id="${id}-said" class="said" aria-live="polite">${said.map((line) => html`<p key=${line}>${line}</p>`)}</div>
    ${schema && html`<details><summary>Accepted parameters</summary><pre class="json">${asJson(schema)}</pre></details>`}
  </div>`;
}

const CHANGED = "The stored parameters have changed meanwhile. Reload the page to see them.";

function meant(text) {
  try {
    const value = parse(text, { isExact: true });
    refuseRounded(value);
    return [value, ""];
  } catch (error) {
    return [undefined, error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message];
  }
}

// Initial parameters: the fields that a JSON Schema requires, each with a value of its type.
export function sample(schema, root = schema, depth = 0) {
  if (!schema || depth > 5) return null;
  if (schema.$ref) return sample(resolved(schema.$ref, root), root, depth + 1);
  if (schema.default !== undefined) return schema.default;
  if (schema.examples?.length) return schema.examples[0];
  if (schema.enum) return schema.enum[0];
  if (schema.const !== undefined) return schema.const;
  const one = (schema.anyOf ?? schema.oneOf ?? schema.allOf)?.[0];
  if (one) return sample(one, root, depth + 1);
  const kinds = { string: "", integer: schema.minimum ?? 0, number: schema.minimum ?? 0, boolean: false, array: [] };
  if (schema.type in kinds) return kinds[schema.type];
  if (!schema.properties) return schema.type === "object" ? {} : null;
  return Object.fromEntries(Object.entries(schema.properties).map(([name, value]) => [name, sample(value, root, depth + 1)]));
}

function resolved(reference, root) {
  return reference.replace(/^#\//, "").split("/").reduce((at, name) => at?.[name], root);
}
