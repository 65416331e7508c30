// The formats of times, numbers and values.
const numbers = new Intl.NumberFormat("en");

export const count = (number, isBounded = false) =>
  number === null || number === undefined ? "–" : `${numbers.format(number)}${isBounded ? "+" : ""}`;

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function perSecond(rate) {
  if (rate === null || rate === undefined) return "–";
  return `${rate >= 10 ? Math.round(rate) : Number(rate.toFixed(2))}/s`;
}

const UNITS = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// A length of time in its two largest units.
export function lasting(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, name] = UNITS[at];
  const rest = UNITS[at + 1] && Math.floor((seconds % size) / UNITS[at + 1][0]);
  return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${UNITS[at + 1][1]}` : ""}`;
}

export const secondsSince = (time, now = Date.now()) => (now - Date.parse(time)) / 1000;

export function ago(time, now = Date.now()) {
  if (!time) return "–";
  const seconds = secondsSince(time, now);
  if (Math.abs(seconds) < 1) return "now";
  return seconds < 0 ? `in ${short(-seconds)}` : `${short(seconds)} ago`;
}

// A length of time in its largest unit only.
export function short(seconds) {
  if (seconds < 1) return lasting(seconds);
  const [size, name] = UNITS.find(([one]) => seconds >= one) ?? UNITS.at(-1);
  return `${Math.floor(seconds / size)} ${name}`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

export function at(time) {
  if (!time) return "–";
  const moment = new Date(time);
  const isToday = moment.toDateString() === new Date().toDateString();
  return isToday ? clock.format(moment) : `${day.format(moment)}, ${clock.format(moment)}`;
}

// Characters that change the order in which the text around them is shown, so that it seems to say something else. The
// command line replaces them too.
export const REORDERING = /[\u202a-\u202e\u2066-\u2069]/g;
const escaped = (character) => `\\u${character.charCodeAt(0).toString(16)}`;

export const asJson = (value) => (JSON.stringify(value, null, 2) ?? "").replace(REORDERING, escaped);
export const inline = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");
// Enough of an id to distinguish it from its neighbours: an id begins with the time at which it was made.
export const shortId = (id) => (id && id.length > 20 ? `…${id.slice(-12)}` : id);
// The name of an error without its modules.
export const kindOfError = (type) => type.slice(type.lastIndexOf(".") + 1);
export const words = (status) => status.toLowerCase().replaceAll("_", " ");
