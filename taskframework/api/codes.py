"""Every code of an error, what it means and what to do: of a problem document, and of a task that failed.

The page at `/docs` and the reference show them, so that the `type` of a problem leads to what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Code(NamedTuple):
    """The code of a problem document."""

    status: int
    title: str
    #: What to do about it.
    advice: str


class TaskCode(NamedTuple):
    """The code in the `error` of a task."""

    meaning: str
    #: What to do about it.
    advice: str


_REPEAT = "Repeat it as soon as `Retry-After` says; with an idempotency key it happens once."
_LIST_ALL = "Check what is in the address; the list one level above shows what there is."

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
        "`GET /api/v1/me` tells the roles of the key; use one that has the role that `detail` names.",
    ),
    "not_found": Code(404, "There is nothing at this address", "See /docs for the addresses there are."),
    "worker_not_found": Code(404, "There is no such worker", "A worker that ended is forgotten after ten minutes."),
    "key_not_found": Code(404, "There is no such API key", _LIST_ALL),
    "replay_not_found": Code(404, "There is no such action on many tasks", _LIST_ALL),
    "schedule_not_found": Code(404, "There is no such schedule", _LIST_ALL),
    "task_not_found": Code(
        404,
        "There is no such task or dead letter",
        "Check the id, and that the key may see it: what belongs to another user does not exist for the caller. What is"
        " over is removed after its retention.",
    ),
    "method_not_allowed": Code(405, "This address does not know the method", "Use one of those in the header `Allow`."),
    "idempotency_conflict": Code(
        409,
        "The idempotency key belongs to something else",
        "Send what was sent with the key before, or use a new key; `task_id` is the task that has it, if one has.",
    ),
    "task_unreadable": Code(409, "A newer release wrote this task", "Ask an API of that release, or upgrade this one."),
    "transition_refused": Code(
        409,
        "The task is not in a status that allows this",
        "`task_status` says what it is now, `hint` in which status it can be done.",
    ),
    "task_type_not_found": Code(
        404, "Nobody knows the task type", "Check its name; it is known as soon as a worker with it has started."
    ),
    "stream_mode": Code(409, "The stream has another mode", "Give the mode that the stream has, or use another key."),
    "newer_version": Code(
        409,
        "A newer version was submitted before",
        "Nothing is to be done: `task_id` is the task that has replaced it.",
    ),
    "parent_finished": Code(
        409, "The parent of the sub-task is over", "Retry the parent, or retry this one with `reopen`."
    ),
    "batch_conflict": Code(
        409,
        "The upload is not the one that the batch was made by",
        "Repeat the upload with the same items in the same order, or use a new key.",
    ),
    "batch_closed": Code(409, "The batch takes no more items", "Submit a new batch, with a new key."),
    "too_many_signals": Code(
        409,
        "The task has as many signals as it may have",
        "Put what changes often into a store of yours and signal that it changed.",
    ),
    "schedule_exists": Code(409, "There is a schedule of this name", "Choose another name, or change that one."),
    "schedule_from_settings": Code(
        409,
        "The schedule is made by the settings",
        "Change it in the section `schedules` of the settings. Over HTTP it can be paused and run.",
    ),
    "too_many_schedules": Code(
        409,
        "There are as many schedules as there may be",
        "Delete those that are not needed, or let one task submit what belongs together.",
    ),
    "request_timeout": Code(
        408, "The request did not come in time", "Send it faster or in smaller parts; a batch can be continued."
    ),
    "body_too_large": Code(
        413, "The body is too large", "Send less in one request, or a batch line by line; `api.max_body` is the limit."
    ),
    "batch_too_large": Code(413, "The batch has more items than one may have", "Submit several batches."),
    "unsupported_media_type": Code(
        415, "The body is not of a type that is read here", "Send `Content-Type: application/json`."
    ),
    "invalid_request": Code(422, "A field or parameter is wrong", "`errors` names the fields; correct those."),
    "invalid_task": Code(422, "The task cannot be accepted", "`detail` and `hint` say why."),
    "unknown_task_type": Code(
        422,
        "Nobody knows the task type",
        "Check the name: `GET /api/v1/task-types` lists what there is. A type is known once a worker has it.",
    ),
    "invalid_parameters": Code(
        422,
        "The parameters do not fit the task type",
        "`errors` names the fields; the schema is in `GET /api/v1/task-types`.",
    ),
    "value_not_storable": Code(
        422,
        "A value cannot be stored",
        "Send plain JSON: keys without NUL, numbers of 64 bits, not nested too deep, within the limits of size.",
    ),
    "invalid_cursor": Code(
        422,
        "The cursor is not one of this list",
        "Give `next_cursor` of the page before unchanged, with the same filters.",
    ),
    "too_many_requests": Code(
        429, "The caller asks too often", "Wait as long as `Retry-After` says, or ask for a key with a higher rate."
    ),
    "headers_too_large": Code(431, "The headers are too large", "Send less in the headers and in the address."),
    "internal_error": Code(
        500,
        "Something went wrong here",
        "The log of the API process has the traceback. Repeating is safe with an idempotency key.",
    ),
    "store_unavailable": Code(503, "The store cannot be reached", _REPEAT),
    "limiter_unavailable": Code(
        503,
        "The server of the rate limits cannot be reached",
        "Repeat it; if it stays, look at the Redis of `rate_limiter.redis_url`.",
    ),
    "token_keys_unavailable": Code(
        503,
        "The keys by which tokens are checked cannot be read",
        "Repeat it; if it stays, look at `security.jwt_keys`. API keys work meanwhile.",
    ),
    "too_many_connections": Code(
        503, "Too many connections are open", "Keep connections open and use them again; start more API processes."
    ),
    "too_many_streams": Code(
        503,
        "Too many event streams are open",
        "Follow with one stream what you follow with many; start more API processes.",
    ),
    "not_running": Code(503, "The framework is not running", "Repeat it in a moment: the process starts or stops."),
    "stopping": Code(503, "The process is stopping", "Repeat it in a moment, at another process."),
}

#: Every code in the `error` of a task.
TASK_CODES: Mapping[str, TaskCode] = {
    "execution_error": TaskCode(
        "The code of the task raised.",
        "`type` and `message` say what; the traceback is in the log of the worker and in the dead letter."
        " Mend the code or what it calls, then replay.",
    ),
    "invalid_parameters": TaskCode(
        "The parameters do not fit the model that the worker has.",
        "They fitted when the task was submitted, so the model has changed. Give new fields a default, then replay; or"
        " replay with other parameters.",
    ),
    "bad_result": TaskCode(
        "The code returned what cannot be stored, or what is not of the declared type.",
        "Return plain JSON or the declared model, at most 1 MiB of it, then replay.",
    ),
    "timeout": TaskCode(
        "An attempt ran longer than the `timeout` of its task type. It is retried as long as attempts are left.",
        "Allow more time, or do less in one task.",
    ),
    "deadline": TaskCode(
        "The task was not done by its `deadline`.", "Submit it anew with a later one, if it is still worth it."
    ),
    "queue_timeout": TaskCode(
        "No worker began the task within its `queue_timeout`.", "Start more workers or allow more time, then replay."
    ),
    "cancelled": TaskCode(
        "Somebody asked the task to stop, and it did.",
        "Nothing. The history says who asked and why; it can be retried.",
    ),
    "lease_expired": TaskCode(
        "The worker stopped renewing its lease: it died, hung or lost the store. The task is retried, until that"
        " has happened `worker.max_crashes` times.",
        "Look for the end of that worker: out of memory, killed, a blocked event loop. Run what may crash with"
        ' `run_in="process"`.',
    ),
    "no_handler": TaskCode(
        "Workers received the task, and none of them could run its type or version.",
        "Deploy workers that have it, then replay.",
    ),
    "subtasks_failed": TaskCode(
        "Sub-tasks failed, so that the policy of their parent cannot be met any more.",
        "Look at the sub-tasks that failed; retry those with `reopen`, or the parent.",
    ),
    "upload_abandoned": TaskCode(
        "The upload of the batch broke off and was not continued in time.", "Submit the batch anew, with a new key."
    ),
}
