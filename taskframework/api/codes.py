"""The codes of all errors, with their meaning and advice: of problem documents, and of tasks that failed.

The page at `/docs` and the reference show them, so that the `type` of a problem leads to its advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Code(NamedTuple):
    """The code of a problem document."""

    status: int
    title: str
    #: What the caller should do about it.
    advice: str


class TaskCode(NamedTuple):
    """The code in the `error` of a task."""

    meaning: str
    #: What to do about the error.
    advice: str


_REPEAT = "Repeat it as soon as `Retry-After` says; with an idempotency key it happens once."
_LIST_ALL = "Check the address; the list one level above shows what exists."

#: Every code a problem can have. `type` points to the code's entry on /docs.
CODES: Mapping[str, Code] = {
    "bad_request": Code(400, "The request cannot be read", "Send HTTP/1.1 with headers and query as /docs describes."),
    "invalid_json": Code(
        400,
        "The body is not JSON",
        "Send one JSON value in UTF-8, without a byte order mark and nested at most 200 levels deep.",
    ),
    "unauthorized": Code(
        401,
        "An API key or token is needed",
        "Send `Authorization: Bearer <key>`. A key that was revoked or has expired is refused the same way.",
    ),
    "forbidden": Code(
        403,
        "The caller may not do this",
        "`GET /api/v1/me` shows the roles of the key; use a key with the role that `detail` names.",
    ),
    "not_found": Code(404, "There is nothing at this address", "/docs lists all addresses."),
    "worker_not_found": Code(404, "There is no such worker", "A worker that ended is forgotten after ten minutes."),
    "key_not_found": Code(404, "There is no such API key", _LIST_ALL),
    "replay_not_found": Code(404, "There is no such action on many tasks", _LIST_ALL),
    "schedule_not_found": Code(404, "There is no such schedule", _LIST_ALL),
    "task_not_found": Code(
        404,
        "There is no such task, batch, stream or dead letter",
        "Check the id, and that the key may see it: what belongs to another user does not exist for the caller. What is"
        " over is removed after its retention.",
    ),
    "method_not_allowed": Code(
        405, "The method is not allowed at this address", "Use a method from the header `Allow`."
    ),
    "idempotency_conflict": Code(
        409,
        "The idempotency key belongs to a different request",
        "Repeat the first request with this key, or use a new key. `task_id` is the task that has the key, if any.",
    ),
    "replay_running": Code(
        409,
        "The same action on many tasks is running at another rate, or with another `reopen`",
        "Let it finish; or stop it, and begin again. `detail` names it, who began it, and its progress.",
    ),
    "task_unreadable": Code(
        409,
        "A newer release wrote this task, or it is damaged",
        "`detail` says which. Use an API process of that release, or correct the document in the store.",
    ),
    "record_unreadable": Code(
        409,
        "A record in the store that the request needs cannot be read",
        "`detail` names it. Put it back from a backup, or delete it; `taskframework doctor` lists all of them.",
    ),
    "transition_refused": Code(
        409,
        "The task is not in a status that allows this",
        "`task_status` is its present status, `hint` says which status is needed.",
    ),
    "task_type_not_found": Code(
        404, "The task type is unknown", "Check its name. A type is known once a worker with it has started."
    ),
    "stream_mode": Code(409, "The stream has another mode", "Use the mode of the stream, or another key."),
    "newer_version": Code(
        409,
        "A newer version was submitted before",
        "No action is needed: `task_id` is the task that has replaced it.",
    ),
    "version_conflict": Code(
        409,
        "The version of the key is a task of another type",
        "Use another key for this task type, or a higher version. `task_id` is the task that has this version.",
    ),
    "parent_finished": Code(
        409,
        "The parent of the sub-task has ended",
        "Retry this one with `reopen`; or retry the parent if it failed, and the failed tasks if it is a batch.",
    ),
    "batch_conflict": Code(
        409,
        "The upload differs from the one that created the batch",
        "Repeat the upload with the same items in the same order, or use a new key.",
    ),
    "batch_closed": Code(409, "The batch accepts no more items", "Submit a new batch, with a new key."),
    "too_many_signals": Code(
        409,
        "The task has too many signals that it has not received yet",
        "Keep data that changes often in your own store, and signal only the change.",
    ),
    "schedule_exists": Code(
        409, "There is a schedule of this name", "Choose another name, or change the existing schedule."
    ),
    "schedule_from_settings": Code(
        409,
        "The schedule comes from the settings",
        "Change it in the section `schedules` of the settings. Over HTTP it can only be paused and run.",
    ),
    "too_many_schedules": Code(
        409,
        "The maximum number of schedules exists already",
        "Delete unneeded schedules, or let one task submit several others.",
    ),
    "request_timeout": Code(
        408, "The request did not arrive in time", "Send it faster or in smaller parts; a batch can be continued."
    ),
    "body_too_large": Code(
        413, "The body is too large", "Send less in one request, or a batch line by line; `api.max_body` is the limit."
    ),
    "batch_too_large": Code(413, "The batch has too many items", "Submit several batches."),
    "unsupported_media_type": Code(
        415, "The content type of the body is not supported", "Send `Content-Type: application/json`."
    ),
    "invalid_request": Code(422, "A field or parameter is wrong", "Correct the fields named in `errors`."),
    "invalid_task": Code(422, "The task cannot be accepted", "`detail` and `hint` say why."),
    "unknown_task_type": Code(
        422,
        "The task type is unknown",
        "Check the name: `GET /api/v1/task-types` lists the types. A type is known once a worker with it has started.",
    ),
    "invalid_parameters": Code(
        422,
        "The parameters are not valid for the task type",
        "`errors` names the wrong fields; the schema is in `GET /api/v1/task-types`.",
    ),
    "value_not_storable": Code(
        422,
        "A value cannot be stored",
        "Send plain JSON: keys without NUL, numbers of 64 bits, not nested too deep, within the limits of size.",
    ),
    "invalid_cursor": Code(
        422,
        "The cursor does not belong to this list",
        "Send `next_cursor` of the previous page unchanged, with the same filters.",
    ),
    "too_many_requests": Code(
        429,
        "The caller makes too many requests",
        "Wait for the time in `Retry-After`, or get a key with a higher rate.",
    ),
    "headers_too_large": Code(431, "The headers are too large", "Send less in the headers and in the address."),
    "internal_error": Code(
        500,
        "Internal error",
        "The log of the API process has the traceback. Repeating is safe with an idempotency key.",
    ),
    "store_unavailable": Code(503, "The store cannot be reached", _REPEAT),
    "limiter_unavailable": Code(
        503,
        "The server of the rate limits cannot be reached",
        "Repeat it; if it fails again, check the Redis of `rate_limiter.redis_url`.",
    ),
    "token_keys_unavailable": Code(
        503,
        "The keys for checking tokens cannot be read",
        "Repeat it; if it fails again, check `security.jwt_keys`. API keys still work.",
    ),
    "too_many_connections": Code(
        503, "Too many connections are open", "Keep connections open and reuse them, or start more API processes."
    ),
    "too_many_streams": Code(
        503,
        "Too many event streams are open",
        "Follow many tasks with one stream, or start more API processes.",
    ),
    "not_running": Code(
        503, "The framework is not running", "Repeat it in a moment: the process is starting or stopping."
    ),
    "stopping": Code(503, "The process is stopping", "Repeat it in a moment, at another process."),
}

#: Every code in the `error` of a task.
TASK_CODES: Mapping[str, TaskCode] = {
    "execution_error": TaskCode(
        "The code of the task raised an exception.",
        "`type` and `message` say what; the traceback is in the log of the worker and in the dead letter."
        " Fix the code or what it calls, then replay.",
    ),
    "invalid_parameters": TaskCode(
        "The parameters are not valid for the worker's version of the model.",
        "They were valid at the submission, so the model has changed. Give new fields a default, then replay; "
        "or replay with other parameters.",
    ),
    "bad_result": TaskCode(
        "The code returned a value that cannot be stored or is not of the declared type.",
        "Return plain JSON or the declared model, at most 1 MiB, then replay.",
    ),
    "timeout": TaskCode(
        "An attempt ran longer than the `timeout` of its task type. It is retried as long as attempts are left.",
        "Allow more time, or do less in one task.",
    ),
    "deadline": TaskCode(
        "The task did not end before its `deadline`.", "Submit it again with a later deadline, if it is still needed."
    ),
    "queue_timeout": TaskCode(
        "No worker started the task within its `queue_timeout`.", "Start more workers or allow more time, then replay."
    ),
    "cancelled": TaskCode(
        "Somebody asked the task to stop, and it did.",
        "No action is needed. The history says who asked and why; the task can be retried.",
    ),
    "lease_expired": TaskCode(
        "The worker stopped renewing its lease: it died, hung or lost the store. The task is retried until this"
        " has happened `worker.max_crashes` times, or `max_attempts` are used up: each lost lease was an attempt, too.",
        "Find out why that worker ended: out of memory, killed, or a blocked event loop. Run what may crash with"
        ' `run_in="process"`.',
    ),
    "no_handler": TaskCode(
        "Workers received the task, and none of them could run its type or version.",
        "Deploy workers that have this type, then replay.",
    ),
    "subtasks_failed": TaskCode(
        "Too many sub-tasks failed, so the policy of their parent can no longer be met.",
        "Check the failed sub-tasks. Retry them with `reopen`, or retry the parent.",
    ),
    "upload_abandoned": TaskCode(
        "The upload of the batch was interrupted and not continued in time.", "Submit the batch again, with a new key."
    ),
}
