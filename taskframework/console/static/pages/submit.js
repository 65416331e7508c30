// Submits a task by hand; the initial parameters come from the schema of its type.
import { go, refine, to } from "../lib/address.js";
import { may, newKey, post } from "../lib/api.js";
import { html, useMemo, useRef, useState } from "../lib/dom.js";
import { say } from "../lib/messages.js";
import { Action, Head, Problem } from "../parts/basics.js";
import { Editor, sample } from "../parts/editor.js";
import { asTime, useTypes } from "../parts/filters.js";

export function Submit({ query }) {
  const types = useTypes();
  const type = types.find(({ task_type: name }) => name === query.task_type) ?? types[0];
  return html`<${Head} title="Submit a task" />
    ${!may("submitter") && html`<p class="note">Your key can read, but not submit. Ask an administrator for one that can.</p>`}
    ${types.length === 0 && html`<p class="quiet">No worker has declared a task type yet.</p>`}
    ${type && html`<label class="field"><span>Task type</span>
      <select data-search value=${type.task_type} onChange=${(event) => refine({ task_type: event.target.value })}>
        ${types.map(({ task_type: name }) => html`<option key=${name} value=${name} selected=${name === type.task_type}>${name}</option>`)}
      </select></label>
      <${Form} key=${type.task_type} type=${type} />`}`;
}

function Form({ type }) {
  const schema = type.parameters_schema;
  const first = useMemo(() => sample(schema), [schema]);
  const [parameters, setParameters] = useState(first);
  const [problem, setProblem] = useState(null);
  const form = useRef(null);
  // One key, so that a second press, or a repetition after a lost answer, makes no second task.
  const key = useRef(newKey());
  const submit = async () => {
    const { priority, after } = Object.fromEntries(new FormData(form.current));
    const body = { task_type: type.task_type, parameters, priority, ...(asTime(after) ? { not_before: asTime(after) } : {}) };
    try {
      const { data } = await post("tasks", body, { headers: { "Idempotency-Key": key.current } });
      say("Accepted.");
      go(["tasks", data.task_id]);
    } catch (refused) {
      setProblem(refused);
      // If it is not known whether the request arrived, the same key returns the same task.
      if (!refused.isOver) key.current = newKey();
    }
  };
  return html`<form ref=${form} class="stack" onSubmit=${(event) => (event.preventDefault(), submit())}>
    <${Editor} value=${first} tell=${setParameters} errors=${problem?.errors} schema=${schema} />
    <div class="filters">
      <label><span>Lane</span><select name="priority">
        ${["high", "normal", "low"].map((lane) => html`<option key=${lane} selected=${lane === type.priority}>${lane}</option>`)}
      </select></label>
      <label><span>Not before</span><input type="datetime-local" name="after" /></label>
    </div>
    <${Problem} problem=${problem} isBrief />
    <div class="actions"><${Action} class="main" hotkey="s" disabled=${parameters === undefined} onPress=${submit}>Submit<//>
      <a class="button" href=${to(["tasks"], { task_type: type.task_type })}>Its tasks</a></div>
  </form>`;
}
