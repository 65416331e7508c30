// Reads from the API while a component is shown. The page keeps the last data until newer data came.
import { get } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./dom.js";

const AGAIN = 2000;
const PAGE = 100;
// The most rows of one answer, and how many rows are read again while the user is far down a list.
const MOST = 500;
const REFRESHED = 2000;

// Calls `load(signal)` at once, on `reload()`, every `every` milliseconds, and again if the API could not answer.
// `every` may be a function of the data. `inputs` are the values that the request depends on.
// Returns {data, problem, reload, change}; `change(rule)` replaces the present data by `rule(data)`.
export function useLoad(load, inputs, { every = 0 } = {}) {
  const [state, setState] = useState({});
  const reload = useRef(() => {});
  useEffect(() => {
    const looking = looked(load, setState, every);
    reload.current = looking.now;
    return looking.stop;
  }, inputs);
  const change = useCallback((rule) => setState((old) => (old.data === undefined ? old : { ...old, data: rule(old.data) })), []);
  return { ...state, reload: useCallback(() => reload.current(), []), change };
}

function looked(load, setState, every) {
  const abort = new AbortController();
  let timer = 0;
  let usual = typeof every === "function" ? 0 : every;
  let isRunning = false;
  let isWanted = false;
  setState({});
  async function now() {
    clearTimeout(timer);
    isWanted = true;
    if (isRunning) return;
    isRunning = true;
    let pause = 0;
    while (isWanted && !abort.signal.aborted) {
      isWanted = false;
      try {
        const data = await load(abort.signal);
        pause = usual = typeof every === "function" ? every(data) : every;
        if (!abort.signal.aborted) setState({ data });
      } catch (problem) {
        if (abort.signal.aborted) return;
        if (problem.status === undefined) console.error(problem);
        pause = problem.isOver ? Math.max(AGAIN, problem.pause) : usual;
        setState((old) => ({ ...old, problem }));
      }
    }
    isRunning = false;
    if (pause && !abort.signal.aborted) timer = setTimeout(whenSeen, pause);
  }
  function whenSeen() {
    if (document.visibilityState === "visible") now();
  }
  document.addEventListener("visibilitychange", whenSeen);
  now();
  const stop = () => {
    abort.abort();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", whenSeen);
  };
  return { now, stop };
}

// A list that is read page by page. Returns {items, isDone, problem, more, reload}.
// `more()` reads the next page, and is another function once there is a next one. `reload()` reads the present rows
// again; if the list is too long for that, it reads the first page once the user is back at the top.
// `isEndless` is for the results of a stream: each page names the position of the next one, and the last is empty.
export function usePages(path, query, { limit = PAGE, every = 0, isEndless = false } = {}) {
  const inputs = [path, JSON.stringify(query)];
  const rows = useRef(limit);
  const shown = useRef(null);
  useEffect(() => {
    rows.current = limit;
    shown.current = null;
  }, inputs);
  const pageAt = async (cursor, size, signal) => {
    const page = await get(path, { ...query, limit: size, [isEndless ? "from_position" : "cursor"]: cursor }, signal);
    return isEndless && page.items.length === 0 ? { ...page, next_cursor: null } : page;
  };
  const list = useLoad(async (signal) => {
    if (rows.current > REFRESHED && isAtTop()) rows.current = limit;
    if (rows.current > REFRESHED && shown.current) return shown.current;
    let read = { items: [], cursor: undefined };
    // `rows` may grow meanwhile: a page that `more` reads now would be lost, and the list would jump.
    for (let asked = 0; asked < rows.current && read.cursor !== null;) {
      const size = Math.min(MOST, rows.current - asked);
      const page = await pageAt(read.cursor, size, signal);
      read = joined(read, page);
      // A short page of an endless list may be the last one before the empty one: otherwise `more` would read that one
      // after each look, and each time make the list longer.
      asked += isEndless ? page.items.length : size;
    }
    return read;
  }, inputs, { every });
  shown.current = list.data ?? null;

  const cursor = list.data?.cursor;
  const [attempt, setAttempt] = useState(0);
  const wanted = JSON.stringify([...inputs, cursor, attempt]);
  const reading = useRef("");
  const more = useCallback(async () => {
    if (!cursor || reading.current === wanted) return;
    reading.current = wanted;
    try {
      const page = await pageAt(cursor, limit);
      // By now this may be another list, or the same list may have been read again.
      list.change((old) => {
        if (old.cursor !== cursor) return old;
        rows.current += limit;
        return joined(old, page);
      });
    } catch (problem) {
      if (problem.isOver) setTimeout(() => setAttempt((n) => n + 1), Math.max(AGAIN, problem.pause));
    } finally {
      if (reading.current === wanted) reading.current = "";
    }
  }, [wanted]);

  return { items: list.data?.items, isDone: !cursor, problem: list.problem, more, reload: list.reload };
}

export const isAtTop = () => scrollY < 200;

// Appends a page to the pages before it. An entry that moved between two pages is kept only once.
function joined({ items }, page) {
  const known = new Set(items.map(idOf));
  return { items: [...items, ...page.items.filter((item) => !known.has(idOf(item)))], cursor: page.next_cursor };
}

// The identity of an entry of any list. An item of a batch has its index, because the items of a chunk have one task.
const NAMES = ["index", "task_id", "batch_id", "replay_id", "worker_id", "prefix", "id", "name", "fingerprint"];

function idOf(item) {
  const name = NAMES.find((one) => item[one] !== undefined && item[one] !== null);
  if (name) return item[name];
  return JSON.stringify(item.key ? [item.user_id, item.key] : item);
}

// A function that runs at once, then at most once in this many milliseconds, and always once after the last call.
export function useThrottled(run, milliseconds) {
  const state = useRef({ timer: 0, isWanted: false });
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return useCallback(() => {
    const it = state.current;
    if (it.timer) {
      it.isWanted = true;
      return;
    }
    latest.current();
    it.timer = setTimeout(function later() {
      it.timer = 0;
      if (!it.isWanted) return;
      it.isWanted = false;
      latest.current();
      it.timer = setTimeout(later, milliseconds);
    }, milliseconds);
  }, []);
}
