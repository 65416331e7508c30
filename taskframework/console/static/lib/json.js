// JSON without loss: JavaScript rounds whole numbers beyond 2^53. Here they stay as they were written, and are sent unchanged.
const KEEPS = "rawJSON" in JSON; // browsers from before 2025 lack it

// With `isExact` each number stays as it was written, `1.0` too: for text that a user typed. Such values are only shown
// and sent, not computed with.
export function parse(text, { isExact = false } = {}) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || !(isRounded(value) || (isExact && String(value) !== context?.source))) return value;
    if (KEEPS) return JSON.rawJSON(context.source);
    if (isExact && isRounded(value)) throw new SyntaxError(`this browser would change the number ${value}; use a newer one`);
    return value;
  });
}

const isRounded = (value) => !Number.isFinite(value) || (Number.isInteger(value) && !Number.isSafeInteger(value));
