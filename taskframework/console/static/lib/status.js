// The statuses of a task, as pages show them.
export const STATUSES = [
  "QUEUED", "RUNNING", "RETRYING", "WAITING", "BLOCKED",
  "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED", "DEAD_LETTER", "CANCELLED",
];
const FINAL = new Set(["COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED", "DEAD_LETTER", "CANCELLED"]);
const AGAIN = new Set(["FAILED", "DEAD_LETTER", "CANCELLED", "RETRYING"]);
const KINDS = {
  QUEUED: "calm", BLOCKED: "calm", CANCELLED: "calm", RUNNING: "busy", WAITING: "busy", RETRYING: "warn",
  COMPLETED: "good", COMPLETED_WITH_ERRORS: "warn", FAILED: "bad", DEAD_LETTER: "bad",
};

export const isFinal = (status) => FINAL.has(status);
export const mayRetry = (status) => AGAIN.has(status);
export const isDead = (status) => status === "FAILED" || status === "DEAD_LETTER";
export const kindOf = (status) => KINDS[status] ?? "calm";

// How much of a task is done according to its progress, from 0 to 100; null if the progress has no such number.
export function percentOf(progress) {
  if (typeof progress === "number") return within(progress);
  if (progress === null || typeof progress !== "object") return null;
  if (typeof progress.percent === "number") return within(progress.percent);
  const total = progress.total ?? progress.of;
  const done = progress.done ?? progress.current;
  return typeof total === "number" && total > 0 && typeof done === "number" ? within((100 * done) / total) : null;
}

const within = (percent) => Math.min(100, Math.max(0, percent));
