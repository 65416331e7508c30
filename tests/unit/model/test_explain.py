"""Why a task is not running: one cause, in the order in which they count."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest

from taskframework.model.explain import explain
from taskframework.model.facts import CauseCode, Facts
from taskframework.model.interventions import BY_NEWER_VERSION
from taskframework.model.message import rfc3339
from taskframework.model.options import StreamPlace, Unique
from taskframework.model.pauses import Pause
from taskframework.model.slots import Holder, Slots
from taskframework.model.status import TaskStatus
from taskframework.model.streams import Stream, Turn, go_on_command
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, CancelRequest, LimitWait, SignalWait, Subtasks
from taskframework.model.versions import Newest
from taskframework.model.workers import Presence
from tests.unit.model.scenes import MINUTE, NOW, SECOND, TASK_ID, an_error, in_status, queued, running, wish_to_stop

WORKER = Presence("worker-1", "host", 1, "1.0", ("test-task",), 10, 0, NOW - MINUTE, NOW - SECOND)
BUSY = replace(WORKER, in_flight=10)
PAUSE = Pause("test-task", "ada", NOW - MINUTE, "a bad release")
FULL = Slots(1, (Holder("other", "claim", "worker-1", NOW.timestamp(), NOW.timestamp() + 60),))
#: Everything that keeps a task from beginning, at once.
ALL_AT_ONCE: dict[str, Any] = {
    "newest": Newest("newer", 5, 0),
    "pause": PAUSE,
    "bucket": "openai",
    "bucket_free_at": NOW + MINUTE,
    "slots": FULL,
    "slots_id": "slots/test-task",
    "is_broker_connected": False,
    "ahead": 3,
}
VERSION = Unique("report", 4)


def facts(task: Task, **around: Any) -> Facts:
    known: dict[str, Any] = {"workers": (WORKER,), "is_broker_connected": True, **around}
    return replace(Facts(task=task, now=NOW), **known)


def blocked(**overrides: Any) -> Task:
    return in_status(TaskStatus.BLOCKED, stream=StreamPlace("orders", "serial", 7), **overrides)


def waiting(**overrides: Any) -> Task:
    return in_status(TaskStatus.WAITING, **overrides)


def holder(status: TaskStatus) -> Task:
    return in_status(status, task_id="first", stream=StreamPlace("orders", "serial", 6))


HALTED = Stream(turn=Turn("first", 0, 6), is_halted=True)
#: What is prepared, its cause, and words of the two sentences.
PREPARED: dict[str, tuple[Facts, CauseCode, str, str]] = {
    "over": (facts(in_status(TaskStatus.COMPLETED)), "final", "COMPLETED since", "it has ended"),
    "failed by sub-tasks": (
        facts(in_status(TaskStatus.FAILED, error=replace(an_error(), code="subtasks_failed"))),
        *("final", "it broke", "why: taskframework tasks subtasks the-task. To queue it again"),
    ),
    "a batch that failed": (
        facts(in_status(TaskStatus.FAILED, batch=Batch(), subtasks=Subtasks(3, None))),
        *("final", "It is FAILED", "To retry its failed tasks: taskframework batch retry-failed the-task"),
    ),
    "a batch whose own method failed": (
        facts(
            in_status(TaskStatus.FAILED, batch=Batch(), subtasks=Subtasks(3, None, done=3, succeeded=3, resumes=True))
        ),
        *("final", "It is FAILED", "To call on_batch_finished again: taskframework batch retry-failed the-task"),
    ),
    "an abandoned upload": (
        facts(in_status(TaskStatus.CANCELLED, batch=Batch(), subtasks=Subtasks(None, None))),
        *("final", "It is CANCELLED", "submit the items again, in a new batch"),
    ),
    "failed": (facts(in_status(TaskStatus.FAILED, error=an_error())), "final", "it broke", "tasks retry the-task"),
    "asked to stop": (
        facts(running(cancel=wish_to_stop("bob")), now=NOW - MINUTE, worker=replace(WORKER, seen_at=NOW - MINUTE)),
        *("cancel_requested", ", and its code is still running.", "gives up"),
    ),
    "asked to stop, and its lease is over": (
        facts(
            running(cancel=wish_to_stop("bob")), lease_grace=5 * SECOND, worker=replace(WORKER, seen_at=NOW - MINUTE)
        ),
        *(
            "cancel_requested",
            ", but its worker worker-1 seems to be lost: it has not renewed its lease",
            "taken from this worker after",
        ),
    ),
    "asked to stop, and its worker is silent": (
        facts(running(cancel=wish_to_stop("bob")), now=NOW - MINUTE, worker=replace(WORKER, seen_at=NOW - 2 * MINUTE)),
        *(
            "cancel_requested",
            ", but its worker worker-1 seems to be lost: it has sent no sign of life",
            "If the worker does not renew",
        ),
    ),
    "running": (facts(running(attempts=2), now=NOW - MINUTE), "running", "worker-1 runs attempt 2 of 5", "its code"),
    "its lease is over": (
        facts(running(), lease_grace=5 * SECOND),
        *("running", "but has not renewed its lease, which was valid until", "taken from this worker after"),
    ),
    "its lease is over and its worker is silent": (
        facts(running(), lease_grace=5 * SECOND, worker=replace(WORKER, seen_at=NOW - MINUTE)),
        *("running", " and has sent no sign of life since 2026-01-02T03:03:05.000Z.", "taken from this worker after"),
    ),
    "its worker is silent": (
        facts(running(), now=NOW - MINUTE, lease_grace=5 * SECOND, worker=replace(WORKER, seen_at=NOW - 2 * MINUTE)),
        *("running", ", but has sent no sign of life since 2026-01-02T03:02:05.000Z.", "If the worker does not renew"),
    ),
    "sub-tasks": (
        facts(waiting(subtasks=Subtasks(5, None, done=2)), open_subtasks=(running(task_id="child"),)),
        *("waiting_for_subtasks", "child is RUNNING", "(all_must_succeed): taskframework tasks explain child"),
    ),
    "sub-tasks to be counted": (
        facts(waiting(subtasks=Subtasks(5, None, done=4))),
        *("waiting_for_subtasks", "all of them have ended", "counted again"),
    ),
    "sub-tasks to be stored": (
        facts(waiting(subtasks=Subtasks(5, {"items": []}))),
        *("waiting_for_subtasks", "not all of them are stored", "The rest are stored"),
    ),
    "an upload": (
        facts(waiting(subtasks=Subtasks(None, None, done=3))),
        *("waiting_for_subtasks", "upload is not complete", "when the upload"),
    ),
    "either": (
        facts(waiting(subtasks=Subtasks(1, None), waits_for=SignalWait("stop", None))),
        *("waiting_for_subtasks", "or for the signal 'stop'", "counted"),
    ),
    "a signal": (
        facts(waiting(waits_for=SignalWait("approved", NOW + MINUTE))),
        *("waiting_for_signal", "'approved', until 2026-01-02T03:05:05.000Z", "tasks signal the-task approved"),
    ),
    "a signal behind a round": (
        facts(waiting(subtasks=Subtasks(1, None, is_awaited=False), waits_for=SignalWait("approved", None))),
        *("waiting_for_signal", "'approved'.", "tasks signal"),
    ),
    "a turn": (
        facts(blocked(), stream=Stream(turn=Turn("first", 0, 6)), turn_holder=holder(TaskStatus.RUNNING)),
        *("waiting_for_stream", "task first has the turn; it is RUNNING", "tasks explain first"),
    ),
    "a halted stream": (
        facts(blocked(), stream=HALTED, turn_holder=holder(TaskStatus.FAILED)),
        *("waiting_for_stream", "halted: task first", "streams go-on --user alice --position 6 orders"),
    ),
    "a halted stream whose task was deleted": (
        facts(blocked(), stream=HALTED),
        *("waiting_for_stream", "failed and was deleted", "streams go-on --user alice --position 6 orders"),
    ),
    "a turn that is free": (
        facts(blocked(), stream=Stream(turn=Turn("first", 0, 6)), turn_holder=holder(TaskStatus.COMPLETED)),
        *("waiting_for_stream", "about to move to the next task", "A process checks"),
    ),
    "a stream that nobody knows": (facts(blocked()), "waiting_for_stream", "about to", "checks"),
    "a newer version": (
        facts(queued(unique=VERSION), **ALL_AT_ONCE),
        *("superseded", "Task newer has the newer version 5 of 'report'", "cancel this task"),
    ),
    "a pause": (
        facts(queued(unique=Unique("report", 5)), **ALL_AT_ONCE),
        *("paused", "ada paused test-task at 2026-01-02T03:03:05.000Z (a bad release)", "queues resume test-task"),
    ),
    "its time": (
        facts(queued(not_before=NOW + MINUTE), **ALL_AT_ONCE | {"pause": None}),
        *("not_before", "must not start before 2026-01-02T03:05:05.000Z", "No action"),
    ),
    "a retry": (
        facts(in_status(TaskStatus.RETRYING, not_before=NOW + MINUTE, error=an_error())),
        *("retry_at", "Attempt 3 of 5 failed (ValueError: it broke). The next attempt starts", "cause of the error"),
    ),
    "a retry after the deadline": (
        facts(in_status(TaskStatus.RETRYING, not_before=NOW + 2 * MINUTE, deadline=NOW + MINUTE, error=an_error())),
        *("retry_at", "but at its deadline, 2026-01-02T03:05:05.000Z, it fails.", "To retry before the deadline: task"),
    ),
    "a bucket": (
        facts(queued(), **ALL_AT_ONCE | {"pause": None}),
        *("rate_limit", "'openai' is used up until 2026-01-02T03:05:05.000Z", "higher rate"),
    ),
    "a turn in a bucket": (
        facts(queued(waits_for_limit=LimitWait("rate/openai/a%2Fb", 1, NOW + MINUTE))),
        *("rate_limit", "'openai' for a/b", "higher rate"),
    ),
    "slots": (
        facts(queued(), **ALL_AT_ONCE | {"pause": None, "bucket": None}, visible_holders=frozenset({"other"})),
        *("concurrency_limit", "All slots of test-task are in use (1 of 1), held by other.", "ends"),
    ),
    "slots of a key": (
        facts(queued(), slots=FULL, slots_id="slots/test-task/a"),
        *("concurrency_limit", "All slots of test-task for a are in use (1 of 1).", "ends"),
    ),
    "slots of the tasks without a value": (
        facts(queued(), slots=FULL, slots_id="slots/test-task/"),
        *("concurrency_limit", "All slots of test-task for tasks without a value are in use (1 of 1).", "ends"),
    ),
    "Redis": (
        facts(queued(), is_broker_connected=False, bucket="openai", is_limiter_away=True),
        *(
            "limiter_away",
            "Redis does not answer, or takes no writes. Without it, no task with the rate limit 'openai'",
            "soon after",
        ),
    ),
    "the broker": (
        facts(queued(), is_broker_connected=False, workers=()),
        *("broker_away", "no connection", "when the broker is back"),
    ),
    "an alarm of the broker": (
        facts(queued(), is_broker_connected=False, is_broker_blocked=True),
        *(
            "broker_away",
            "takes no messages, because of a memory or disk alarm",
            "`rabbitmqctl status` names the alarm",
        ),
    ),
    "a broker that refuses the message": (
        facts(queued(), broker_refusal="ACCESS_REFUSED - access to exchange 'tasks.exchange' refused."),
        *(
            "broker_away",
            "cannot give messages to the broker: ACCESS_REFUSED",
            "when the broker takes it",
        ),
    ),
    "a message that nobody sends": (
        facts(queued(next_dispatch_at=NOW - MINUTE), is_broker_connected=None),
        *("broker_away", "was not sent, although workers are running", "when the broker is back"),
    ),
    "a message that nobody sends, of a task whose place among the tasks of a pause is before its time": (
        facts(queued(next_dispatch_at=NOW - 9 * MINUTE, not_before=NOW - MINUTE), is_broker_connected=None),
        *("broker_away", f"was due at {rfc3339(NOW - MINUTE)}", "when the broker is back"),
    ),
    "nobody": (
        facts(queued(), workers=(), last_worker=replace(WORKER, worker_id="gone")),
        *("no_worker", "No running worker handles test-task. The last one was gone", "worker --app"),
    ),
    "nobody, as far as is known": (
        facts(queued(next_dispatch_at=NOW - MINUTE), workers=(), is_broker_connected=None, declared_at=NOW),
        *("no_worker", "The last one started at 2026", "worker --app"),
    ),
    "nobody, where one process executes all": (
        facts(queued(next_dispatch_at=NOW - MINUTE), workers=(), is_embedded=True),
        *("no_worker", "No running worker handles", "restart it, with a program that has this type: taskframework dev"),
    ),
    "a suspect": (
        facts(queued(crashes=2, dispatches=1), running_suspects=("other",)),
        *("suspect", "died 2 times while running it", "After one more crash it becomes a dead letter"),
    ),
    "a suspect after one crash": (
        facts(queued(crashes=1, dispatches=1), max_crashes=1),
        *("suspect", "died 1 time while running it", "After one more crash it becomes a dead letter"),
    ),
    "put off once": (
        facts(queued(no_handler=1, dispatches=0, next_dispatch_at=NOW + MINUTE)),
        *("about_to_be_sent", "It was put off 1 time: the workers", "a message is sent"),
    ),
    "behind others": (
        facts(queued(dispatches=1), ahead=12, messages=13),
        *("sent", "12 tasks are ahead of it in the normal lane of test-task", "free slot"),
    ),
    "behind others, with a limit of which a slot is free": (
        facts(queued(dispatches=1), ahead=9, slots=Slots(2)),
        *("sent", "9 tasks are ahead of it", "lets 2 run at once"),
    ),
    "behind others, with a rate limit that lets one through at this moment": (
        facts(queued(dispatches=1), ahead=9, bucket="openai", bucket_free_at=None),
        *("sent", "9 tasks are ahead of it", "More workers help only up to its rate limit, 'openai'."),
    ),
    "superseded by a newer version": (
        facts(in_status(TaskStatus.CANCELLED, cancel=CancelRequest(BY_NEWER_VERSION, NOW, None))),
        *("final", "It is CANCELLED", "submit a higher version"),
    ),
    "behind tasks of other types": (
        facts(queued(dispatches=1), ahead=0, workers=(BUSY,), running_by_type={"import": 10}),
        *("sent", "0 tasks are ahead of it", "free slot"),
    ),
    "behind very many": (facts(queued(dispatches=1), ahead=9, is_ahead_bounded=True), "sent", "9 or more", "slot"),
    "taken": (
        facts(queued(dispatches=1), ahead=0, messages=0, workers=(BUSY,)),
        *("sent", "A worker has its message", "was lost"),
    ),
    "lost, as far as the workers tell": (
        facts(queued(dispatches=1, next_dispatch_at=NOW + MINUTE), ahead=0, messages=0, workers=(BUSY, WORKER)),
        *("sent", "it is on its way, or lost", "Nothing needs to be done. If its message was lost, another is sent at"),
    ),
    "next, with a free slot, and its message in the lane": (
        facts(queued(dispatches=1), ahead=0, messages=1),
        *("sent", "0 tasks are ahead of it", "when a worker has a free slot"),
    ),
    "no message yet": (
        facts(queued(next_dispatch_at=NOW + MINUTE)),
        *("about_to_be_sent", "about to be sent", "message is sent by 2026"),
    ),
    "no message yet, though it is late": (
        facts(queued(next_dispatch_at=NOW - MINUTE), is_broker_connected=True, ahead=5_000, is_ahead_bounded=True),
        *(
            "about_to_be_sent",
            "5,000 or more tasks are ahead of it",
            "It is sent soon, or when there are fewer messages",
        ),
    ),
    "put off": (
        facts(queued(no_handler=3, next_dispatch_at=NOW + MINUTE)),
        *("about_to_be_sent", "put off 3 times", "message is sent"),
    ),
}


@pytest.mark.parametrize("name", PREPARED)
def test_the_cause_is_named_with_what_would_change_it(name: str) -> None:
    prepared, code, because, change = PREPARED[name]
    cause = explain(prepared)
    assert cause.code == code
    assert because in cause.because
    assert change in cause.change


def test_every_cause_is_among_those_prepared() -> None:
    assert {code for _, code, _, _ in PREPARED.values()} == set(get_args(CauseCode))


def test_an_ended_task_has_the_cause_final_whatever_else_applies() -> None:
    for status in TaskStatus:
        if status.is_final:
            assert explain(facts(in_status(status, cancel=wish_to_stop()), **ALL_AT_ONCE)).code == "final"


def test_a_task_that_holds_a_slot_does_not_wait_for_one() -> None:
    held_by_itself = replace(FULL, holders=(replace(FULL.holders[0], task_id=TASK_ID),))
    assert explain(facts(queued(), slots=held_by_itself)).code == "about_to_be_sent"
    assert explain(facts(queued(), slots=replace(FULL, number=2))).code == "about_to_be_sent"


def test_a_turn_that_has_come_is_not_waited_for() -> None:
    past = LimitWait("rate/openai/a", 1, NOW)
    assert explain(facts(queued(waits_for_limit=past))).code == "about_to_be_sent"
    earlier_epoch = LimitWait("rate/openai/a", 0, NOW + MINUTE)
    assert explain(facts(queued(waits_for_limit=earlier_epoch))).code == "about_to_be_sent"


def test_holders_that_may_not_be_named_are_counted() -> None:
    details = explain(facts(queued(), slots=FULL)).details
    assert (details["held"], details["holders"]) == (1, [])


@pytest.mark.parametrize(
    ("running", "text"),
    [
        ({}, ""),
        ({"test-task": 10}, ""),
        ({"test-task": 10, "import": 5}, ""),  # which run in other workers
        ({"import": 6, "mail": 4}, " All slots of its workers (10) are taken by tasks of import or mail."),
        ({"import": 10}, " All slots of its workers (10) are taken by tasks of import."),
        ({"test-task": 4, "import": 1}, ""),  # the workers were full when they reported last, and are not now
        (
            {"test-task": 1, "b": 4, "a": 3, "d": 2, "c": 1},
            " All slots of its workers (10) are taken: 1 by tasks of this type, the others by tasks of b, a, d or "
            "others.",
        ),
    ],
)
def test_a_task_that_waits_for_a_slot_names_the_types_that_hold_all_slots(running: dict[str, int], text: str) -> None:
    told = explain(facts(queued(dispatches=1), ahead=0, workers=(BUSY,), running_by_type=running))
    assert told.because.partition(" of test-task.")[2] == text
    assert told.details["running_by_type"] == running


def test_somebody_elses_long_words_stay_one_line() -> None:
    told = explain(facts(queued(), pause=replace(PAUSE, reason="x\n" * 1_000))).because
    assert "\n" not in told
    assert len(told) < 400


def test_a_task_that_is_a_little_overdue_counts_as_about_to_be_sent() -> None:
    late = queued(next_dispatch_at=NOW - timedelta(seconds=3))
    assert explain(facts(late, is_broker_connected=None)).code == "about_to_be_sent"


@pytest.mark.parametrize("key", ["orders", 'a;touch /tmp/x;echo "', "it's $(id)", "-x", "--help"])
def test_a_name_that_others_chose_is_one_word_of_the_command_that_is_shown(key: str) -> None:
    words = shlex.split(go_on_command("eve; id", key, 7))
    options = ["--"] if key.startswith("-") else []
    assert words == ["taskframework", "streams", "go-on", "--user", "eve; id", "--position", "7", *options, key]
    assert shlex.split(go_on_command(None, key, 7))[-1] == key
    waits = explain(facts(waiting(waits_for=SignalWait(key, None))))
    assert shlex.split(waits.change.partition("taskframework ")[2])[-1] == key
