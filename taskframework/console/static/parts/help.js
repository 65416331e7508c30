// The list of keys: of this page, and of all pages.
import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { PLACES, hotkeysHere } from "../lib/keyboard.js";
import { mayOpen } from "../lib/places.js";

const EVERYWHERE = [
  ["/", "to the search"], ["j", "next row"], ["k", "previous row"], ["Enter", "open the row"], ["Esc", "leave a field or close a dialog"],
  ["?", "this help"],
];

export function Help({ onClose }) {
  const dialog = useRef(null);
  const [here] = useState(hotkeysHere);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="help" class="help" onClose=${onClose}>
    <h2 id="help">Keyboard</h2>
    <div class="columns">
      <${Keys} title="Everywhere" keys=${EVERYWHERE} />
      ${here.length > 0 && html`<${Keys} title="On this page" keys=${here} />`}
      <${Keys} title="Go to a page" keys=${pagesHere()} />
    </div>
    <div class="actions"><button type="button" class="main" autofocus onClick=${() => dialog.current.close()}>Close</button></div>
  </dialog>`;
}

function pagesHere() {
  const pages = Object.entries(PLACES).filter(([, [place]]) => mayOpen(place));
  return pages.map(([key, [place]]) => [`g ${key}`, place.replaceAll("-", " ")]);
}

const Keys = ({ title, keys }) => html`<div><h3>${title}</h3><dl class="keys">
  ${keys.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}
</dl></div>`;
