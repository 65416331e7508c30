"""Store suite: every value that a user may store comes back unchanged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from taskframework.errors import ValueNotStorableError
from taskframework.model.attempts import Complete, Fail, RecordStep, ReportProgress
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.task_fields import StepOutcome
from taskframework.model.transitions import Transition
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.comparison import same_json
from taskframework.testing.conformance.store_suite import (
    HOUR,
    StoreSuite,
    insert_one,
    make_claim,
    make_error,
    make_move,
    put,
    put_running,
    read_task,
)
from taskframework.testing.factories import new_task


def _deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = {"in": value} if level % 2 else [value]
    return value


HOSTILE: dict[str, Any] = {
    "field path": "$lease.owner",
    "variable": "$$ROOT",
    "operator": {"$where": 1},
    "operator inside": [{"a": {"$set": {"status": "COMPLETED"}}}],
    "literal": {"$literal": {"$literal": 1}},
    "reference": {"$ref": "x", "$id": 1},
    "dotted key": {"a.b": 1, "a": {"b": 2}},
    "empty key": {"": {"": 1}},
    "own names": {"_id": 1, "status": "RUNNING", "parameters": {"history": []}},
    "empty text": "",
    "empties": [[], {}, [[]], None],
    "null": None,
    "unicode": {"ключ": "💥 \u202e ﷽ e\u0301", "\ufeff": "\ufffe"},
    "control": "\x00\x01\x1f\x7f\u2028\r\n\t",
    "quotes": "'; DROP TABLE tasks; --\"\\",
    "deep": _deep(60),
    "integers": [0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)],
    "numbers": [1.0, 1, True, 0.1, -0.5, 1e300, 5e-324, 1e15, 123456789.0],
    "times": ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z", {"at": "2026-01-01T00:00:00+00:00"}],
    "long": "x" * 100_000,
}

NOT_STORABLE: dict[str, Any] = {
    "object": object(),
    "beyond 64 bits": 2**64,
    "half a surrogate pair": "\ud800",
    "inside": [{"a": {"b": object()}}],
}
each_bad_value = pytest.mark.parametrize("value", NOT_STORABLE.values(), ids=NOT_STORABLE.keys())


class ValueCases(StoreSuite):
    """Users' values never have a meaning for the store."""

    async def test_parameters_come_back_unchanged(self, store: TaskStore) -> None:
        for name, value in HOSTILE.items():
            task = await put(store, parameters=value)
            assert same_json((await read_task(store, task.task_id)).parameters, value), name

    async def test_progress_and_results_come_back_unchanged(self, store: TaskStore) -> None:
        for name, value in HOSTILE.items():
            _, fence = await put_running(store)
            assert same_json((await make_move(store, ReportProgress(fence, value))).progress, value), name
            assert same_json((await make_move(store, Complete(fence, "worker-1", value))).result, value), name

    async def test_outcomes_of_steps_come_back_unchanged(self, store: TaskStore) -> None:
        _, fence = await put_running(store)
        for name, value in HOSTILE.items():
            step = value if isinstance(value, str) else name
            task = await make_move(store, RecordStep(fence, step, value))
            assert task.outcome_of(step) == StepOutcome(step, value), name
            assert same_json(task.steps[-1].outcome, value), name
        for step in ("$set", "a.b", "a", "__proto__", "_id", "$$ROOT", "$steps", "0"):
            await make_move(store, RecordStep(fence, step, step))
            await make_move(store, RecordStep(fence, step, "another outcome"))
        assert len((await read_task(store, fence.task_id)).steps) == len(HOSTILE) + 8 - 1, "one of them was there"

    async def test_texts_come_back_unchanged(self, store: TaskStore) -> None:
        """Texts that a user may give as reasons, errors and names."""
        for text in (value if isinstance(value, str) else repr(value) for value in HOSTILE.values()):
            task, fence = await put_running(store)
            cancelled = await make_move(store, Cancel(task.task_id, EVERYONE, text, text))
            assert cancelled.cancel is not None
            assert (cancelled.cancel.by, cancelled.cancel.reason) == (text, text)
            assert cancelled.history[-1].data == {"by": text, "reason": text}
            failed = await make_move(store, Fail(fence, text, make_error(text), True, HOUR))
            assert failed.history[-1].worker_id == text

    async def test_the_order_of_keys_is_kept(self, store: TaskStore) -> None:
        value = {"z": 1, "a": {"y": 1, "b": 2}, "m": 3}
        task = await put(store, parameters=value)
        assert repr((await read_task(store, task.task_id)).parameters) == repr(value)

    async def test_values_survive_later_moves(self, store: TaskStore) -> None:
        task, fence = await put_running(store, parameters=HOSTILE, progress=HOSTILE)
        await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))
        await make_move(store, Fail(fence, "worker-1", make_error(), True, HOUR))
        after = await read_task(store, task.task_id)
        assert same_json([after.parameters, after.progress], [HOSTILE, HOSTILE])

    @each_bad_value
    async def test_a_value_that_cannot_be_stored_is_refused(self, store: TaskStore, value: Any) -> None:
        task = new_task(now=store.now()).evolve(parameters=value)
        with pytest.raises(ValueNotStorableError):
            await insert_one(store, task)
        assert await store.get(task.task_id, EVERYONE) is None

    async def test_an_id_that_is_no_text_fails_alone(self, store: TaskStore) -> None:
        tasks = [await put(store) for _ in range(3)]
        replies = await asyncio.gather(
            store.apply(make_claim(tasks[0])),
            store.apply(replace(make_claim(tasks[1]), task_id="\ud800")),
            store.mark(MarkPublished("\ud800", 1)),
            store.apply(make_claim(tasks[2])),
            return_exceptions=True,
        )
        assert [type(reply) for reply in replies] == [Task, ValueNotStorableError, ValueNotStorableError, Task]

    @each_bad_value
    async def test_a_bad_value_fails_alone(self, store: TaskStore, value: Any) -> None:
        """If several calls are written together and one cannot be stored, only its own caller gets an error."""
        running = [await put_running(store) for _ in range(10)]
        bad_task, bad_fence = await put_running(store)
        inserts = [new_task(now=store.now()) for _ in range(10)]
        completions: list[Transition] = [Complete(fence, "worker-1", 1) for _, fence in running]

        replies = await asyncio.gather(
            *(insert_one(store, task) for task in inserts[:5]),
            insert_one(store, new_task(now=store.now()).evolve(parameters=value)),
            *(insert_one(store, task) for task in inserts[5:]),
            *(store.apply(completion) for completion in completions[:5]),
            store.apply(Complete(bad_fence, "worker-1", value)),
            *(store.apply(completion) for completion in completions[5:]),
            return_exceptions=True,
        )

        failed = [reply for reply in replies if isinstance(reply, BaseException)]
        assert [type(error) for error in failed] == [ValueNotStorableError] * 2
        assert None not in replies
        assert await read_task(store, bad_task.task_id) == bad_task
        await make_move(store, Complete(bad_fence, "worker-1", "a good one"))
