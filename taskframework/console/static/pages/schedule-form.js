// The form for a new schedule, and for a new definition of an existing one.
import { go, to } from "../lib/address.js";
import { because, part, post } from "../lib/api.js";
import { html, useMemo, useRef, useState } from "../lib/dom.js";
import { asJson } from "../lib/format.js";
import { say } from "../lib/messages.js";
import { Action, Head, Problem } from "../parts/basics.js";
import { Editor, sample } from "../parts/editor.js";
import { Field, REASON } from "../parts/field.js";
import { useTypes } from "../parts/filters.js";

export const MISSED = [["once", "run the last one"], ["skip", "run none"], ["all", "run all of them"]];
export const OVERLAP = [["allow", "run too"], ["skip", "skip this run"], ["cancel_previous", "cancel the last one"]];

export function ScheduleForm({ schedule }) {
  const types = useTypes();
  const [name, setName] = useState(schedule?.task_type);
  const type = types.find((one) => one.task_type === (name ?? types[0].task_type)) ?? (schedule && { task_type: schedule.task_type });
  return html`<${Head} title=${schedule ? `Edit ${schedule.name}` : "New schedule"} />
    ${type ? html`<${Form} type=${type} names=${namesOf(types, schedule)} choose=${setName} schedule=${schedule} />`
      : html`<p class="quiet">No worker has declared a task type yet.</p>`}`;
}

// A type that no worker runs any more stays selected until the user chooses another.
const namesOf = (types, schedule) => [...new Set([...(schedule ? [schedule.task_type] : []), ...types.map((type) => type.task_type)])];

function Form({ type, names, choose, schedule }) {
  const isOwn = schedule?.task_type === type.task_type;
  const first = useMemo(() => (isOwn ? schedule.parameters : sample(type.parameters_schema)), [type, isOwn && asJson(schedule.parameters)]);
  const [parameters, setParameters] = useState(first);
  const [problem, setProblem] = useState(null);
  const form = useRef(null);
  const save = async () => {
    try {
      await send(schedule, { ...Object.fromEntries(new FormData(form.current)), parameters });
    } catch (refused) {
      setProblem(refused);
    }
  };
  const leave = schedule ? to(["schedules", schedule.name]) : to(["schedules"]);
  return html`<form ref=${form} class="stack" onSubmit=${(event) => (event.preventDefault(), save())}>
    <div class="columns">
      <div>
        ${!schedule && html`<${Field} name="name" label="Name" hint="a-z, 0-9, dot, dash and underscore" />`}
        <${Field} name="task_type" label="Task type" options=${names.map((one) => [one, one])} value=${type.task_type} onChange=${(event) => choose(event.target.value)} />
        <${Field} name="cron" label="Cron" value=${schedule?.cron ?? ""} hint="Minute, hour, day of month, month, day of week: 30 2 * * MON-FRI" />
        <${Field} name="timezone" label="Time zone" value=${schedule?.timezone ?? "UTC"} hint="Such as Europe/Berlin" />
        <${Field} name="every" label="Or every" value=${schedule?.every ?? ""} hint="An interval instead of cron: 15m, 8h" />
      </div>
      <div>
        <${Field} name="missed" label="Missed runs" options=${MISSED} value=${schedule?.missed} />
        <${Field} name="overlap" label="If the last run has not ended" options=${OVERLAP} value=${schedule?.overlap} />
        <${Field} name="jitter" label="Random delay up to" value=${schedule?.jitter ?? "0s"} hint="So that not all schedules run at the same moment: 30s" />
        <${Field} name="user_id" label="Owner of its tasks" value=${schedule?.user_id ?? "scheduler"} />
        <${Field} ...${REASON} />
      </div>
    </div>
    <${Editor} key=${type.task_type} value=${first} tell=${setParameters} errors=${ofParameters(problem)} schema=${type.parameters_schema} />
    <${Problem} problem=${problem} />
    <div class="actions"><${Action} role="operator" class="main" hotkey="s" disabled=${parameters === undefined} onPress=${save}>Save<//>
      <a class="button" href=${leave}>${schedule ? "Leave it as it is" : "No, go back"}</a></div>
  </form>`;
}

const ofParameters = (problem) => (problem?.errors ?? []).filter(({ field }) => field.startsWith("parameters"));

// Empty fields are left out. The definition is replaced as a whole, so all of it is sent.
async function send(schedule, { reason, ...fields }) {
  const definition = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== ""));
  const [path, method] = schedule ? [`admin/schedules/${part(schedule.name)}`, "PUT"] : ["admin/schedules", "POST"];
  const { data } = await post(path, definition, { method, headers: because(reason) });
  say(schedule ? "Changed." : "Made.");
  go(["schedules", data.name]);
}
