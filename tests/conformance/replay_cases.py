"""Actions on many tasks, on the stores that the suites make: each task once, whoever dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.attempts import Fail
from taskframework.model.limits import limit_ids
from taskframework.model.replays import REPLAY, BulkAction, BulkActionStatus
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task, new_task_id
from taskframework.model.task_fields import LimitWait, ParentLink, Subtasks
from taskframework.moves import TaskMoves
from taskframework.operations.ancestors import Ancestors
from taskframework.operations.replay_carrier import ReplayCarrier
from taskframework.operations.replay_keys import ReplayKeys
from taskframework.operations.replays import ReplayOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    MINUTE,
    SECOND,
    StoreSuite,
    claim_task,
    make_error,
    make_move,
    put,
    put_final,
    read_task,
)


class Process:
    """What a process does for actions on many; each has its own."""

    def __init__(self, store: TaskStore) -> None:
        tasks = TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
        self.store, self.replays = store, ReplayOperations(store, ReplayKeys(store, None), None)
        self.carrier = ReplayCarrier(store, tasks, self.replays)

    async def carry(self, replay: BulkAction) -> BulkAction:
        while await self.carrier.run_once():
            pass
        return await self.replays.get(replay.replay_id)


async def _planted(store: TaskStore, number: int) -> tuple[list[Task], BulkAction]:
    tasks = [await put_final(store, TaskStatus.FAILED, error=make_error()) for _ in range(number)]
    where = ActionFilter(fingerprint=make_error().fingerprint)
    return tasks, await Process(store).replays.begin(Action.REPLAY, where, by="ada")


async def _die(*_: object, **__: object) -> None:
    raise RuntimeError("this process died")


async def _serial(store: TaskStore, parent: Task) -> int:
    subtasks = (await read_task(store, parent.task_id)).subtasks
    assert subtasks is not None
    return subtasks.report_serial


async def _let_lease_end(store: TaskStore, replay: BulkAction) -> None:
    """What a process had in hand may be taken over."""

    def over(present: BulkAction) -> BulkAction:
        return replace(present, due_at=store.now() - SECOND)

    await ReplayOperations(store, ReplayKeys(store, None), None).change(replay.replay_id, over)


class ReplayCases(StoreSuite):
    """What `ReplayCarrier` promises, on any store."""

    @pytest.mark.parametrize("point", ["replays.after_take", "replays.after_one", "replays.before_settle"])
    async def test_another_process_continues_the_action_of_a_process_that_died(
        self, store: TaskStore, point: str
    ) -> None:
        tasks, replay = await _planted(store, 30)
        failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": f"{point}@1=raise"})
        try:
            await Process(store).carrier.run_once()
        finally:
            failpoint.disarm(point)
        left = await Process(store).carry(replay)
        assert (len(left.batch), left.done) == (30, 0), "nobody else touches what is in hand"

        # Some of it fails again before anybody goes on: it must not run a third time.
        again = await read_task(store, tasks[0].task_id)
        if again.status is TaskStatus.QUEUED:
            _, fence = await claim_task(store, again)
            await make_move(store, Fail(fence, "w", make_error(), False, timedelta(0)))
        await _let_lease_end(store, replay)
        after = await Process(store).carry(replay)

        assert (after.status, after.done, after.refused, after.failed) == (BulkActionStatus.DONE, 30, 0, 0)
        found = [await read_task(store, task.task_id) for task in tasks]
        assert {task.generation for task in found} == {1}
        replays = [entry for task in found for entry in task.history if entry.type == "replayed"]
        assert len(replays) == 30

    async def test_parents_count_a_sub_task_again_whose_replayer_died_before_they_knew(
        self, store: TaskStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        awaited = Subtasks(2, None, policy="allow_failures")
        parent = await put(store, status=TaskStatus.WAITING, subtasks=awaited, next_dispatch_at=None)
        link = ParentLink(parent.task_id, 0, 0, 1)
        subtask = await put_final(store, TaskStatus.FAILED, error=make_error(), parent=link)
        where = ActionFilter(fingerprint=make_error().fingerprint)
        replay = await Process(store).replays.begin(Action.REPLAY, where, by="ada")
        with monkeypatch.context() as patched:
            patched.setattr(Ancestors, "count_again", _die)
            await Process(store).carrier.run_once()
        assert (await read_task(store, subtask.task_id)).status is TaskStatus.QUEUED
        began = await _serial(store, parent)

        await _let_lease_end(store, replay)
        after = await Process(store).carry(replay)
        assert (after.status, after.done) == (BulkActionStatus.DONE, 1)
        assert await _serial(store, parent) == began + 1, "a count that began before is refused"

    async def test_only_the_chosen_sub_tasks_of_a_task_are_cancelled(self, store: TaskStore) -> None:
        parent, process = new_task_id(), Process(store)
        wait = LimitWait(limit_ids("charge")[0], 1, store.now() + MINUTE)
        links = [ParentLink(parent, 0, slot) for slot in range(2)]
        chosen = await put(store, parent=links[0], waits_for_limit=wait)
        other = await put(store, parent=links[1])
        where = ActionFilter(parent_task_id=parent, waits_for_limit="charge")
        assert (await process.replays.count_of(Action.CANCEL, where)).number == 1
        await process.carry(await process.replays.begin(Action.CANCEL, where, by="ada"))
        statuses = [(await read_task(store, task.task_id)).status for task in (chosen, other)]
        assert statuses == [TaskStatus.CANCELLED, TaskStatus.QUEUED]

    async def test_several_processes_replay_each_task_once(self, store: TaskStore) -> None:
        tasks, replay = await _planted(store, 150)
        await asyncio.gather(*(Process(store).carry(replay) for _ in range(4)))
        after = await Process(store).carry(replay)
        while after.batch or after.status is BulkActionStatus.RUNNING:
            after = await Process(store).carry(replay)
        assert (after.done, after.refused, after.failed) == (150, 0, 0)
        assert {(await read_task(store, task.task_id)).generation for task in tasks} == {1}

    async def test_a_process_that_only_slept_counts_nothing_twice(self, store: TaskStore) -> None:
        _, replay = await _planted(store, 10)
        asleep, awake = asyncio.Event(), asyncio.Event()

        async def sleep() -> None:
            if not asleep.is_set():
                asleep.set()
                await awake.wait()

        failpoint.arm("replays.before_settle", sleep)
        try:
            sleeper = asyncio.create_task(Process(store).carrier.run_once())
            await asleep.wait()
            await _let_lease_end(store, replay)
            after = await Process(store).carry(replay)
            awake.set()
            await sleeper
        finally:
            failpoint.disarm("replays.before_settle")
        assert await Process(store).replays.get(replay.replay_id) == after
        assert (after.status, after.done) == (BulkActionStatus.DONE, 10)

    async def test_a_stopped_action_counts_the_tasks_that_were_in_hand(self, store: TaskStore) -> None:
        tasks, replay = await _planted(store, 10)
        failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": "replays.after_one@1=raise"})
        try:
            await Process(store).carrier.run_once()
        finally:
            failpoint.disarm("replays.after_one")
        await Process(store).replays.stop(replay.replay_id)
        await _let_lease_end(store, replay)
        after = await Process(store).carry(replay)
        queued = [task for task in tasks if (await read_task(store, task.task_id)).status is TaskStatus.QUEUED]
        assert after.status is BulkActionStatus.STOPPED
        assert (after.done, after.remaining, after.batch) == (len(queued), 10 - len(queued), ())
        assert (after.refused, after.refusals) == (0, ())
        [record] = (await store.read_records([REPLAY.id_of(replay.replay_id)])).values()
        assert REPLAY.content(record) == after
