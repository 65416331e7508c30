// Calls of the HTTP interface: the key goes with each of them, and an answer that is none becomes a Problem.
import { parse } from "./json.js";
import { store } from "./store.js";

const BASE = new URL("api/v1/", document.baseURI);
const KEY = "taskframework.key";

// Kept for this window alone, and until it is closed.
export const session = store({ key: sessionStorage.getItem(KEY), me: null, needsKey: false });
// What is away, {title, isSilent}: the API, which does not answer, or something that it needs. Null: nothing is.
export const away = store(null);
// How long an answer may take: of a look longer than the API itself waits for its store.
const LONGEST_LOOK = 15_000;
const LONGEST_CALL = 60_000;

export class Problem extends Error {
  constructor(status, said = {}, seconds = 0) {
    super(said.detail ?? `The API answered with ${status}.`);
    this.status = status;
    this.code = said.code ?? "";
    this.hint = said.hint ?? "";
    this.errors = said.errors ?? [];
    // When to ask again, in milliseconds, if the answer says so.
    this.pause = 1000 * seconds;
  }

  // Whether nobody could do it now. What is between the page and the API tells so by the other two.
  get isAway() {
    return [0, 502, 503, 504].includes(this.status);
  }

  // Whether the same request is done when it is asked for again.
  get isOver() {
    return this.isAway || this.status === 429;
  }
}

const AWAY = { detail: "The API does not answer.", hint: "The page continues when the API answers again." };

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
  const silence = AbortSignal.timeout(method === "GET" ? LONGEST_LOOK : LONGEST_CALL);
  let answer;
  let text;
  try {
    answer = await fetch(url(path, query), {
      method, headers: given, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, silence]) : silence,
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    away.set({ title: AWAY.detail, isSilent: true });
    throw new Problem(0, AWAY);
  }
  if (!answer.ok) throw refused(answer, text);
  // Who calls is known also while the store is away.
  if (path !== "me" || away.get()?.isSilent) away.set(null);
  return { status: answer.status, location: answer.headers.get("location"), data: text ? parse(text) : null };
}

function refused(answer, text) {
  const problem = refusal(answer, text);
  if (problem.isAway) away.set({ title: problem.message, isSilent: false });
  else away.set(null);
  return problem;
}

export function refusal({ status, headers }, text) {
  if (status === 401) session.set({ ...session.get(), me: null, needsKey: true });
  const seconds = Number(headers.get("retry-after")) || 0;
  try {
    return new Problem(status, parse(text), seconds);
  } catch {
    return new Problem(status, {}, seconds); // a proxy's own page, say
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

// What can stand in a header; nothing else is a key.
const KEY_FORM = /^[\x21-\x7e]+$/;

export async function signIn(key) {
  if (!KEY_FORM.test(key)) return null;
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
