// The only place that names the libraries. A template of `html` escapes all text, so the content of a task stays text.
import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";
import { REORDERING } from "./format.js";

function inOrder(child) {
  if (Array.isArray(child)) return child.map(inOrder); // a template with several parts
  return typeof child === "string" ? child.replace(REORDERING, "\ufffd") : child;
}

// Tooltips too.
const titled = (properties) => (properties?.title ? { ...properties, title: inOrder(properties.title) } : properties);

export const html = htm.bind((type, properties, ...children) => h(type, titled(properties), ...children.map(inOrder)));
export { render } from "../vendor/preact.js";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
