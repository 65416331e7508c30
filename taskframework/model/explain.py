"""Why a task is not running, or not finished: the first cause that applies.

The rule is pure; the facts are gathered elsewhere. An unknown fact counts as absent, and the answer is then the next
cause that applies.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from taskframework.clock import from_timestamp
from taskframework.model.explain_states import (
    explain_cancel_requested,
    explain_ended,
    explain_running,
    explain_waiting,
    explain_waiting_for_stream,
)
from taskframework.model.facts import Cause, Facts
from taskframework.model.interventions import is_suspect
from taskframework.model.limits import key_text, kind_of, name_and_key, waiting_limit
from taskframework.model.message import rfc3339
from taskframework.model.rate_limits import RATE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.versions import is_older
from taskframework.model.view import error_view, format_time
from taskframework.model.wording import error_line, one_line, pluralize
from taskframework.model.workers import start_hint

#: How late a message may be before it counts as not sent. A running sweeper sends a due message within a second or two.
_OVERDUE = timedelta(seconds=15)
_MORE_WORKERS_HELP = "More workers, or a higher worker.concurrency, help."
#: The most types of running tasks that are named.
_MAX_NAMED_TYPES = 3


def explain(facts: Facts) -> Cause:
    """Why a task is not running, or not finished."""
    for explanation in _EXPLANATIONS:
        cause = explanation(facts)
        if cause is not None:
            return cause
    return _explain_about_to_be_sent(facts)


def _explain_superseded(facts: Facts) -> Cause | None:
    unique, newest = facts.task.unique, facts.newest
    if unique is None or newest is None or not is_older(unique, newest):
        return None
    return Cause(
        "superseded",
        f"Task {newest.task_id} has the newer version {newest.version} of {unique.key!r}; "
        f"this task has version {unique.version}.",
        "No action is needed: a worker will cancel this task. Only the newest version starts.",
        {"key": unique.key, "version": unique.version, "newest": newest.version, "newest_task_id": newest.task_id},
    )


def _explain_paused(facts: Facts) -> Cause | None:
    pause = facts.pause
    if pause is None:
        return None
    reason = f" ({one_line(pause.reason)})" if pause.reason else ""
    return Cause(
        "paused",
        f"{pause.by} paused {pause.task_type} at {rfc3339(pause.at)}{reason}.",
        f"To let its tasks start again: taskframework queues resume {pause.task_type}",
        {"task_type": pause.task_type, "by": pause.by, "at": rfc3339(pause.at), "reason": pause.reason},
    )


def _explain_not_before(facts: Facts) -> Cause | None:
    task = facts.task
    if task.not_before <= facts.now:
        return None
    at = rfc3339(task.not_before)
    if task.status is not TaskStatus.RETRYING:
        return Cause("not_before", f"It must not start before {at}.", "No action is needed.", {"not_before": at})
    failed = f"Attempt {task.attempts} of {task.max_attempts} failed"
    failed += f" ({error_line(task.error)})" if task.error else ""
    following = f"The next attempt starts at {at}."
    advice = "No action is needed if the cause of the error is fixed by then. To retry now:"
    details = {"at": at, "attempt": task.attempts, "max_attempts": task.max_attempts, "error": error_view(task.error)}
    if task.deadline is not None and task.deadline <= task.not_before:
        following = f"The next attempt would start at {at}, but at its deadline, {rfc3339(task.deadline)}, it fails."
        advice = "To retry before the deadline:"
        details["deadline"] = rfc3339(task.deadline)
    return Cause("retry_at", f"{failed}. {following}", f"{advice} taskframework tasks retry {task.task_id}", details)


def _explain_rate_limit(facts: Facts) -> Cause | None:
    task, wait = facts.task, facts.task.waits_for_limit
    limit = waiting_limit(task)
    if limit is not None and wait is not None and kind_of(limit) == RATE.name and wait.until > facts.now:
        name, key = name_and_key(limit)
        whose = name if key is None else f"{name!r} for {key_text(key)}"
        return _bucket_empty(f"The rate limit {whose} is used up; the turn of this task is at", name, key, wait.until)
    if facts.bucket is None or facts.bucket_free_at is None or facts.bucket_free_at <= facts.now:
        return None
    beginning = f"The rate limit {facts.bucket!r} is used up until"
    return _bucket_empty(beginning, facts.bucket, None, facts.bucket_free_at)


def _bucket_empty(beginning: str, name: str, key: str | None, until: datetime) -> Cause:
    return Cause(
        "rate_limit",
        f"{beginning} {rfc3339(until)}.",
        "No action is needed. A higher rate in rate_limiter lets more tasks start.",
        {"name": name, "key": key, "until": rfc3339(until)},
    )


def _explain_concurrency_limit(facts: Facts) -> Cause | None:
    task, slots = facts.task, facts.slots
    if slots is None or not slots.are_all_in_use or any(it.task_id == task.task_id for it in slots.holders):
        return None
    name, key = (task.task_type, None) if facts.slots_id is None else name_and_key(facts.slots_id)
    named = [it for it in slots.holders if it.task_id in facts.visible_holders]
    whose = name if key is None else f"{name} for {key_text(key)}"
    held_by = f", held by {named[0].task_id}{' and others' if len(slots.holders) > 1 else ''}" if named else ""
    return Cause(
        "concurrency_limit",
        f"All slots of {whose} are in use ({len(slots.holders)} of {slots.number}){held_by}.",
        "It starts when a running task ends and its turn has come.",
        {
            "task_type": name,
            "key": key,
            "number": slots.number,
            "held": len(slots.holders),
            "holders": [{"task_id": it.task_id, "since": rfc3339(from_timestamp(it.since))} for it in named],
        },
    )


def _explain_limiter_away(facts: Facts) -> Cause | None:
    if not facts.is_limiter_away:
        return None
    return Cause(
        "limiter_away",
        f"Redis does not answer, or takes no writes. Without it, no task with the rate limit {facts.bucket!r} can "
        "start.",
        "It starts soon after Redis works again. Check that Redis runs, that its memory is not full, and that "
        "rate_limiter.redis_url is right and leads to no replica; `taskframework doctor` says more.",
        {"name": facts.bucket},
    )


def _explain_broker_away(facts: Facts) -> Cause | None:
    task = facts.task
    if facts.is_broker_connected is None:
        return _explain_not_sent(facts)
    if facts.broker_refusal is not None and not task.dispatches:  # some refusals close the connection for a moment
        return Cause(
            "broker_away",
            f"The process that answers cannot give messages to the broker: {facts.broker_refusal}",
            "Nothing is lost: the message is sent when the broker takes it. See docs/operations/broker-down.md.",
            {"next_dispatch_at": format_time(task.next_dispatch_at)},
        )
    if facts.is_broker_connected:
        return None
    if facts.is_broker_blocked:
        return Cause(
            "broker_away",
            "The broker takes no messages, because of a memory or disk alarm, so its message is not sent.",
            "Nothing is lost: the message is sent when the alarm is over. Give RabbitMQ more memory or disk; "
            "`rabbitmqctl status` names the alarm.",
            {"next_dispatch_at": format_time(task.next_dispatch_at)},
        )
    return Cause(
        "broker_away",
        "The process that answers has no connection to the broker, so no message reaches a worker.",
        "Nothing is lost: the message is sent when the broker is back. See docs/operations/broker-down.md.",
        {"next_dispatch_at": format_time(task.next_dispatch_at)},
    )


def _message_due(task: Task) -> datetime | None:
    """When a message is due; after a pause the document may have an earlier time, which is only an order."""
    return None if task.next_dispatch_at is None else max(task.next_dispatch_at, task.not_before)


def _explain_not_sent(facts: Facts) -> Cause | None:
    """The cause as a process without a broker can see it: workers run, but a message that is due was not sent."""
    due = _message_due(facts.task)
    if due is None or not facts.workers or facts.now - due < _OVERDUE:
        return None
    return Cause(
        "broker_away",
        f"Its message was due at {rfc3339(due)} but was not sent, although workers are running: they cannot reach the "
        "broker.",
        "Nothing is lost: the message is sent when the broker is back. See docs/operations/broker-down.md.",
        {"next_dispatch_at": rfc3339(due)},
    )


def _explain_no_worker(facts: Facts) -> Cause | None:
    task, last = facts.task, facts.last_worker
    if facts.workers:
        return None
    known = "" if facts.declared_at is None else f". The last one started at {rfc3339(facts.declared_at)}"
    who = known if last is None else f". The last one was {last.worker_id}, last seen at {rfc3339(last.seen_at)}"
    return Cause(
        "no_worker",
        f"No running worker handles {task.task_type}{who}.",
        start_hint(is_embedded=facts.is_embedded),
        {
            "task_type": task.task_type,
            "last_worker_id": None if last is None else last.worker_id,
            "last_seen_at": None if last is None else rfc3339(last.seen_at),
            "declared_at": format_time(facts.declared_at),
            "no_handler": task.no_handler,
        },
    )


def _explain_suspect(facts: Facts) -> Cause | None:
    task = facts.task
    if not is_suspect(task, facts.max_crashes):
        return None
    others = f" Task {facts.running_suspects[0]} is running now." if facts.running_suspects else ""
    return Cause(
        "suspect",
        f"Its worker died {pluralize(task.crashes, 'time')} while running it. A worker runs only one such task at a "
        f"time, so it waits for its turn.{others}",
        "It starts when its turn comes. After one more crash it becomes a dead letter.",
        {"crashes": task.crashes, "max_crashes": facts.max_crashes, "running": list(facts.running_suspects)},
    )


def _explain_sent(facts: Facts) -> Cause | None:
    task = facts.task
    if not task.dispatches:
        return None
    because = f"Its message was sent; {_tasks_ahead(facts)}"
    if facts.messages == 0:
        because = "A worker has its message but no free slot for it yet; or the message was lost on the way."
    due = task.next_dispatch_at
    again = "" if due is None else f" If its message was lost, another is sent at {rfc3339(due)}."
    helpful = "A higher worker.concurrency helps." if facts.is_embedded else _MORE_WORKERS_HELP
    change = f"It starts when a worker has a free slot. {helpful}"
    if facts.slots is not None:  # a slot is free at this moment, but tasks before this task will take it
        change = (
            f"It starts when its turn comes. Its concurrency limit lets {facts.slots.number} run at once; more workers "
            "help only up to that limit."
        )
    elif facts.bucket is not None:
        change = f"It starts when its turn comes. More workers help only up to its rate limit, {facts.bucket!r}."
    elif facts.ahead == 0 and not facts.messages and any(worker.has_free_slot for worker in facts.workers):
        because = "Its message was sent, no task is ahead of it, and a worker is free: it is on its way, or lost."
        change = "Nothing needs to be done."
    return Cause(
        "sent",
        f"{because}{_slots_text(facts)}",
        f"{change}{again}",
        {
            "lane": str(task.lane),
            "ahead": facts.ahead,
            "is_bounded": facts.is_ahead_bounded,
            "messages": facts.messages,
            "dispatches": task.dispatches,
            "next_dispatch_at": format_time(task.next_dispatch_at),
            "workers": len(facts.workers),
            "running_by_type": dict(facts.running_by_type),
        },
    )


def _slots_text(facts: Facts) -> str:
    """Which tasks have the slots of the workers; empty if a slot is free, or if it is not known.

    A slot that no task of this type has is taken by a task of another type that runs, and that these workers run. If
    there are several such types, it is not known which of them has it. If fewer tasks run now than there are slots, the
    text is empty: the reports of the workers are older, or short tasks come and go.
    """
    running, task_type = facts.running_by_type, facts.task.task_type
    others = sorted(running.keys() - {task_type}, key=lambda it: -running[it])
    own, number = running.get(task_type, 0), sum(worker.concurrency for worker in facts.workers)
    if not others or own >= number or sum(running.values()) < number:
        return ""
    *first, last = others[:_MAX_NAMED_TYPES] + (["others"] if len(others) > _MAX_NAMED_TYPES else [])
    names = f"{', '.join(first)} or {last}" if first else last
    who = f": {own:,} by tasks of this type, the others by tasks of {names}" if own else f" by tasks of {names}"
    return f" All slots of its workers ({number:,}) are taken{who}."


def _explain_about_to_be_sent(facts: Facts) -> Cause:
    task, due = facts.task, _message_due(facts.task)
    because = "Its message was sent a moment ago, or is about to be sent."
    if task.no_handler:
        times = pluralize(task.no_handler, "time")
        because = f"It was put off {times}: the workers that got it do not know {task.task_type}."
    at = "soon" if due is None else f"by {rfc3339(due)}"
    change = f"If no worker starts it before, a message is sent {at}."
    if due is not None and due < facts.now:
        change = f"Its message was due at {rfc3339(due)}. It is sent soon, or when there are fewer messages before it."
    return Cause(
        "about_to_be_sent",
        f"{because} {_tasks_ahead(facts)}" if facts.ahead else because,
        change,
        {"ahead": facts.ahead, "next_dispatch_at": format_time(due), "no_handler": task.no_handler},
    )


def _tasks_ahead(facts: Facts) -> str:
    ahead = "an unknown number of" if facts.ahead is None else f"{facts.ahead:,}"
    more = " or more" if facts.is_ahead_bounded else ""
    tasks = "task is" if ahead == "1" and not more else "tasks are"
    return f"{ahead}{more} {tasks} ahead of it in the {facts.task.lane} lane of {facts.task.task_type}."


_EXPLANATIONS: tuple[Callable[[Facts], Cause | None], ...] = (
    explain_ended,
    explain_cancel_requested,
    explain_running,
    explain_waiting,
    explain_waiting_for_stream,
    _explain_superseded,
    _explain_paused,
    _explain_not_before,
    _explain_rate_limit,
    _explain_concurrency_limit,
    _explain_limiter_away,
    _explain_broker_away,
    _explain_no_worker,
    _explain_suspect,
    _explain_sent,
)
