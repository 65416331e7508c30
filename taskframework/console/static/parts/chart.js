// Small charts drawn as SVG: enough to see a change. Screen readers get the numbers as text.
import { html } from "../lib/dom.js";

const HEIGHT = 40;
const LEAST = 30; // room for at least this many values, so that few values do not look like a long time

// Lines over time, the newest at the right. series: [{name, values, kind}]; all on one scale from zero.
export function Lines({ label, series, format }) {
  const length = Math.max(LEAST, ...series.map(({ values }) => values.length));
  const most = Math.max(...series.flatMap(({ values }) => values), 0) || 1;
  const said = series.map(({ name, values }) => `${name} now ${format(values.at(-1) ?? 0)}, at the most ${format(Math.max(...values, 0))}`);
  return html`<svg class="chart" viewBox="0 0 ${length - 1} ${HEIGHT}" preserveAspectRatio="none" role="img"
    aria-label="${label}: ${said.join("; ")}">
    ${series.map(({ name, values, kind }) => {
      const points = values.map((value, index) => `${index + length - values.length},${height(value, most)}`);
      const first = length - values.length;
      return html`<g key=${name} class="line ${kind}">
        <polygon points="${first},${HEIGHT} ${points.join(" ")} ${length - 1},${HEIGHT}" />
        <polyline points=${points.join(" ")} />
      </g>`;
    })}
  </svg>`;
}

// Bars, one for each part of a period.
export function Bars({ label, values }) {
  const most = Math.max(...values, 0) || 1;
  return html`<svg class="bars" viewBox="0 0 ${values.length * 4} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${values.map((value, index) => {
      const top = value ? Math.min(height(value, most), HEIGHT - 3) : HEIGHT - 1;
      return html`<rect key=${index} class=${value ? "" : "none"} x=${index * 4} y=${top} width="3" height=${HEIGHT - top} />`;
    })}
  </svg>`;
}

const height = (value, most) => Math.round((HEIGHT - 2 - ((HEIGHT - 4) * value) / most) * 10) / 10;
