// Calls of the HTTP interface: each sends the key, and an answer that is not a success becomes a Problem.
import { parse, refuseRounded } from "./json.js";
import { store } from "./store.js";

const BASE = new URL("api/v1/", document.baseURI);
const KEY = "taskframework.key";

// Kept only in this window, until it is closed.
export const session = store({ key: sessionStorage.getItem(KEY), me: null, needsKey: false });
// The server that is away, {title, isSilent}: the API, which does not answer, or a server that it needs. Null: none is.
export const away = store(null);
// How long an answer may take. For a read this is longer than the API itself waits for its store.
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

  // Whether the request cannot be served now. Proxies between the page and the API use 502 and 504.
  get isAway() {
    return [0, 502, 503, 504].includes(this.status);
  }

  // Whether repeating the same request may succeed.
  get isOver() {
    return this.isAway || this.status === 429;
  }
}

// For an answer of another program, such as the error page of a proxy.
const NO_REASON = { hint: "The answer gives no reason. The logs of the API, or of a proxy before it, may say more." };
const AWAY = { detail: "The API does not answer.", hint: "The page continues when the API answers again." };

export function url(path, query = {}) {
  const address = new URL(path.replace(/^\/+/, ""), BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") address.searchParams.set(name, value);
  }
  return address;
}

// For a part of an address whose text another user chose.
export const part = encodeURIComponent;

export function authorization() {
  const { key } = session.get();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// The answer: {status, location, data}. An answer that breaks off in the middle counts as no answer.
async function request(path, { method = "GET", query, headers = {}, body, signal, isExact } = {}) {
  refuseRounded(body);
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
    sayAway();
    throw new Problem(0, AWAY);
  }
  if (!answer.ok) throw refused(answer, text);
  // The caller is known even while the store is away.
  if (path !== "me" || away.get()?.isSilent) away.set(null);
  return { status: answer.status, location: answer.headers.get("location"), data: text ? parse(text, { isExact }) : null };
}

export const sayAway = () => away.set({ title: AWAY.detail, isSilent: true });

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
    return new Problem(status, NO_REASON, seconds);
  }
}

// With `isExact` for an answer that contains values to edit: see `parse`.
export async function get(path, query, signal, isExact = false) {
  return (await request(path, { query, signal, isExact })).data;
}

export function post(path, body, { query, headers, method = "POST" } = {}) {
  return request(path, { method, query, headers, body });
}

// An idempotency key. crypto.randomUUID exists only on secure pages: over TLS, or on this machine.
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// The reason of an action, if the body of the request has no field for it; it goes into the audit log.
export const because = (reason) => (reason ? { "X-Reason": encodeURIComponent(reason) } : {});

// Reads who the caller is; asks for a key if one is needed.
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

// The characters that a header may contain; a text with others is not a key.
const KEY_FORM = /^[\x21-\x7e]+$/;

export async function signIn(key) {
  if (!KEY_FORM.test(key)) return null;
  session.set({ key, me: null, needsKey: true });
  const me = await identify();
  if (me) sessionStorage.setItem(KEY, key);
  return me;
}

// Signs in with a key that the API just made. It is kept before the caller is known: if that read fails, it is repeated,
// and the page goes on.
export function adopt(key) {
  sessionStorage.setItem(KEY, key);
  session.set({ key, me: null, needsKey: false });
}

export function signOut() {
  sessionStorage.removeItem(KEY);
  session.set({ key: null, me: null, needsKey: true });
}

const RANKS = ["reader", "submitter", "operator", "admin"];

// Whether the caller has the rights of a role. Actions without the right are not offered; the API refuses them anyway.
export function may(role) {
  const roles = session.get().me?.roles ?? [];
  return roles.some((own) => RANKS.indexOf(own) >= RANKS.indexOf(role));
}

export const isOperator = () => may("operator");
export const isAdmin = () => may("admin");
export const mayActForUsers = () => isOperator() || Boolean(session.get().me?.may_act_for_users);
