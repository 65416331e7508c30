// Server-sent events by fetch, since EventSource cannot send a key. A broken stream is opened again where it was.
import { authorization, away, refusal, sayAway, session, url } from "./api.js";
import { useEffect, useRef } from "./dom.js";
import { parse } from "./json.js";
import { store } from "./store.js";

// The state of the page's stream: "none", "connecting", "live", "waiting" (to connect again).
export const connection = store("none");

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;
// Events that come together are handed over together, so that a page is drawn at most ten times a second.
const GATHER = 100;
// The API sends something at least every ten seconds. A stream that is silent for longer is dead, even if it looks open.
const LONGEST_SILENCE = 25_000;

// Follows a stream until the returned function is called.
// `tell` gets lists of {event, id, data}; `connected`, `reconnected` and `resync` among them mean that some may have been
// missed: what the page has read may be older than the stream.
export function follow(path, query, tell) {
  const abort = new AbortController();
  const queue = gathered(tell);
  run(url(path, query), queue, abort.signal).finally(() => {
    if (!abort.signal.aborted) connection.set("none");
  });
  return () => {
    abort.abort();
    queue.stop();
    connection.set("none");
  };
}

async function run(address, queue, signal) {
  let last = "";
  let pause = FIRST_PAUSE;
  let isFirst = true;
  connection.set("connecting");
  while (!signal.aborted) {
    try {
      const answer = await open(address, last, signal);
      if (answer === null) return; // the stream has ended, or this caller may not read it
      connection.set("live");
      if (away.get()?.isSilent) away.set(null);
      queue.add({ event: isFirst ? "connected" : "reconnected", id: "", data: null });
      isFirst = false;
      pause = FIRST_PAUSE;
      for await (const event of eventsOf(answer.body)) {
        if (event.id) last = event.id;
        queue.add(event);
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    if (signal.aborted) return;
    connection.set("waiting");
    await sleep(pause * (0.75 + Math.random() / 2), signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

async function open(address, last, signal) {
  const headers = { ...authorization(), Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  const opening = new AbortController();
  const timer = setTimeout(() => opening.abort(), LONGEST_SILENCE);
  const answer = await fetch(address, { headers, signal: AbortSignal.any([signal, opening.signal]), cache: "no-store" }).catch((error) => {
    if (!signal.aborted) sayAway();
    throw error;
  });
  clearTimeout(timer);
  if (answer.status === 204) return null;
  if (answer.ok) return answer;
  const problem = refusal(answer, await answer.text());
  if (answer.status < 500 && answer.status !== 429) return null;
  throw problem;
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), LONGEST_SILENCE);
    // Cleared also if the stream breaks off: to cancel a broken stream is an error that nobody would handle.
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      if (event) yield event;
    }
  }
}

export function parsed(block) {
  const event = { event: "message", id: "", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  if (!event.data) return null; // a comment, which only shows that the server lives
  return { ...event, data: parse(event.data) };
}

function gathered(tell) {
  let waiting = [];
  let timer = 0;
  return {
    add(event) {
      waiting.push(event);
      timer ||= setTimeout(() => {
        const events = waiting;
        waiting = [];
        timer = 0;
        tell(events);
      }, GATHER);
    },
    stop: () => clearTimeout(timer),
  };
}

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

// Follows while the component is shown and the window can be seen: browsers allow few connections to one server.
// A path of null follows nothing.
export function useStream(path, query, tell) {
  const latest = useRef(tell);
  latest.current = tell;
  useEffect(() => {
    if (path === null) return undefined;
    let stop = null;
    let wasHidden = false;
    const look = () => {
      if (document.visibilityState === "visible" && !stop) {
        stop = follow(path, query, (events) => latest.current(events));
        if (wasHidden) latest.current([{ event: "reconnected", id: "", data: null }]);
      } else if (document.visibilityState === "hidden" && stop) {
        stop();
        stop = null;
        wasHidden = true;
      }
    };
    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      stop?.();
    };
  }, [path, JSON.stringify(query), session.get().key]);
}
