// Short messages about what was done, or why it was not, at the bottom of the page.
import { store } from "./store.js";

export const messages = store([]);
let number = 0;

// Shows the result of an action in one line.
export function say(text, kind = "good") {
  const message = { id: ++number, text, kind };
  messages.set([...messages.get(), message]);
  setTimeout(() => messages.set(messages.get().filter((one) => one !== message)), 6000);
}
