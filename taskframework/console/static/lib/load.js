// Reading from the API while a component is shown: what is there stays on the page until something newer came.
import { get } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./dom.js";

const AGAIN = 2000;

// Calls `load(signal)` at once, on `reload()`, each `every` milliseconds, and again where the API was away.
// `inputs` tell what it depends on. Returns {data, problem, reload}.
export function useLoad(load, inputs, { every = 0 } = {}) {
  const [state, setState] = useState({});
  const reload = useRef(() => {});
  useEffect(() => {
    const looking = looked(load, setState, every);
    reload.current = looking.now;
    return looking.stop;
  }, inputs);
  return { ...state, reload: useCallback(() => reload.current(), []) };
}

function looked(load, setState, every) {
  const abort = new AbortController();
  let timer = 0;
  let isRunning = false;
  let isWanted = false;
  setState({});
  async function now() {
    clearTimeout(timer);
    isWanted = true;
    if (isRunning) return;
    isRunning = true;
    let pause = every;
    while (isWanted && !abort.signal.aborted) {
      isWanted = false;
      try {
        const data = await load(abort.signal);
        if (!abort.signal.aborted) setState({ data });
      } catch (problem) {
        if (abort.signal.aborted) return;
        if (problem.status === undefined) console.error(problem);
        if (problem.isAway) pause = AGAIN;
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

// A list that is read page by page. Returns {items, isDone, isLong, problem, more, reload}.
// `more()` reads the next page, and is another function once there is a next one; `reload()` reads the first page anew.
export function usePages(path, query, { limit = 100, every = 0 } = {}) {
  const [rest, setRest] = useState({ items: [], cursor: undefined });
  const inputs = [path, JSON.stringify(query)];
  const first = useLoad((signal) => get(path, { ...query, limit }, signal), inputs, { every });
  // What `more` reads now. If it is something else when the answer comes, the list is another one by then.
  const reading = useRef("");
  useEffect(() => {
    reading.current = "";
    setRest({ items: [], cursor: undefined });
  }, inputs);
  const cursor = rest.cursor === undefined ? first.data?.next_cursor : rest.cursor;
  const wanted = JSON.stringify([...inputs, cursor]);

  const more = useCallback(async () => {
    if (!cursor || reading.current === wanted) return;
    reading.current = wanted;
    try {
      const page = await get(path, { ...query, limit, cursor });
      if (reading.current === wanted) setRest((old) => ({ items: [...old.items, ...page.items], cursor: page.next_cursor }));
    } finally {
      if (reading.current === wanted) reading.current = "";
    }
  }, [wanted]);

  return {
    items: first.data ? joined(first.data.items, rest.items) : undefined,
    isDone: !cursor,
    isLong: rest.items.length > 0,
    problem: first.problem,
    more,
    reload: first.reload,
  };
}

// The first page may have been read after those behind it: what moved from one to the other is shown once.
function joined(first, rest) {
  if (!rest.length) return first;
  // An item of a batch by its index: the items of a chunk are of one task.
  const idOf = (item) => item.index ?? item.task_id ?? item.batch_id ?? item.id ?? item.name;
  const known = new Set(first.map(idOf));
  return [...first, ...rest.filter((item) => !known.has(idOf(item)))];
}

// A function that runs at once and then at the most every so many milliseconds, and always once after the last call.
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
