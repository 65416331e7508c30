"""Whatever a task and its extensions look like, there is one cause why it is not finished."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from taskframework.model.explain import explain
from taskframework.model.facts import CauseCode, Facts
from taskframework.model.options import StreamPlace, Unique
from taskframework.model.pauses import Pause
from taskframework.model.slots import Holder, Slots
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.streams import Stream, Turn
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, Lease, LimitWait, SignalWait, Subtasks, TaskError
from taskframework.model.versions import Newest
from taskframework.model.workers import Presence
from taskframework.testing.factories import new_task

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = st.integers(-(10**6), 10**6).map(lambda seconds: NOW + timedelta(seconds=seconds))
TEXTS = st.text(max_size=12)
COUNTS = st.integers(0, 7)
LIMITS = st.sampled_from(["rate/openai", "rate/openai/a%2Fb", "slots/test-task", "slots/test-task/%25"])


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "not_before": TIMES,
    "next_dispatch_at": maybe(TIMES),
    "check_at": maybe(TIMES),
    "unblock_at": maybe(TIMES),
    "started_at": maybe(TIMES),
    "finished_at": maybe(TIMES),
    "dispatches": COUNTS,
    "crashes": COUNTS,
    "attempts": COUNTS,
    "no_handler": COUNTS,
    "lease": maybe(st.builds(Lease, TEXTS, TEXTS, TIMES)),
    "cancel": maybe(st.builds(CancelRequest, TEXTS, TIMES, maybe(TEXTS))),
    "error": maybe(st.builds(TaskError, TEXTS, TEXTS, TEXTS, st.booleans(), TEXTS)),
    "subtasks": maybe(st.builds(Subtasks, maybe(COUNTS), maybe(TEXTS), COUNTS, is_awaited=st.booleans())),
    "waits_for": maybe(st.builds(SignalWait, TEXTS, maybe(TIMES))),
    "waits_for_limit": maybe(st.builds(LimitWait, LIMITS, st.integers(0, 2), TIMES)),
    "unique": maybe(st.builds(Unique, TEXTS, COUNTS, COUNTS)),
    "stream": maybe(st.builds(StreamPlace, TEXTS, st.sampled_from(["serial", "ordered_results"]), COUNTS)),
}


def tasks(statuses: frozenset[TaskStatus]) -> st.SearchStrategy[Task]:
    """A document as it may be, and as no release of this framework would write it."""
    changes = st.fixed_dictionaries({"status": st.sampled_from(sorted(statuses))}, optional=FIELDS)
    return changes.map(lambda changed: new_task(now=NOW).evolve(**changed))


ANY_TASK = tasks(frozenset(TaskStatus))
OTHERS = st.sampled_from([new_task(now=NOW, status=status) for status in TaskStatus])
HOLDERS = st.builds(Holder, TEXTS, TEXTS, TEXTS, st.floats(0, 2e9), st.floats(0, 2e9))
PRESENCES = st.builds(Presence, TEXTS, TEXTS, COUNTS, TEXTS, st.just(("test-task",)), COUNTS, COUNTS, TIMES, TIMES)
AROUND: dict[str, st.SearchStrategy[Any]] = {
    "open_subtasks": st.lists(OTHERS, max_size=1).map(tuple),
    "stream": maybe(st.builds(Stream, turn=maybe(st.builds(Turn, TEXTS, COUNTS, COUNTS)), is_halted=st.booleans())),
    "turn_holder": maybe(OTHERS),
    "newest": maybe(st.builds(Newest, TEXTS, COUNTS, COUNTS)),
    "pause": maybe(st.builds(Pause, TEXTS, TEXTS, TIMES, maybe(TEXTS))),
    "bucket": maybe(TEXTS),
    "bucket_free_at": maybe(TIMES),
    "slots": maybe(st.builds(Slots, COUNTS, st.lists(HOLDERS, max_size=2).map(tuple))),
    "slots_id": maybe(LIMITS),
    "visible_holders": st.frozensets(TEXTS, max_size=1),
    "is_broker_connected": maybe(st.booleans()),
    "workers": st.lists(PRESENCES, max_size=1).map(tuple),
    "last_worker": maybe(PRESENCES),
    "declared_at": maybe(TIMES),
    "max_crashes": st.integers(1, 5),
    "ahead": maybe(COUNTS),
    "messages": maybe(COUNTS),
}


@given(tasks(LIVE), st.fixed_dictionaries({}, optional=AROUND))
def test_every_live_task_has_one_cause(task: Task, around: dict[str, Any]) -> None:
    cause = explain(Facts(task=task, now=NOW, **around))
    assert cause.code in get_args(CauseCode)
    assert cause.code != "final"
    assert cause.because
    assert cause.change
    json.dumps(cause.details)


@given(ANY_TASK)
def test_a_task_alone_is_explained_too(task: Task) -> None:
    cause = explain(Facts(task=task, now=NOW))
    assert (cause.code == "final") is task.status.is_final
