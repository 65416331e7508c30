"""Every code of an error, with what to do and where to read on."""

from __future__ import annotations

from docs.generator.places import DOCS
from taskframework.api.codes import CODES, TASK_CODES

_INTRODUCTION = """\
# Error codes

Programs decide by the code of an error; people read its `detail` or `message` first, and then here what to do. What
one sees without a code is in [troubleshooting](../troubleshooting.md); the exceptions of Python are in
[Python](python.md#exceptions).

This page is made from the code, by `make docs`.

## Over HTTP

The `code` of a problem document. Its `type` leads to the same text at `/docs` of the running API.
"""
_TASKS = """
## Of a task

The `code` in the `error` of a task. `fingerprint`, beside it, is equal for errors of one cause: `taskframework dlq
groups` counts them.
"""

#: Where to read on about each code.
PAGES = {
    "bad_request": "../http.md",
    "batch_closed": "../batches.md#an-upload-that-breaks-off",
    "batch_conflict": "../batches.md#an-upload-that-breaks-off",
    "batch_too_large": "../batches.md",
    "body_too_large": "../http.md#what-holds-for-all-calls",
    "forbidden": "../security.md#roles",
    "headers_too_large": "../http.md#what-holds-for-all-calls",
    "idempotency_conflict": "../submitting.md#once-only",
    "internal_error": "../operations/logs.md",
    "invalid_cursor": "../http.md#what-holds-for-all-calls",
    "invalid_json": "../http.md#what-holds-for-all-calls",
    "invalid_parameters": "../submitting.md#what-can-be-refused",
    "invalid_request": "http.md",
    "invalid_task": "../submitting.md#what-can-be-refused",
    "key_not_found": "../security.md#ending-a-key",
    "limiter_unavailable": "../limits.md#where-the-buckets-are",
    "method_not_allowed": "http.md",
    "newer_version": "../versions.md",
    "not_found": "http.md",
    "not_running": "../operations/upgrade.md",
    "parent_finished": "../sub-tasks.md#what-can-go-wrong",
    "record_unreadable": "../operations/backup.md",
    "replay_not_found": "../operations/dead-letters.md#many-at-once",
    "replay_running": "../operations/dead-letters.md#many-at-once",
    "request_timeout": "../operations/several-instances.md",
    "schedule_exists": "../schedules.md",
    "schedule_from_settings": "../schedules.md#from-the-settings",
    "schedule_not_found": "../schedules.md",
    "stopping": "../operations/upgrade.md",
    "store_unavailable": "../operations/database-down.md",
    "stream_mode": "../streams.md",
    "task_not_found": "../retention.md",
    "task_type_not_found": "../writing-a-task.md#making-it-known",
    "task_unreadable": "../operations/upgrade.md#what-makes-this-safe",
    "token_keys_unavailable": "../security.md#tokens-of-an-issuer",
    "too_many_connections": "../operations/several-instances.md",
    "too_many_requests": "../security.md#how-much-a-key-may-ask",
    "too_many_schedules": "../schedules.md",
    "too_many_signals": "../sub-tasks.md#signals",
    "too_many_streams": "../events.md#over-http",
    "transition_refused": "../concepts.md#the-life-of-a-task",
    "unauthorized": "../security.md",
    "unknown_task_type": "../writing-a-task.md#making-it-known",
    "unsupported_media_type": "../http.md#what-holds-for-all-calls",
    "value_not_storable": "../submitting.md#what-can-be-refused",
    "version_conflict": "../versions.md",
    "worker_not_found": "../workers.md#who-is-there",
}
TASK_PAGES = {
    "bad_result": "../writing-a-task.md#parameters-and-result",
    "cancelled": "../writing-a-task.md#progress-and-cancelling",
    "deadline": "../time-limits.md",
    "execution_error": "../operations/dead-letters.md#find-the-cause",
    "invalid_parameters": "../operations/upgrade.md#what-makes-this-safe",
    "lease_expired": "../operations/stuck-task.md",
    "no_handler": "../operations/upgrade.md#what-makes-this-safe",
    "queue_timeout": "../time-limits.md#waiting-for-a-worker",
    "subtasks_failed": "../sub-tasks.md#policies",
    "timeout": "../time-limits.md",
    "upload_abandoned": "../batches.md#an-upload-that-breaks-off",
}


def markdown() -> str:
    """A heading for each code, so that each has an address."""
    parts = [_INTRODUCTION]
    for code, (status, title, advice) in sorted(CODES.items()):
        parts.append(f"\n### {code}\n\n**{status}.** {title}.\n{_what_to_do(advice, PAGES[code])}")
    parts.append(_TASKS)
    for code, (meaning, advice) in sorted(TASK_CODES.items()):
        parts.append(f"\n### Task: {code}\n\n{meaning}\n{_what_to_do(advice, TASK_PAGES[code])}")
    return "".join(parts)


def _what_to_do(advice: str, page: str) -> str:
    text = (DOCS / "reference" / page.partition("#")[0]).read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    return f"\nWhat to do: {advice[0].lower() + advice[1:]} See [{title}]({page}).\n"
