// A number in large type.
import { html } from "../lib/dom.js";

export function Tile({ name, value, kind = "", href }) {
  const content = html`<b>${value}</b><span>${name}</span>`;
  return html`<div class="tile ${kind}">${href ? html`<a href=${href}>${content}</a>` : content}</div>`;
}
