// JSON without loss: JavaScript rounds whole numbers beyond 2^53. Here they stay as they were written, and are sent unchanged.
const KEEPS = "rawJSON" in JSON; // browsers from before 2025 lack it

// With `isExact` each number stays as it was written, `1.0` too: for values that are edited. They are only shown and
// sent, not computed with.
export function parse(text, { isExact = false } = {}) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || !(isRounded(value) || (isExact && String(value) !== context?.source))) return value;
    return KEEPS ? JSON.rawJSON(context.source) : value;
  });
}

// Throws if a value to be sent contains a number that this browser has rounded.
export function refuseRounded(value) {
  if (KEEPS) return;
  JSON.stringify(value, (_, one) => {
    if (typeof one === "number" && isRounded(one)) throw new RangeError(`This browser would change the number ${one}. Use a newer browser.`);
    return one;
  });
}

const isRounded = (value) => !Number.isFinite(value) || (Number.isInteger(value) && !Number.isSafeInteger(value));
