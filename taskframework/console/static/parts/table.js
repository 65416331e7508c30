// A list as a table. The page contains only the rows near the window, so a million tasks scroll like ten.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/dom.js";

const ROW = 52; // pixels; the same as `--row` of the style
const AROUND = 25;
const SHORT = 100;
const FIRST = 2 * AROUND; // rows, until the position of the window is known

// columns: {name, cell(row), wide: only where there is room ("widest": much of it), narrow: only where there is none for those, number: aligned right, size: "s" | "m" | "l" | "act" (a button)}.
// `href(row)` makes the first column a link, if it has one, which `j`, `k` and `Enter` use.
export function Table({ label, columns, rows, idOf, href, more, isDone = true, empty = "Nothing here." }) {
  const body = useRef(null);
  const [from, to] = useVisible(body, rows.length);
  // Also after a page without rows: a searched list may have more rows after it.
  useEffect(() => {
    if (!isDone && to >= rows.length - AROUND) more?.();
  }, [to, rows.length, isDone, more]);
  const isShown = rows.length > 0;
  useEffect(() => {
    if (isShown && href) backToRow(body.current);
  }, [isShown]);
  if (rows.length === 0 && isDone) return html`<p class="empty">${empty}</p>`;
  return html`<table aria-label=${label} aria-rowcount=${isDone ? rows.length + 1 : -1}>
    <thead><tr aria-rowindex="1">
      ${columns.map((column) => html`<${column.name ? "th" : "td"} key=${column.name} scope=${column.name && "col"} class=${classOf(column)}>${column.name}<//>`)}
    </tr></thead>
    <tbody ref=${body}>
      <${Gap} rows=${from} />
      ${rows.slice(from, to).map((row, index) => html`<${Row} key=${idOf(row)} row=${row} number=${from + index + 2}
        columns=${columns} href=${href} />`)}
      <${Gap} rows=${rows.length - to} />
    </tbody>
  </table>`;
}

function Row({ row, number, columns, href }) {
  return html`<tr aria-rowindex=${number}>
    ${columns.map((column, index) => html`<td key=${column.name} class=${classOf(column)}>
      ${index === 0 && href?.(row) ? html`<a class="row" data-row href=${href(row)} onClick=${leave}>${column.cell(row)}</a>` : column.cell(row)}
    </td>`)}
  </tr>`;
}

// Going back leads to the row that was opened: the entry in the history of the browser keeps it.
const leave = ({ currentTarget: link }) => history.replaceState({ row: link.getAttribute("href") }, "");

function backToRow(body) {
  const wanted = history.state?.row;
  if (!wanted || !document.activeElement?.matches("body, h1")) return;
  [...body.querySelectorAll("[data-row]")].find((link) => link.getAttribute("href") === wanted)?.focus();
}

// The height is set by script, because the page's policy refuses style attributes.
function Gap({ rows }) {
  const cell = useRef(null);
  useLayoutEffect(() => {
    if (cell.current) cell.current.style.height = `${rows * ROW}px`;
  }, [rows]);
  return rows > 0 ? html`<tr aria-hidden="true"><td class="gap" ref=${cell}></td></tr>` : null;
}

function useVisible(body, length) {
  const [range, setRange] = useState([0, FIRST]);
  useLayoutEffect(() => {
    const measure = () => {
      if (!body.current) return;
      const top = body.current.getBoundingClientRect().top;
      const from = length > SHORT ? Math.max(0, Math.floor(-top / ROW) - AROUND) : 0;
      const to = Math.ceil((innerHeight - top) / ROW) + AROUND;
      setRange((old) => (old[0] === from && old[1] === to ? old : [from, to]));
    };
    measure();
    addEventListener("scroll", measure, { passive: true });
    addEventListener("resize", measure);
    return () => {
      removeEventListener("scroll", measure);
      removeEventListener("resize", measure);
    };
  }, [length]);
  return [Math.min(range[0], length), Math.min(Math.max(range[1], 0), length)];
}

const classOf = ({ wide, narrow, number, size }) => [wide && "wide", wide === "widest" && "widest", narrow && "narrow", number && "number", size].filter(Boolean).join(" ");
