// The address says what is shown: `#/tasks?status=FAILED`. So a view can be bookmarked, sent, and returned to.
import { store, useStore } from "./store.js";

export const address = store(read());
addEventListener("hashchange", () => address.set(read()));

function read() {
  const [path, search = ""] = location.hash.slice(1).split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(search)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const useAddress = () => useStore(address);

// A link within the console; `parts` are encoded, empty values of the query left out.
export function to(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export function go(parts, query) {
  location.hash = to(parts, query);
}

// Changes what the list shows. Replaces the entry in the history, so that not every typed letter becomes a step back.
export function refine(changes) {
  const { parts, query } = read();
  history.replaceState(null, "", to(parts, { ...query, ...changes }));
  address.set(read());
}
