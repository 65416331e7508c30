// Parameters as JSON that can be changed. If the text is not JSON, an error beside it says so before anything is sent.
import { html, useEffect, useState } from "../lib/dom.js";
import { asJson } from "../lib/format.js";
import { parse } from "../lib/json.js";

// `tell(value)` gets the value of the text; undefined while the text is not JSON.
export function Editor({ id = "parameters", label = "Parameters", value, tell, errors = [], schema }) {
  const [text, setText] = useState(asJson(value));
  const [wrong, setWrong] = useState("");
  useEffect(() => setText(asJson(value)), [asJson(value)]);
  const change = (event) => {
    setText(event.target.value);
    const [read, problem] = meant(event.target.value);
    setWrong(problem);
    tell(read);
  };
  const said = [wrong, ...errors.map(({ field, message }) => `${field}: ${message}`)].filter(Boolean);
  return html`<div class="editor">
    <label for=${id}>${label}</label>
    <textarea id=${id} rows=${Math.min(16, Math.max(4, text.split("\n").length + 1))} spellcheck=${false}
      aria-invalid=${said.length > 0} aria-describedby="${id}-said" value=${text} onInput=${change}></textarea>
    <div id="${id}-said" class="said" aria-live="polite">${said.map((line) => html`<p key=${line}>${line}</p>`)}</div>
    ${schema && html`<details><summary>Accepted parameters</summary><pre class="json">${asJson(schema)}</pre></details>`}
  </div>`;
}

function meant(text) {
  try {
    return [parse(text, { isExact: true }), ""];
  } catch (error) {
    return [undefined, `This is not JSON: ${error.message}`];
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
