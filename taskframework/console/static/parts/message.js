// A message that no worker could read: its bytes, and the form that makes a task from it.
import { go } from "../lib/address.js";
import { part, post } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { parse } from "../lib/json.js";
import { say } from "../lib/messages.js";
import { Action, Facts, Problem, Section } from "./basics.js";
import { Editor, sample } from "./editor.js";
import { useTypes } from "./filters.js";

// A message is repaired once: a second repair returns the same task.
export function Repair({ letter }) {
  const types = useTypes();
  const [name, setName] = useState("");
  const type = types.find((one) => one.task_type === name);
  return html`<${Section} title="Make a task from it">
    <label class="field"><span>Task type</span><select value=${name} onChange=${(event) => setName(event.target.value)}>
      <option value="">choose a task type</option>
      ${types.map((one) => html`<option key=${one.task_type} value=${one.task_type}>${one.task_type}</option>`)}
    </select></label>
    ${type && html`<${RepairForm} key=${name} letter=${letter} type=${type} />`}
  <//>`;
}

function RepairForm({ letter, type }) {
  const [first] = useState(() => asParameters(letter.body_text) ?? sample(type.parameters_schema));
  const [parameters, setParameters] = useState(first);
  const [said, setSaid] = useState({});
  const send = async (isDry) => {
    try {
      const { data } = await post(`admin/dead-letters/${part(letter.id)}/repair`, { task_type: type.task_type, parameters, dry_run: isDry });
      if (isDry) return setSaid({ isFine: true });
      say("It is now a task.");
      return go(["tasks", data.task_id]);
    } catch (problem) {
      return setSaid({ problem });
    }
  };
  return html`<div class="stack">
    <${Editor} value=${first} tell=${setParameters} errors=${said.problem?.errors} schema=${type.parameters_schema} />
    <${Problem} problem=${said.problem} isBrief />
    ${said.isFine && html`<p class="note good" role="status"><b>It would be accepted.</b> Nothing has been changed yet.</p>`}
    <div class="actions">
      <${Action} role="operator" hotkey="d" disabled=${parameters === undefined} onPress=${() => send(true)}>Dry run<//>
      <${Action} role="operator" class="main" hotkey="r" disabled=${parameters === undefined} onPress=${() => send(false)}>Submit it<//>
    </div>
  </div>`;
}

// The text of the message, if it is JSON: often only one field is wrong.
function asParameters(text) {
  try {
    const value = parse(text, { isExact: true });
    return value?.parameters ?? value;
  } catch {
    return undefined;
  }
}

export const Message = ({ letter }) => html`
  <${Section} title="Message">
    ${letter.body_text && html`<h3>As text</h3><pre class="json" tabindex="0" role="region" aria-label="Message as text">${letter.body_text}</pre>`}
    <h3>As bytes</h3><pre class="json" tabindex="0" role="region" aria-label="Message as bytes">${dump(letter.body_base64 ?? "")}</pre>
    ${Object.keys(letter.headers ?? {}).length > 0 && html`<h3>Headers</h3><${Facts} rows=${Object.entries(letter.headers)} />`}
  <//>`;

const WIDTH = 16;
const MOST = 4096;

// Bytes as hexadecimal digits beside their text, sixteen on a line; only the first if there are many.
export function dump(base64) {
  const bytes = [...atob(base64)].slice(0, MOST).map((one) => one.charCodeAt(0));
  const lines = [];
  for (let start = 0; start < bytes.length; start += WIDTH) {
    const line = bytes.slice(start, start + WIDTH);
    const shown = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(WIDTH * 3);
    const text = line.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${shown} ${text}`);
  }
  return lines.join("\n");
}
