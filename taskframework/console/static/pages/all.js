// The page of each address.
import { html } from "../lib/dom.js";
import { isAdmin, isOperator } from "../lib/api.js";
import { Head } from "../parts/basics.js";
import { Audit } from "./audit.js";
import { Batch, Batches } from "./batches.js";
import { DeadLetters } from "./dead-letters.js";
import { Letter } from "./letter.js";
import { Events } from "./events.js";
import { Keys } from "./keys.js";
import { Limits } from "./limits.js";
import { Overview } from "./overview.js";
import { Queues } from "./queues.js";
import { Replay, Replays } from "./replays.js";
import { Schedule, Schedules } from "./schedules.js";
import { Streams } from "./streams.js";
import { Submit } from "./submit.js";
import { Task } from "./task.js";
import { Tasks } from "./tasks.js";
import { Worker, Workers } from "./workers.js";

// The page of a list, and the page of one entry. Only operators see the pages of operators.
const PAGES = {
  overview: [Overview], tasks: [Tasks, Task], batches: [Batches, Batch], streams: [Streams], submit: [Submit], events: [Events],
};
const OPERATORS = {
  "dead-letters": [DeadLetters, Letter], replays: [Replays, Replay], schedules: [Schedules, Schedule],
  queues: [Queues], workers: [Workers, Worker], limits: [Limits], audit: [Audit],
};

const ADMINS = { keys: [Keys] };

const allowed = (isAllowed, kinds) => kinds && (isAllowed ? kinds : [Forbidden, Forbidden]);

// The component of a page, and the name of the entry that it shows.
export function pageOf([place = "overview", ...names]) {
  const found = PAGES[place] ?? allowed(isOperator(), OPERATORS[place]) ?? allowed(isAdmin(), ADMINS[place]);
  const kind = found?.[names.length > 0 ? 1 : 0];
  return [kind ?? Missing, names.join("/")];
}

const Missing = () => html`<${Head} title="Page not found" /><p>The console has no page at this address.</p><p><a href="#/overview">Go to the overview</a></p>`;
const Forbidden = () => html`<${Head} title="No permission" /><p>Your key does not have the role for this page: operator, or admin for the keys.</p>`;
