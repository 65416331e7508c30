// The pages of the console, and who may open them.
import { isAdmin, isOperator, may } from "./api.js";

export const WORK = [["overview", "Overview"], ["tasks", "Tasks"], ["batches", "Batches"], ["streams", "Streams"], ["events", "Events"]];
export const OPERATE = [
  ["dead-letters", "Dead letters"], ["replays", "Replays"], ["schedules", "Schedules"], ["queues", "Queues"],
  ["limits", "Limits"], ["workers", "Workers"], ["audit", "Audit"],
];
export const ADMINISTER = [["keys", "Keys"]];

export function mayOpen(place) {
  const isIn = (places) => places.some(([path]) => path === place);
  return isIn(WORK) || (place === "submit" && may("submitter")) || (isIn(OPERATE) && isOperator()) || (isIn(ADMINISTER) && isAdmin());
}
