// Actions on all tasks that a filter finds: first count the tasks, then begin once, however often the button is pressed.
import { go } from "../lib/address.js";
import { get, newKey, part, post } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { say } from "../lib/messages.js";
import { isFinal, mayRetry } from "../lib/status.js";
import { Action } from "./basics.js";
import { ask } from "./dialog.js";
import { REASON, REOPEN } from "./field.js";

const LOOK = 300;
const LOOKS = 8;
const RATE = { name: "rate", label: "At most per second", type: "number", min: "0.001", max: "1000", step: "any", hint: "Empty: as fast as possible" };

// The conditions of actions on many in the API, by the names of the same conditions in the list.
const NAMES = {
  status: "status", task_type: "task_type", user_id: "user_id", stream: "stream", parent_task_id: "parent_task_id", fingerprint: "fingerprint", error: "text",
  waits_for_limit: "waits_for_limit", created_after: "created_after", created_before: "created_before", finished_after: "finished_after", finished_before: "finished_before",
};

// Retries or cancels all tasks of a list. Only with a filter, and only if actions on many support all its conditions.
export function BulkActions({ filter }) {
  const names = Object.keys(filter);
  if (names.length === 0 || names.some((name) => !NAMES[name])) return null;
  const chosen = Object.fromEntries(names.map((name) => [NAMES[name], filter[name]]));
  const { status } = filter;
  return html`
    ${(!status || mayRetry(status)) && html`<${Action} role="operator" onPress=${() => inBulk("retry", chosen)}>Retry all of these<//>`}
    ${(!status || !isFinal(status)) && html`<${Action} role="operator" danger onPress=${() => inBulk("cancel", chosen)}>Cancel all of these<//>`}`;
}

const SAID = {
  retry: ["Retry", "Failed tasks are queued again with all their attempts, and run from the beginning. Tasks that wait for a retry are tried now."],
  cancel: ["Cancel", "Waiting tasks end as cancelled at once. Running tasks are asked to stop."],
};

async function inBulk(verb, filter) {
  try {
    const { data } = await post(`tasks/${verb}`, { filter, dry_run: true });
    const [name, text] = SAID[verb];
    if (data.total === 0) return say(`None of these can be ${verb === "retry" ? "retried" : "cancelled"}.`, "bad");
    await askBulk({
      path: `tasks/${verb}`, filter, text, name, danger: verb === "cancel", mayReopen: verb === "retry",
      title: `${name} ${plural(data.total, "task")}${data.is_total_bounded ? " or more" : ""}?`,
    });
  } catch (problem) {
    say(problem.message, "bad");
  }
}

// Asks, then begins the action. With `needsReason` a reason is required.
export function askBulk({ path, filter, title, text, name, danger, hasRate = true, needsReason = false, mayReopen = false }) {
  const key = newKey();
  return ask({
    title,
    text: html`<p>${text}</p><p>All with ${Object.entries(filter).map(([field, value]) => html`<code key=${field}>${field} = ${value}</code> `)}</p>`,
    confirm: name,
    danger,
    fields: [...(hasRate ? [RATE] : []), { ...REASON, isRequired: needsReason }, ...(mayReopen ? [REOPEN] : [])],
    run: async ({ rate, reason, reopen }) => {
      const body = { filter, ...(rate ? { rate: Number(rate) } : {}), ...(reason ? { reason } : {}), ...(reopen ? { reopen: true } : {}) };
      await tell((await post(path, body, { headers: { "Idempotency-Key": key } })).data);
    },
  });
}

// The action runs in the background. If it ends soon, a message shows the result; otherwise its page opens.
async function tell({ replay_id: id }) {
  for (let looks = 0; looks < LOOKS; looks += 1) {
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    const one = await get(`admin/replays/${part(id)}`);
    if (one.status !== "RUNNING" && one.in_hand === 0) {
      const not = one.refused + one.failed;
      return say(`${count(one.done)} done${one.skipped ? `, ${count(one.skipped)} skipped because they began, ended or were changed before` : ""}${not ? `, ${count(not)} not: ${one.refusals.at(-1)?.problem ?? ""}` : ""}.`, not ? "bad" : "good");
    }
  }
  return go(["replays", id]);
}
