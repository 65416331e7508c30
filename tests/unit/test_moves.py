"""Moves: written, told once, and recognised when the reply to an earlier asking was lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import StoreUnavailableError, TaskUnreadableError
from taskframework.model.attempts import Claim, Complete, RecordStep, Release, ReportProgress
from taskframework.model.events import TaskEvent, end_of_attempt, start_of_attempt
from taskframework.model.interventions import Cancel, Postpone, Reap
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Transition
from taskframework.moves import Made, NotMade, TaskMoves
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task

HOUR = timedelta(hours=1)


class Scene:
    """A store, the moves in it, and what was told of them."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.told: list[str] = []
        bus = EventBus()
        bus.listen(TaskEvent, self._hear, name="told")
        self.moves = TaskMoves(store, bus)

    def _hear(self, event: TaskEvent) -> None:
        self.told.append(type(event).__name__)

    async def put(self) -> Task:
        return (await insert_one(self.store, new_task(now=self.store.now() - HOUR))).task

    async def claimed(self) -> tuple[Task, Fence]:
        task = await self.put()
        made = await self.moves.make_once(claim_of(task), start_of_attempt)
        assert isinstance(made, Made)
        self.told.clear()
        return made.task, Fence(task.task_id, made.task.fencing_token, "claim")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    yield Scene(store)
    await store.close()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


def claim_of(task: Task, claim_id: str = "claim") -> Claim:
    return Claim(task.task_id, task.dispatch_epoch, claim_id, "worker", HOUR)


async def test_a_move_is_written_before_its_event_is_published(scene: Scene) -> None:
    task = await scene.put()
    seen: list[tuple[str, list[str]]] = []

    async def look() -> None:
        present = await scene.store.get(task.task_id, EVERYONE)
        assert present is not None
        seen.append((present.status, list(scene.told)))

    failpoint.arm("cancel.after_write", look)
    moved = await scene.moves.make(Cancel(task.task_id, EVERYONE, "alice", None))
    assert moved == await scene.store.get(task.task_id, EVERYONE)
    assert seen == [("CANCELLED", [])], "told before it was written, or its failpoint stands elsewhere"
    assert scene.told == ["TaskCancelledEvent"]


async def test_a_move_that_its_guard_refuses_publishes_no_event(scene: Scene) -> None:
    task = await scene.put()
    assert await scene.moves.make(Reap(task.task_id, 1, timedelta(0), 3, HOUR)) is None
    refused = await scene.moves.make_once(claim_of(task.evolve(dispatch_epoch=2)), start_of_attempt)
    assert refused == NotMade(task)
    assert await scene.moves.make_once(claim_of(new_task()), start_of_attempt) == NotMade(None)
    assert scene.told == []


async def test_a_write_without_a_history_entry_publishes_only_progress(scene: Scene) -> None:
    waiting = await scene.put()
    assert await scene.moves.make(Postpone(waiting.task_id, 1, HOUR, 1)) is not None
    _, fence = await scene.claimed()
    assert await scene.moves.make(RecordStep(fence, "charge", 7)) is not None
    assert scene.told == []
    assert await scene.moves.make(ReportProgress(fence, 1)) is not None
    assert await scene.moves.make(Postpone(waiting.task_id, 1, HOUR, 1)) is not None
    assert scene.told == ["TaskProgressEvent", "TaskFailedEvent"]


@pytest.mark.parametrize("kind", [Complete, Release])
async def test_a_settlement_asked_again_is_answered_as_the_first_time(scene: Scene, kind: type) -> None:
    task, fence = await scene.claimed()
    end = kind(fence, "worker", "done") if kind is Complete else kind(fence, "worker")

    def entry_in(stored: Task):  # type: ignore[no-untyped-def]
        return end_of_attempt(task, stored)

    first = await scene.moves.make_once(end, entry_in)
    assert isinstance(first, Made)
    if kind is Release:  # another worker has it by now
        await scene.store.apply(claim_of(first.task, "another claim"))
    again = await scene.moves.make_once(end, entry_in)
    assert isinstance(again, Made)
    assert again.entry == first.entry
    assert scene.told == [f"Task{'Completed' if kind is Complete else 'Released'}Event"] * 2


async def test_a_move_whose_reply_was_lost_publishes_its_event_when_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await scene.put()
    apply = SqliteStore.apply

    async def lose(store: SqliteStore, transition: Transition) -> None:
        await apply(store, transition)
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "apply", lose)
        with pytest.raises(StoreUnavailableError):
            await scene.moves.make_once(claim_of(task), start_of_attempt)
    assert scene.told == []
    made = await scene.moves.make_once(claim_of(task), start_of_attempt)
    assert isinstance(made, Made)
    assert (made.task.status, made.task.fencing_token) == (TaskStatus.RUNNING, 1)
    assert scene.told == ["TaskStartedEvent"]


async def test_a_task_that_a_newer_release_wrote_is_left_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unreadable(*_: object) -> None:
        raise TaskUnreadableError("t1", "a status of tomorrow")

    task = await scene.put()
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "get", unreadable)
        refused = await scene.moves.make_once(claim_of(task.evolve(dispatch_epoch=2)), start_of_attempt)
        assert refused == NotMade(None, is_unreadable=True)
        patch.setattr(SqliteStore, "apply", unreadable)
        assert await scene.moves.repair(Reap(task.task_id, 1, timedelta(0), 3, HOUR)) is None
    assert "left out" in caplog.text
    assert scene.told == []
