// Calls of the HTTP interface: the key goes with each of them, and an answer that is none becomes a Problem.
import { store } from "./store.js";

const BASE = new URL("api/v1/", document.baseURI);
const KEY = "taskframework.key";

// Kept for this window alone, and until it is closed.
export const session = store({ key: sessionStorage.getItem(KEY), me: null, needsKey: false });
// Whether the last call was answered.
export const isReachable = store(true);

export class Problem extends Error {
  constructor(status, said = {}) {
    super(said.detail ?? `The API answered with ${status}.`);
    this.status = status;
    this.code = said.code ?? "";
    this.hint = said.hint ?? "";
    this.errors = said.errors ?? [];
  }

  get isAway() {
    return this.status === 0 || this.status === 503;
  }
}

const AWAY = { detail: "The API does not answer.", hint: "The page goes on by itself as soon as it does." };

export function url(path, query = {}) {
  const address = new URL(path.replace(/^\/+/, ""), BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") address.searchParams.set(name, value);
  }
  return address;
}

// For a part of an address that somebody else chose.
export const part = encodeURIComponent;

export function authorization() {
  const { key } = session.get();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// What was answered: {status, location, data}. An answer that breaks off in the middle is none.
async function request(path, { method = "GET", query, headers = {}, body, signal } = {}) {
  const given = { ...authorization(), ...headers };
  if (body !== undefined) given["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    answer = await fetch(url(path, query), {
      method, signal, headers: given, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
    });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    isReachable.set(false);
    throw new Problem(0, AWAY);
  }
  isReachable.set(true);
  if (!answer.ok) throw refusal(answer.status, text);
  return { status: answer.status, location: answer.headers.get("location"), data: text ? JSON.parse(text) : null };
}

export function refusal(status, text) {
  if (status === 401) session.set({ ...session.get(), me: null, needsKey: true });
  try {
    return new Problem(status, JSON.parse(text));
  } catch {
    return new Problem(status); // a proxy's own page, say
  }
}

export async function get(path, query, signal) {
  return (await request(path, { query, signal })).data;
}

export function post(path, body, { query, headers, method = "POST" } = {}) {
  return request(path, { method, query, headers, body });
}

// An idempotency key. crypto.randomUUID is only there where nobody can listen on the way: over TLS, or on this machine.
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// Why something is done, where the body of the request has no place for it: noted with who did it.
export const because = (reason) => (reason ? { "X-Reason": encodeURIComponent(reason) } : {});

// Who calls; asks for a key where one is needed.
export async function identify() {
  try {
    const me = await get("me");
    session.set({ ...session.get(), me, needsKey: false });
    return me;
  } catch (problem) {
    if (problem.status !== 401) throw problem;
    return null;
  }
}

export async function signIn(key) {
  session.set({ key, me: null, needsKey: true });
  const me = await identify();
  if (me) sessionStorage.setItem(KEY, key);
  return me;
}

export function signOut() {
  sessionStorage.removeItem(KEY);
  session.set({ key: null, me: null, needsKey: true });
}

const RANKS = ["reader", "submitter", "operator", "admin"];

// Whether the caller may do what a role may. What it may not do is not offered; the API refuses it all the same.
export function may(role) {
  const roles = session.get().me?.roles ?? [];
  return roles.some((own) => RANKS.indexOf(own) >= RANKS.indexOf(role));
}

export const isOperator = () => may("operator");
export const isAdmin = () => may("admin");
export const mayActForUsers = () => isOperator() || Boolean(session.get().me?.may_act_for_users);
