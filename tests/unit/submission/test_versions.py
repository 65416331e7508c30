"""Versions of a key: which one is accepted, which one begins, and what a process leaves that dies in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError, NewerVersionError, TaskUnreadableError, TransitionRefusedError
from taskframework.limits.versions import read_newest
from taskframework.model.attempts import Claim, Complete, Fail
from taskframework.model.interventions import Replay
from taskframework.model.message import TaskMessage
from taskframework.model.query import TaskFilter
from taskframework.model.scope import ANONYMOUS, EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Transition
from taskframework.moves import TaskMoves
from taskframework.operations.tasks import TaskOperations
from taskframework.recovery.retention import RetentionRepair
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.refusals import VersionConflictError
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import make_error
from taskframework.worker.admission import Candidate, PutOff
from taskframework.worker.versions import NewestVersions
from tests.support.kitchen_sink import CountWords
from tests.support.submission import submission_into

DAY, NO_TIME = timedelta(days=1), timedelta(0)
ALL = TaskFilter()
LIVE, CANCELLED = TaskStatus.QUEUED, TaskStatus.CANCELLED


async def die() -> None:
    raise RuntimeError("the process died")


class CountLetters(CountWords):
    task_type = "count-letters"


class Installation:
    """A store, the way in, and a worker's check."""

    def __init__(self, store: SqliteStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.moves = TaskMoves(store, EventBus())
        registry = TaskRegistry()
        registry.register(CountWords)
        registry.register(CountLetters)
        self.service = submission_into(store, TaskTypes(registry, store), EventBus(), max_attempts=1)
        self.check = NewestVersions(store, self.moves, DAY)

    async def submit(
        self,
        version: int,
        key: str = "page",
        on_running: Literal["leave", "cancel"] = "leave",
        task_type: str = "count-words",
    ) -> Task:
        request = SubmitRequest(
            task_type=task_type,
            parameters={"text": str(version)},
            unique={"key": key, "version": version, "on_running": on_running},
        )
        return (await self.service.submit(request)).task

    async def status(self, task: Task) -> TaskStatus:
        return (await self.get(task)).status

    async def get(self, task: Task) -> Task:
        there = await self.store.get(task.task_id, EVERYONE)
        assert there is not None
        return there

    async def begin(self, task: Task) -> Fence | None:
        """What a worker does with the message of a task; None if it does not begin."""
        message = TaskMessage.for_task(await self.get(task))
        headers = {name: str(value) for name, value in (message.headers or {}).items()}
        candidate = Candidate(message, headers, None, "a-claim", holding=SimpleNamespace())  # type: ignore[arg-type]
        if isinstance(await self.check.admit(candidate), PutOff):
            return None
        claimed = await self.store.apply(Claim(task.task_id, message.dispatch_epoch, "a-claim", "worker-1", 100 * DAY))
        return None if claimed is None else Fence(task.task_id, claimed.fencing_token, "a-claim")


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Installation]:
    clock = FakeClock()
    store = SqliteStore(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield Installation(store, clock)
    failpoint.disarm()
    await store.close()


async def test_a_higher_version_supersedes_a_waiting_task_and_a_lower_one_is_refused(here: Installation) -> None:
    first, second = await here.submit(1), await here.submit(2)
    ended = await here.get(first)
    assert (ended.status, ended.history[-1].data) == (
        CANCELLED,
        {"by": "superseded", "reason": "version 2 of it was submitted"},
    )
    assert await here.status(second) is LIVE
    with pytest.raises(NewerVersionError, match=f"version 2 is task {second.task_id}"):
        await here.submit(1)
    assert (await here.submit(1, key="another")).unique is not None, "each key is for itself"


@pytest.mark.parametrize("again", [2, 3])
async def test_a_waiting_task_left_by_a_dead_submitter_is_ended_before_the_next_version(
    here: Installation, again: int
) -> None:
    """A worker that has looked at the oldest one already claims it as soon as it goes on."""
    first = await here.submit(1)
    failpoint.arm("version.after_record", die)
    with pytest.raises(RuntimeError, match="died"):
        await here.submit(2)
    failpoint.disarm()
    assert await here.status(first) is LIVE
    await here.submit(again)
    assert await here.status(first) is CANCELLED


async def test_a_version_that_was_superseded_is_not_queued_again(here: Installation) -> None:
    operations = TaskOperations(here.store, here.moves, NO_TIME)
    first = await here.submit(1)
    fence = await here.begin(first)
    assert fence is not None
    await here.store.apply(Fail(fence, "worker-1", make_error(), False, NO_TIME))
    assert (await operations.check_retry(first.task_id, EVERYONE)).task_id == first.task_id, "it is the newest"
    second = await here.submit(2)
    with pytest.raises(TransitionRefusedError, match=f"and task {second.task_id} has taken its place") as told:
        await operations.retry(first.task_id, EVERYONE, by="ann")
    assert told.value.hint == "No action is needed: that task is version 2."
    assert await here.status(first) is TaskStatus.FAILED


async def test_a_version_that_is_a_task_of_another_type_is_refused_and_a_higher_one_supersedes_it(
    here: Installation,
) -> None:
    words = await here.submit(1)
    with pytest.raises(VersionConflictError, match=f"1 of 'page' is task {words.task_id} of the type 'count-words'"):
        await here.submit(1, task_type="count-letters")
    assert await here.status(words) is LIVE
    letters = await here.submit(2, task_type="count-letters")
    assert (await here.status(words), await here.status(letters)) == (CANCELLED, LIVE)


async def test_one_of_two_types_that_submit_a_version_at_once_is_refused(here: Installation) -> None:
    """One of them stored the task, and died before it wrote the record."""
    failpoint.arm("version.after_insert", die)
    with pytest.raises(RuntimeError):
        await here.submit(1)
    failpoint.disarm()
    with pytest.raises(VersionConflictError):
        await here.submit(1, task_type="count-letters")
    [words] = (await here.store.list_tasks(EVERYONE, ALL, limit=10)).items
    assert (words.task_type, await here.begin(words) is not None) == ("count-words", True)


async def test_a_version_that_failed_may_be_of_another_type_the_next_time(here: Installation) -> None:
    fence = await here.begin(await here.submit(1))
    assert fence is not None
    await here.store.apply(Fail(fence, "worker-1", make_error(), False, NO_TIME))
    assert (await here.submit(1, task_type="count-letters")).task_type == "count-letters"


async def test_the_same_version_is_the_task_that_is_there(here: Installation) -> None:
    task = await here.submit(3)
    assert (await here.submit(3)).task_id == task.task_id
    fence = await here.begin(task)
    assert fence is not None
    assert (await here.submit(3)).task_id == task.task_id
    await here.store.apply(Complete(fence, "worker-1", {"words": 1}))
    again = await here.submit(3)
    assert (again.task_id, again.status) == (task.task_id, TaskStatus.COMPLETED)


async def test_a_version_that_failed_is_queued_again_under_another_id(here: Installation) -> None:
    task = await here.submit(3)
    fence = await here.begin(task)
    assert fence is not None
    await here.store.apply(Fail(fence, "worker-1", make_error(), False, NO_TIME))
    again = await here.submit(3)
    assert again.task_id != task.task_id
    assert (await here.submit(3)).task_id == again.task_id
    assert await here.begin(again) is not None


async def test_a_replayed_version_beside_its_next_run_does_not_begin(here: Installation) -> None:
    task = await here.submit(3)
    fence = await here.begin(task)
    assert fence is not None
    await here.store.apply(Fail(fence, "worker-1", make_error(), False, NO_TIME))
    again = await here.submit(3)
    await here.store.apply(Replay(task.task_id, EVERYONE, "operator", NO_TIME))
    assert await here.begin(task) is None
    assert (await here.status(task), await here.status(again)) == (CANCELLED, LIVE)


@pytest.mark.parametrize("on_running", ["leave", "cancel"])
async def test_a_running_version_continues_unless_the_newer_one_asks_to_cancel_it(
    here: Installation, on_running: Literal["leave", "cancel"]
) -> None:
    first = await here.submit(1)
    assert await here.begin(first) is not None
    await here.submit(2, on_running=on_running)
    running = await here.get(first)
    assert (running.status, running.cancel is not None) == (TaskStatus.RUNNING, on_running == "cancel")


@pytest.mark.parametrize("dies", [False, True])
async def test_a_version_that_cancels_asks_every_older_one_that_runs(here: Installation, dies: bool) -> None:
    running = []
    for version in (1, 2, 3):
        running.append(await here.submit(version))
        assert await here.begin(running[-1]) is not None
    if dies:
        failpoint.arm("version.after_record", die)
        with pytest.raises(RuntimeError):
            await here.submit(4, on_running="cancel")
        failpoint.disarm()
    fourth = await here.submit(4, on_running="cancel")
    assert all([(await here.get(task)).cancel is not None for task in running])
    await here.submit(5, on_running="cancel")
    newest = await read_newest(here.store, ANONYMOUS, "page")
    assert newest is not None
    assert newest.superseded == (fourth.task_id,), "it asks nobody for a second time"


@pytest.mark.parametrize("which", ["older", "newer"])
async def test_an_older_version_that_a_dead_submitter_left_is_ended_by_the_worker_that_gets_either(
    here: Installation, which: str
) -> None:
    first = await here.submit(1)
    failpoint.arm("version.after_record", die)
    with pytest.raises(RuntimeError):
        await here.submit(2)
    failpoint.disarm()
    assert await here.status(first) is LIVE
    if which == "older":
        assert await here.begin(first) is None
    else:
        assert await here.begin(await here.submit(2)) is not None
    assert await here.status(first) is CANCELLED


async def test_a_task_that_no_record_names_becomes_the_newest_when_it_begins(here: Installation) -> None:
    first = await here.submit(1)
    failpoint.arm("version.after_insert", die)
    with pytest.raises(RuntimeError):
        await here.submit(2)
    failpoint.disarm()
    [left] = [
        task for task in (await here.store.list_tasks(EVERYONE, ALL, limit=10)).items if task.task_id != first.task_id
    ]
    assert await here.begin(left) is not None
    assert await here.begin(first) is None
    with pytest.raises(NewerVersionError):
        await here.submit(1)


async def test_a_version_waits_for_a_newer_release_that_can_read_the_task_it_supersedes(
    here: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await here.submit(1)
    second = await here.submit(2)

    async def unreadable(transition: Transition) -> Task | None:
        raise TaskUnreadableError(transition.task_id, "a status of tomorrow")

    with monkeypatch.context() as patch:
        patch.setattr(here.store, "apply", unreadable)
        assert await here.begin(second) is None
        assert await here.begin(first) is None
    assert await here.begin(second) is not None


async def test_a_task_that_no_record_ever_named_is_ended_when_there_is_a_newer_one(here: Installation) -> None:
    failpoint.arm("version.after_insert", die)
    with pytest.raises(RuntimeError):
        await here.submit(1)
    failpoint.disarm()
    [left] = (await here.store.list_tasks(EVERYONE, ALL, limit=10)).items
    await here.submit(2)
    assert await here.status(left) is LIVE
    assert await here.begin(left) is None
    assert await here.status(left) is CANCELLED


async def test_no_older_version_begins_after_a_newer_one_was_accepted(
    here: Installation,
) -> None:
    accepted: list[int] = []
    begun: list[int] = []

    async def client() -> None:
        for version in random.sample(range(1, 21), 20):
            try:
                await here.submit(version)
                accepted.append(version)
            except NewerVersionError:
                continue

    async def worker() -> None:
        for _ in range(60):
            newest = max(accepted, default=0)
            page = await here.store.list_tasks(EVERYONE, ALL, limit=100)
            for task in page.items:
                if task.status is LIVE and task.unique is not None and await here.begin(task) is not None:
                    assert task.unique.version >= newest
                    begun.append(task.unique.version)
            await asyncio.sleep(0)

    await asyncio.gather(*(client() for _ in range(5)), worker(), worker())
    await worker()
    assert max(accepted) == 20
    assert 20 in begun
    assert len(set(begun)) == len(begun), "one task for each version"


async def test_a_key_is_for_versions_or_for_idempotency(here: Installation) -> None:
    request = SubmitRequest(
        task_type="count-words", parameters={"text": ""}, idempotency_key="k", unique={"key": "page", "version": 1}
    )
    with pytest.raises(InvalidRequestError, match="combined with idempotency_key"):
        await here.service.submit(request)
    for wrong in ({"key": "page"}, {"key": "", "version": 1}, {"key": "page", "version": -1}, {"version": "x"}):
        options: Any = {"unique": wrong}
        with pytest.raises(InvalidRequestError):
            await here.service.submit(SubmitRequest(task_type="count-words", parameters={"text": ""}, **options))


async def test_the_record_lives_as_long_as_its_task_and_a_while_longer(here: Installation) -> None:
    task = await here.submit(1)
    fence = await here.begin(task)
    assert fence is not None
    retention = RetentionRepair(here.store, finished=None, dead_letters=None, idempotency_keys=DAY, limit=10)
    for _ in range(3):
        here.clock.advance(3 * DAY.total_seconds())
        await retention.purge()
        assert await read_newest(here.store, "anonymous", "page") is not None, "its task still runs"
    await here.store.apply(Complete(fence, "worker-1", {"words": 1}))
    here.clock.advance(3 * DAY.total_seconds())
    await retention.purge()
    assert await read_newest(here.store, "anonymous", "page") is None


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_version_that_failed_is_queued_again_although_its_key_is_forgotten(
    here: Installation, failures: int
) -> None:
    for _ in range(failures):
        task = await here.submit(2)
        fence = await here.begin(task)
        assert fence is not None
        await here.store.apply(Fail(fence, "worker-1", make_error(), False, NO_TIME))
    await forget_keys(here)
    again = await here.submit(2)
    assert await here.status(again) is LIVE
    assert (await here.submit(2)).task_id == again.task_id
    assert await here.begin(again) is not None


async def test_a_superseded_lower_version_is_queued_again_when_its_key_is_forgotten(
    here: Installation,
) -> None:
    lower, higher = await here.submit(1), await here.submit(2)
    fence = await here.begin(higher)
    assert fence is not None
    await here.store.apply(Complete(fence, "worker-1", {"words": 1}))
    await forget_keys(here)
    again = await here.submit(1)
    assert (await here.status(lower), await here.status(again)) == (CANCELLED, LIVE)
    assert (await here.submit(2)).task_id == higher.task_id, "it has succeeded"
    assert await here.begin(again) is None, "the higher one was submitted after it"


async def forget_keys(here: Installation) -> None:
    """Let so much time pass that the keys of ended tasks are forgotten, and not the tasks."""
    here.clock.advance(3 * DAY.total_seconds())
    retention = RetentionRepair(here.store, finished=None, dead_letters=None, idempotency_keys=DAY, limit=10)
    await retention.purge()
    assert await read_newest(here.store, "anonymous", "page") is None


def request(key: str, version: int, **options: Any) -> SubmitRequest:
    return SubmitRequest(
        task_type="count-words", parameters={"text": key}, unique={"key": key, "version": version}, **options
    )


async def test_versions_of_one_key_submitted_together_keep_their_order(here: Installation) -> None:
    keys = [f"page-{number}" for number in range(150)]
    versions = (1, 3, 2)
    outcomes = await here.service.submit_many([request(key, version) for version in versions for key in keys])
    first, third, second = (outcomes[place * len(keys) : (place + 1) * len(keys)] for place in range(3))
    assert all(isinstance(outcome, NewerVersionError) for outcome in second)
    for key, old, new in zip(keys, first, third, strict=True):
        assert not isinstance(old, Exception)
        assert not isinstance(new, Exception)
        assert (old.task.parameters, new.task.parameters) == ({"text": key}, {"text": key})
        assert (await here.status(old.task), await here.status(new.task)) == (CANCELLED, LIVE)


@pytest.mark.parametrize("stream", [None, {"key": "s", "mode": "serial"}])
async def test_keys_are_stored_side_by_side_unless_a_stream_needs_their_order(
    here: Installation, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    insert, running, most = here.service._versions.insert, 0, 0

    async def counted(*arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await insert(*arguments)
        finally:
            running -= 1

    monkeypatch.setattr(here.service._versions, "insert", counted)
    options = {} if stream is None else {"stream": stream}
    keys = [f"page-{number}" for number in range(5)]
    outcomes = await here.service.submit_many([request(key, 1, **options) for key in keys])
    stored = [outcome.task for outcome in outcomes if not isinstance(outcome, Exception)]
    assert [task.parameters["text"] for task in stored] == keys
    assert most == (5 if stream is None else 1)
    if stream is not None:
        assert [task.stream.position for task in stored if task.stream is not None] == sorted(
            task.stream.position for task in stored if task.stream is not None
        )
