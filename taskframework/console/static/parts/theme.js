// Dark or light: as the system says, until the user presses the switch.
import { html, useState } from "../lib/dom.js";

const KEPT = "taskframework.theme";
const NEXT = { "": "dark", dark: "light", light: "" };
const SAID = { "": "Colours: as the system", dark: "Colours: dark", light: "Colours: light" };
const SIGNS = { "": "◐", dark: "●", light: "○" };

const show = (theme) => document.documentElement.setAttribute("data-theme", theme);
show(localStorage.getItem(KEPT) ?? "");

export function ThemeSwitch() {
  const [theme, setTheme] = useState(localStorage.getItem(KEPT) ?? "");
  const press = () => {
    const next = NEXT[theme];
    localStorage.setItem(KEPT, next);
    show(next);
    setTheme(next);
  };
  return html`<button type="button" class="plain" aria-label=${SAID[theme]} title=${SAID[theme]} onClick=${press}>${SIGNS[theme]}</button>`;
}
