"""Why a task is not running, or not finished: of all causes that are true, the first one.

The rule is pure; the facts are gathered elsewhere. A fact that could not be found out counts as not there, so the
answer is then the next cause that is true.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from urllib.parse import unquote

from taskframework.model.explain_states import (
    cancel_requested,
    ended,
    error_line,
    one_line,
    running,
    waiting,
    waiting_for_stream,
)
from taskframework.model.facts import Cause, Facts
from taskframework.model.limits import waiting_limit
from taskframework.model.message import rfc3339
from taskframework.model.rate_limits import RATE
from taskframework.model.slots import Slots, moment_of
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.versions import is_below
from taskframework.model.view import error_view, moment

#: A sweeper that is up sends what is due within a second or two.
_OVERDUE = timedelta(seconds=15)


def explain(facts: Facts) -> Cause:
    """Why a task is not running, or not finished."""
    return next((cause for ask in _CAUSES if (cause := ask(facts)) is not None), None) or _about_to_be_sent(facts)


def _superseded(facts: Facts) -> Cause | None:
    unique, newest = facts.task.unique, facts.newest
    if unique is None or newest is None or not is_below(unique, newest):
        return None
    return Cause(
        "superseded",
        f"Version {newest.version} of {unique.key!r} is there, task {newest.task_id}; this one is {unique.version}.",
        "Nothing: it is cancelled when a worker looks at it, and only the newest begins.",
        {"key": unique.key, "version": unique.version, "newest": newest.version, "newest_task_id": newest.task_id},
    )


def _paused(facts: Facts) -> Cause | None:
    pause = facts.pause
    if pause is None:
        return None
    reason = f" ({one_line(pause.reason)})" if pause.reason else ""
    return Cause(
        "paused",
        f"{pause.by} paused {pause.task_type} at {rfc3339(pause.at)}{reason}.",
        f"It goes on when somebody ends the pause: taskframework queues resume {pause.task_type}",
        {"task_type": pause.task_type, "by": pause.by, "at": rfc3339(pause.at), "reason": pause.reason},
    )


def _not_before(facts: Facts) -> Cause | None:
    task = facts.task
    if task.not_before <= facts.now:
        return None
    at = rfc3339(task.not_before)
    if task.status is not TaskStatus.RETRYING:
        return Cause("not_before", f"It is not to begin before {at}.", "Nothing is needed.", {"not_before": at})
    failed = f"Attempt {task.attempts} of {task.max_attempts} failed"
    return Cause(
        "retry_at",
        f"{failed}{f' ({error_line(task)})' if task.error else ''}, and the next one begins at {at}.",
        "Nothing is needed, if the cause of the error is gone by then. If it is gone now: "
        f"taskframework tasks retry {task.task_id}",
        {"at": at, "attempt": task.attempts, "max_attempts": task.max_attempts, "error": error_view(task.error)},
    )


def _rate_limit(facts: Facts) -> Cause | None:
    task, wait = facts.task, facts.task.waits_for_limit
    limit = waiting_limit(task)
    if limit is not None and wait is not None and _kind_of(limit) == RATE.name and wait.until > facts.now:
        name, key = _name_and_key(limit)
        whose = name if key is None else f"{name!r} for {key}"
        return _bucket_empty(f"The rate limit {whose} lets no more begin; its turn is at", name, key, wait.until)
    if facts.bucket is None or facts.bucket_free_at is None or facts.bucket_free_at <= facts.now:
        return None
    beginning = f"The rate limit {facts.bucket!r} lets no more begin until"
    return _bucket_empty(beginning, facts.bucket, None, facts.bucket_free_at)


def _bucket_empty(beginning: str, name: str, key: str | None, until: datetime) -> Cause:
    return Cause(
        "rate_limit",
        f"{beginning} {rfc3339(until)}.",
        "Nothing is needed; a higher rate in rate_limiter would let more begin.",
        {"name": name, "key": key, "until": rfc3339(until)},
    )


def _concurrency_limit(facts: Facts) -> Cause | None:
    task, slots = facts.task, facts.slots
    if slots is None or not _are_taken(slots, task):
        return None
    name, key = (task.task_type, None) if facts.slots_id is None else _name_and_key(facts.slots_id)
    named = [it for it in slots.holders if it.task_id in facts.named_holders]
    whose = name if key is None else f"{name} for {key}"
    held_by = f", by {named[0].task_id}{' and others' if len(slots.holders) > 1 else ''}" if named else ""
    return Cause(
        "concurrency_limit",
        f"Every slot of {whose} is held ({len(slots.holders)} of {slots.number}){held_by}.",
        "It begins when one of those that run ends and its turn has come.",
        {
            "task_type": name,
            "key": key,
            "number": slots.number,
            "held": len(slots.holders),
            "holders": [{"task_id": it.task_id, "since": rfc3339(moment_of(it.since))} for it in named],
        },
    )


def _are_taken(slots: Slots, task: Task) -> bool:
    """Whether no slot is left for the task, and it holds none already."""
    return len(slots.holders) >= slots.number and all(it.task_id != task.task_id for it in slots.holders)


def _limiter_away(facts: Facts) -> Cause | None:
    if not facts.is_limiter_away:
        return None
    return Cause(
        "limiter_away",
        f"Redis does not answer, and without it nothing begins that the rate limit {facts.bucket!r} is for.",
        "It begins soon after Redis is back. See that it runs, and that rate_limiter.redis_url is right.",
        {"name": facts.bucket},
    )


def _broker_away(facts: Facts) -> Cause | None:
    task = facts.task
    if facts.is_broker_connected is None:
        return _not_sent(facts)
    if facts.is_broker_connected:
        return None
    return Cause(
        "broker_away",
        "The process that was asked has no connection to the broker, so that no message reaches a worker.",
        "Nothing is lost: it is sent when the broker is back. See docs/operations/broker-down.md.",
        {"next_dispatch_at": moment(task.next_dispatch_at)},
    )


def _not_sent(facts: Facts) -> Cause | None:
    """What somebody without a broker can tell: the workers are there, and still nobody sent what is due."""
    due = facts.task.next_dispatch_at
    if due is None or not facts.workers or facts.now - due < _OVERDUE:
        return None
    return Cause(
        "broker_away",
        f"Its message was to be sent at {rfc3339(due)} and was not, though workers are there: they lack the broker.",
        "Nothing is lost: it is sent when the broker is back. See docs/operations/broker-down.md.",
        {"next_dispatch_at": rfc3339(due)},
    )


def _no_worker(facts: Facts) -> Cause | None:
    task, last = facts.task, facts.last_worker
    if facts.workers:
        return None
    known = "" if facts.declared_at is None else f"; one started last at {rfc3339(facts.declared_at)}"
    who = known if last is None else f"; {last.worker_id} did, and was seen last at {rfc3339(last.seen_at)}"
    return Cause(
        "no_worker",
        f"No worker is there that runs {task.task_type}{who}.",
        "Start one whose program has it: taskframework worker --app MODULE",
        {
            "task_type": task.task_type,
            "last_worker_id": None if last is None else last.worker_id,
            "last_seen_at": None if last is None else rfc3339(last.seen_at),
            "declared_at": moment(facts.declared_at),
            "no_handler": task.no_handler,
        },
    )


def _suspect(facts: Facts) -> Cause | None:
    task = facts.task
    if not task.crashes or task.crashes < facts.max_crashes - 1:
        return None
    others = f" {facts.running_suspects[0]} has the turn in one." if facts.running_suspects else ""
    return Cause(
        "suspect",
        f"Its worker died {task.crashes} times under it, so that it waits until it is alone of its kind in a worker."
        f"{others}",
        f"It begins when its turn comes; with {facts.max_crashes} crashes it is a dead letter.",
        {"crashes": task.crashes, "max_crashes": facts.max_crashes, "running": list(facts.running_suspects)},
    )


def _sent(facts: Facts) -> Cause | None:
    task = facts.task
    if not task.dispatches:
        return None
    ahead = "an unknown number" if facts.ahead is None else f"{facts.ahead:,}"
    more = " or more" if facts.is_ahead_bounded else ""
    because = f"Its message was sent; in the lane {task.lane} of {task.task_type} {ahead}{more} came before it."
    if facts.messages == 0:
        because = "Its message was taken by a worker, which has no free slot for it yet; or it was lost on the way."
    again = "" if task.next_dispatch_at is None else f" A lost one is sent again at {rfc3339(task.next_dispatch_at)}."
    change = "It begins when a worker has a free slot for it: more workers, or more worker.concurrency, help."
    if facts.slots is not None:  # one is free at this moment, and those before it will take it
        change = (
            f"It begins when its turn has come. Its concurrency limit lets {facts.slots.number} run at once, and more"
        )
        change += " workers help only as far as that."
    return Cause(
        "sent",
        because,
        f"{change}{again}",
        {
            "lane": str(task.lane),
            "ahead": facts.ahead,
            "is_bounded": facts.is_ahead_bounded,
            "messages": facts.messages,
            "dispatches": task.dispatches,
            "next_dispatch_at": moment(task.next_dispatch_at),
            "workers": len(facts.workers),
        },
    )


def _about_to_be_sent(facts: Facts) -> Cause:
    task, due = facts.task, facts.task.next_dispatch_at
    because = "Its message was sent a moment ago, or is about to be sent."
    if task.no_handler:
        because = f"It was put off {task.no_handler} times, since the workers that got it do not know {task.task_type}."
    at = "soon" if due is None else f"at {rfc3339(due)} at the latest"
    return Cause(
        "about_to_be_sent",
        because,
        f"A process that sends messages sends one {at}, if none has begun it by then.",
        {"next_dispatch_at": moment(due), "no_handler": task.no_handler},
    )


_CAUSES: tuple[Callable[[Facts], Cause | None], ...] = (
    ended,
    cancel_requested,
    running,
    waiting,
    waiting_for_stream,
    _superseded,
    _paused,
    _not_before,
    _rate_limit,
    _concurrency_limit,
    _limiter_away,
    _broker_away,
    _no_worker,
    _suspect,
    _sent,
)


def _kind_of(limit: str) -> str:
    return limit.partition("/")[0]


def _name_and_key(limit: str) -> tuple[str, str | None]:
    """What the id of a limit's record says."""
    _, name, *key = map(unquote, limit.split("/"))
    return name, key[0] if key else None
