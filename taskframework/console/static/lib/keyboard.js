// Everything can be done from the keyboard: `/` to the filter, `j` and `k` through a list, `g` and a letter to a page.
import { go } from "./address.js";

export const PLACES = {
  o: ["overview"], t: ["tasks"], b: ["batches"], s: ["streams"], c: ["schedules"], d: ["dead-letters"],
  q: ["queues"], w: ["workers"], l: ["limits"], e: ["events"], n: ["submit"], r: ["replays"], a: ["audit"], y: ["keys"],
};
const CHORD = 1200;
let begunAt = 0;

export function listen(showHelp) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") document.activeElement?.blur?.();
    if (isTyping(event.target)) return;
    if (press(event.key, showHelp)) event.preventDefault();
  });
}

function press(key, showHelp) {
  if (Date.now() - begunAt < CHORD && PLACES[key]) {
    begunAt = 0;
    go(PLACES[key]);
    return true;
  }
  begunAt = key === "g" ? Date.now() : 0;
  if (key === "?") showHelp();
  else if (key === "/") focusOn(document.querySelector("[data-search]"));
  else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else return pressButton(key);
  return true;
}

function pressButton(key) {
  if (!/^[a-z.]$/i.test(key)) return false;
  const button = document.querySelector(`[data-hotkey="${key}"]:not([disabled])`);
  button?.click();
  return Boolean(button);
}

function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const now = rows.indexOf(document.activeElement?.closest("tr,li")?.querySelector("[data-row]"));
  focusOn(rows[now < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, now + by))]);
}

function focusOn(element) {
  element?.focus({ preventScroll: true });
  element?.scrollIntoView({ block: "nearest" });
  element?.select?.();
}

const isTyping = (element) => element.matches?.("input, select, textarea, [contenteditable]");

// The keys that press the buttons of the present page.
export function hotkeysHere() {
  return [...document.querySelectorAll("[data-hotkey]")].map((button) => [button.dataset.hotkey, button.textContent.trim()]);
}
