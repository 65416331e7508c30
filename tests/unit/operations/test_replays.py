"""Actions on many tasks: rates, stops, what is chosen; on a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError, ParentFinishedError
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.limits import limit_ids
from taskframework.model.message import rfc3339
from taskframework.model.query import CursorInvalidError, DeadMessage, TaskFilter
from taskframework.model.records import Record
from taskframework.model.replays import (
    REPLAY,
    RUNNING_ACTION,
    TAKEOVER_DELAY,
    BulkAction,
    BulkActionStatus,
    replay_view,
)
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, LimitWait, ParentLink, Subtasks
from taskframework.model.waiting import CountSubtasks
from taskframework.moves import TaskMoves
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.replay_carrier import ReplayCarrier
from taskframework.operations.replay_keys import ReplayConflictError, ReplayKeys
from taskframework.operations.replays import ReplayNotFoundError, ReplayOperations, ReplayRunningError
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.edits import Edits
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import SECOND, make_error, put, put_final, put_running

DAY = timedelta(days=1)


class Stage:
    """A store, what an operator may do, and a process that carries it on."""

    def __init__(self, store: SqliteStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.tasks = TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
        self.replays = ReplayOperations(store, ReplayKeys(store, DAY), DAY)
        self.carrier = ReplayCarrier(store, self.tasks, self.replays)

    async def dead(self, number: int, **fields: Any) -> list[Task]:
        usual = {"error": replace(make_error("it broke"), fingerprint="cause")}
        return [await put_final(self.store, TaskStatus.FAILED, **(usual | fields)) for _ in range(number)]

    async def begin(self, action: Action = Action.REPLAY, rate: float | None = None, **where: Any) -> BulkAction:
        return await self.replays.begin(action, ActionFilter(**where), by="ada", rate=rate, reason="mended")

    async def run_once(self, replay: BulkAction) -> BulkAction:
        """One process looks, until nothing is due at the time that it is."""
        while await self.carrier.run_once():
            pass
        return await self.replays.get(replay.replay_id)

    async def in_status(self, status: TaskStatus) -> int:
        return len((await self.store.list_tasks(EVERYONE, TaskFilter(status), limit=500)).items)


@pytest.fixture
def stage(store: SqliteStore, clock: FakeClock) -> Stage:
    return Stage(store, clock)


async def test_every_chosen_task_is_queued_again_with_the_id_of_the_replay(stage: Stage) -> None:
    chosen = await stage.dead(120)
    [other] = await stage.dead(1, error=make_error("another cause"))
    replay = await stage.run_once(await stage.begin(fingerprint="cause"))
    assert (replay.status, replay.total, replay.done, replay.refused) == (BulkActionStatus.DONE, 120, 120, 0)
    for task in chosen[::40]:
        queued = await stage.tasks.get(task.task_id, EVERYONE)
        assert (queued.status, queued.generation) == (TaskStatus.QUEUED, 1)
        assert queued.history[-1].data == {"by": "ada", "reason": "mended", "replay_id": replay.replay_id}
    assert (await stage.tasks.get(other.task_id, EVERYONE)).status is TaskStatus.FAILED
    assert await stage.store.list_records(RUNNING_ACTION.name, limit=5) == [], "nobody looks at it any more"


@pytest.mark.parametrize("is_one", [True, False])
async def test_a_sub_task_whose_parent_ends_while_it_is_replayed_is_refused(stage: Stage, is_one: bool) -> None:
    async def end_parent() -> None:
        assert await stage.store.apply(CountSubtasks.of(parent, Counts(failed=1))) is not None

    waits = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": stage.store.now() + DAY}
    parent = await put(stage.store, **waits, subtasks=Subtasks(1, None, policy="allow_failures"))
    [failed] = await stage.dead(1, parent=ParentLink(parent.task_id, 0, 0))
    letters = DeadLetterOperations(stage.store, stage.tasks, cast(Edits, None), ReplayKeys(stage.store, DAY))
    failpoint.arm("replay.after_write", end_parent)
    try:
        if is_one:
            [outcome] = await letters.replay([failed.task_id], EVERYONE, by="ada")
            assert isinstance(outcome.problem, ParentFinishedError)
        else:
            replay = await stage.run_once(await stage.begin(fingerprint="cause"))
            assert (replay.done, replay.refused) == (0, 1)
    finally:
        failpoint.disarm("replay.after_write")


async def test_the_tasks_that_wait_for_one_key_of_a_limit_are_cancelled(stage: Stage) -> None:
    for key in ("acme", "acme", "other"):
        wait = LimitWait(limit_ids(f"openai/{key}")[0], 1, stage.store.now() + DAY)
        await put(stage.store, task_type="charge", waits_for_limit=wait)
    await put(stage.store, task_type="charge")
    cancel = await stage.run_once(await stage.begin(Action.CANCEL, task_type="charge", waits_for_limit="openai/acme"))
    assert (cancel.status, cancel.total, cancel.done) == (BulkActionStatus.DONE, 2, 2)
    assert await stage.in_status(TaskStatus.QUEUED) == 2


async def test_a_rate_is_kept_and_a_stopped_action_counts_what_it_did(stage: Stage) -> None:
    await stage.dead(50)
    replay = await stage.begin(rate=10, fingerprint="cause")
    done = []
    for _ in range(3):
        done.append((await stage.run_once(replay)).done)
        stage.clock.advance(SECOND)
    assert done == [10, 20, 30]
    stopped = await stage.replays.stop(replay.replay_id)
    assert (stopped.status, stopped.done, stopped.total) == (BulkActionStatus.STOPPED, 30, 50)
    assert stopped.remaining == 20
    stage.clock.advance(DAY)
    assert await stage.run_once(replay) == stopped
    assert (await stage.in_status(TaskStatus.QUEUED), await stage.in_status(TaskStatus.FAILED)) == (30, 20)
    assert await stage.replays.stop(replay.replay_id) == stopped, "once more changes nothing"
    view = replay_view(stopped)
    assert (view["status"], view["done"], view["remaining"]) == ("STOPPED", 30, 20)
    assert (view["reason"], view["filter"]) == ("mended", {"fingerprint": "cause"})


@pytest.mark.parametrize(("rate", "after_a_minute"), [(0.5, 30), (7, 420), (300, 450)])
async def test_no_rate_is_exceeded_and_slow_looks_do_not_slow_it_down(
    stage: Stage, rate: float, after_a_minute: int
) -> None:
    await stage.dead(450)
    replay, seconds = await stage.begin(rate=rate, fingerprint="cause"), 0.0
    while seconds < 60:
        done = (await stage.run_once(replay)).done
        assert done <= rate * (seconds + 1) + 1
        stage.clock.advance(timedelta(seconds=1.25))
        seconds += 1.25
    assert done >= after_a_minute * 0.9


@pytest.mark.parametrize("rate", [1e-13, 5e-324])
async def test_an_action_at_a_very_low_rate_does_its_first_task_at_once(stage: Stage, rate: float) -> None:
    await stage.dead(2)
    replay = await stage.run_once(await stage.begin(rate=rate, fingerprint="cause"))
    assert (replay.done, replay.status) == (1, BulkActionStatus.RUNNING)


async def test_an_action_does_not_exceed_its_rate_after_a_standstill(stage: Stage) -> None:
    await stage.dead(100)
    replay = await stage.begin(rate=10, fingerprint="cause")
    assert (await stage.run_once(replay)).done == 10
    stage.clock.advance(DAY)
    assert (await stage.run_once(replay)).done <= 30


async def test_actions_are_listed_page_by_page_from_the_newest_on(stage: Stage) -> None:
    begun = []
    for n in range(5):
        begun.append(await stage.begin(text=str(n)))
        stage.clock.advance(SECOND)
    # Its id is made of its key, and not of the time.
    keyed = await stage.replays.begin(Action.CANCEL, ActionFilter(text="x"), by="ada", key="k")
    begun.append(keyed)
    found: list[BulkAction] = []
    cursor = None
    while True:
        page = await stage.replays.list_replays(limit=2, cursor=cursor)
        found += page.items
        if (cursor := page.next_cursor) is None:
            break
    assert found == begun[::-1]
    with pytest.raises(CursorInvalidError):
        await stage.replays.list_replays(limit=2, cursor="gone")


@pytest.mark.parametrize(
    "other",
    [
        {"action": Action.DISCARD},
        {"where": ActionFilter(fingerprint="another")},
        {"rate": 5.0},
        {"reopen": True},
    ],
)
async def test_a_key_stands_for_one_action_and_no_other(stage: Stage, other: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {
        "action": Action.REPLAY,
        "where": ActionFilter(fingerprint="cause"),
        "by": "ada",
        "key": "k",
    }
    first = await stage.replays.begin(**wanted)
    stage.clock.advance(SECOND)
    assert await stage.replays.begin(**wanted | {"reason": "once more"}) == first
    with pytest.raises(ReplayConflictError, match=first.replay_id):
        await stage.replays.begin(**wanted | other)
    by_bob = await stage.replays.begin(**wanted | other | {"by": "bob"})
    assert by_bob.replay_id != first.replay_id, "keys are each operator's own"
    ended = await stage.run_once(first)
    with pytest.raises(ReplayConflictError):
        await stage.replays.begin(**wanted | other)
    assert await stage.replays.begin(**wanted) == ended


@pytest.mark.parametrize(
    ("action", "status", "possible"),
    [
        (Action.CANCEL, TaskStatus.COMPLETED, "QUEUED, RUNNING, RETRYING, WAITING, BLOCKED"),
        (Action.RETRY, TaskStatus.RUNNING, "RETRYING, FAILED, DEAD_LETTER, CANCELLED"),
    ],
)
async def test_tasks_with_which_it_cannot_be_done_are_not_counted_but_refused(
    stage: Stage, action: Action, status: TaskStatus, possible: str
) -> None:
    await put_final(stage.store, TaskStatus.COMPLETED)
    with pytest.raises(InvalidRequestError) as refused:
        await stage.replays.count_of(action, ActionFilter(status=status))
    assert refused.value.hint is not None
    assert set(refused.value.hint.removeprefix("Choose one of ").rstrip(".").split(", ")) == set(possible.split(", "))
    with pytest.raises(InvalidRequestError):
        await stage.begin(action, status=status)
    assert (await stage.replays.list_replays(limit=5)).items == ()


async def test_a_reason_that_no_task_accepts_begins_nothing(stage: Stage) -> None:
    """The action was stored, and each of its tasks failed."""
    await stage.dead(1)
    with pytest.raises(InvalidRequestError, match="at most 1,000 characters, not 1,500"):
        await stage.replays.begin(Action.REPLAY, ActionFilter(), by="ada", reason="x" * 1500)
    assert (await stage.replays.list_replays(limit=5)).items == ()


async def test_an_action_that_is_started_twice_runs_once(stage: Stage) -> None:
    await stage.dead(30)
    # The store cannot tell two that begin at once; here they begin by filters that find the same.
    first, second = await stage.begin(fingerprint="cause"), await stage.begin(fingerprint="cause", kind="task")
    after = [await stage.run_once(replay) for replay in (first, second)]
    assert sum(replay.done for replay in after) == 30
    tasks = (await stage.store.list_tasks(EVERYONE, TaskFilter(), limit=500)).items
    assert {task.generation for task in tasks} == {1}


async def test_the_same_action_is_not_begun_while_it_runs(stage: Stage) -> None:
    await stage.dead(30)
    first = await stage.run_once(await stage.begin(rate=10, fingerprint="cause"))
    assert await stage.begin(rate=10, fingerprint="cause") == first
    with pytest.raises(ReplayRunningError) as refused:
        await stage.begin(fingerprint="cause")
    begun = f"{first.replay_id}, begun by ada at {rfc3339(first.at)}; 10 of 30 are done."
    assert str(refused.value).startswith(f"The same replay is running: {begun} Let it finish.")
    assert f"`taskframework replays stop {first.replay_id}`" in str(refused.value)
    others = [await stage.begin(task_type="test-task"), await stage.begin(Action.DISCARD, fingerprint="cause")]
    assert len({first.replay_id, *(other.replay_id for other in others)}) == 3
    await stage.replays.stop(first.replay_id)
    assert (await stage.begin(fingerprint="cause")).replay_id != first.replay_id


async def test_one_key_of_one_caller_is_one_action(stage: Stage) -> None:
    await stage.dead(3)
    begin = stage.replays.begin
    first = await begin(Action.REPLAY, ActionFilter(fingerprint="cause"), by="ada", key="k")
    done = await stage.run_once(first)
    assert await begin(Action.REPLAY, ActionFilter(fingerprint="cause"), by="ada", key="k") == done
    assert (
        await begin(Action.REPLAY, ActionFilter(fingerprint="cause"), by="bob", key="k")
    ).replay_id != first.replay_id


@pytest.mark.parametrize("status", [None, TaskStatus.FAILED])
async def test_a_discarded_task_is_not_retried_with_others(stage: Stage, status: TaskStatus | None) -> None:
    given_up, other = await stage.dead(2)
    await stage.tasks.discard(given_up.task_id, EVERYONE, by="ada", reason="orders of a test")
    where = ActionFilter(fingerprint="cause", status=status)
    assert (await stage.replays.count_of(Action.RETRY, where)).number == 1
    ended = await stage.run_once(await stage.replays.begin(Action.RETRY, where, by="ada"))
    assert (ended.done, ended.refused, ended.failed) == (1, 0, 0)
    seen = [(await stage.tasks.get(task.task_id, EVERYONE)).status for task in (given_up, other)]
    assert seen == [TaskStatus.FAILED, TaskStatus.QUEUED]


async def test_a_key_that_joined_a_running_action_stands_for_it_also_when_it_has_ended(stage: Stage) -> None:
    await stage.dead(3)
    wanted: dict[str, Any] = {"action": Action.REPLAY, "where": ActionFilter(fingerprint="cause"), "by": "ada"}
    running = await stage.replays.begin(**wanted)
    assert await stage.replays.begin(**wanted, key="k") == running
    with pytest.raises(ReplayConflictError):
        await stage.replays.begin(**wanted | {"rate": 5.0}, key="k")
    ended = await stage.run_once(running)
    assert await stage.replays.begin(**wanted, key="k") == ended
    assert len((await stage.replays.list_replays(limit=5)).items) == 1


async def test_who_corrects_a_refused_action_may_use_the_key_again(stage: Stage) -> None:
    begin = stage.replays.begin
    with pytest.raises(InvalidRequestError):
        await begin(Action.RETRY, ActionFilter(status=TaskStatus.RUNNING), by="ada", key="k")
    corrected = await begin(Action.RETRY, ActionFilter(status=TaskStatus.CANCELLED), by="ada", key="k")
    assert corrected.where.status is TaskStatus.CANCELLED


async def test_a_task_that_fails_during_the_replay_is_not_replayed(stage: Stage) -> None:
    await stage.dead(20)
    replay = await stage.begin(rate=10, fingerprint="cause")
    await stage.run_once(replay)
    stage.clock.advance(SECOND)
    [again] = await stage.dead(1, finished_at=stage.store.now())
    after = await stage.run_once(replay)
    stage.clock.advance(SECOND)
    after = await stage.run_once(replay)
    assert (after.status, after.done) == (BulkActionStatus.DONE, 20)
    assert (await stage.tasks.get(again.task_id, EVERYONE)).status is TaskStatus.FAILED


async def test_a_refused_task_is_reported_and_the_others_are_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = await stage.dead(12)
    replay = await stage.begin(rate=1, fingerprint="cause")

    async def refuse(name: str, *_: Any, **__: Any) -> Task:
        if name == first.task_id:
            return await stage.tasks.get("no such task", EVERYONE)
        return await retry(name, *_, **__)

    retry = stage.tasks.retry
    monkeypatch.setattr(stage.tasks, "retry", refuse)
    for _ in range(13):
        after = await stage.run_once(replay)
        stage.clock.advance(SECOND)
    assert (after.status, after.done, after.refused, after.failed) == (BulkActionStatus.DONE, 11, 1, 0)
    [refused] = after.refusals
    assert refused.id == first.task_id


async def test_live_tasks_are_cancelled_wherever_they_are(stage: Stage) -> None:
    live = [await put(stage.store, task_type="mail", status=status) for status in (TaskStatus.QUEUED,) * 3]
    running, _ = await put_running(stage.store, task_type="mail")
    other = await put(stage.store, task_type="sms")
    await put(stage.store, task_type="mail", batch=Batch(), status=TaskStatus.WAITING)
    replay = await stage.run_once(await stage.begin(Action.CANCEL, task_type="mail"))
    assert (replay.status, replay.done, replay.total) == (BulkActionStatus.DONE, 4, 4)
    statuses = [(await stage.tasks.get(task.task_id, EVERYONE)).status for task in (*live, running, other)]
    assert statuses == [*[TaskStatus.CANCELLED] * 3, TaskStatus.RUNNING, TaskStatus.QUEUED]
    asked = (await stage.tasks.get(running.task_id, EVERYONE)).cancel
    assert asked is not None
    assert (asked.by, asked.reason) == ("ada", "mended")


async def test_a_task_submitted_after_the_action_began_is_not_cancelled(stage: Stage, clock: FakeClock) -> None:
    before = await put(stage.store, task_type="mail")
    replay = await stage.begin(Action.CANCEL, task_type="mail", created_before=stage.store.now() + DAY)
    clock.advance(0.001)
    after = await put(stage.store, task_type="mail")
    replay = await stage.run_once(replay)
    statuses = [(await stage.tasks.get(task.task_id, EVERYONE)).status for task in (before, after)]
    assert (replay.done, statuses) == (1, [TaskStatus.CANCELLED, TaskStatus.QUEUED])


async def test_a_task_that_somebody_else_changed_first_is_counted_as_skipped(stage: Stage) -> None:
    first, *_ = await stage.dead(3)
    replay = await stage.begin()
    await stage.tasks.retry(first.task_id, EVERYONE, by="bob", reason=None)
    assert replay.skipped == 0
    replay = await stage.run_once(replay)
    assert (replay.status, replay.total, replay.done, replay.skipped) == (BulkActionStatus.DONE, 3, 2, 1)
    assert replay_view(replay)["skipped"] == 1


@pytest.mark.parametrize("moment", ["before its turn", "during it"])
@pytest.mark.parametrize("action", [Action.REPLAY, Action.RETRY, Action.DISCARD, Action.CANCEL])
async def test_a_task_that_somebody_else_changes_at_any_moment_is_skipped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, action: Action, moment: str
) -> None:
    if action is Action.CANCEL:
        first, *_ = [await put(stage.store) for _ in range(3)]
    else:
        first, *_ = await stage.dead(3)
    replay = await stage.begin(action, task_type="test-task")
    verb = {Action.DISCARD: "discard", Action.CANCEL: "cancel"}.get(action, "retry")
    change = getattr(stage.tasks, verb)

    async def be_faster() -> None:
        await change(first.task_id, EVERYONE, by="bob", reason=None)

    async def is_late(name: str, *scope: Any, **options: Any) -> Task:
        if name == first.task_id:
            await be_faster()
        return cast(Task, await change(name, *scope, **options))

    if moment == "during it":
        monkeypatch.setattr(stage.tasks, verb, is_late)
    else:
        failpoint.arm("replays.after_take", be_faster)
    try:
        await stage.carrier.run_once()
    finally:
        failpoint.disarm("replays.after_take")
    after = await stage.run_once(replay)
    assert (after.status, after.total, after.done, after.skipped) == (BulkActionStatus.DONE, 3, 2, 1)
    assert (after.refused, after.refusals) == (0, ())


async def test_a_task_that_a_rule_does_not_let_replay_is_refused_with_the_reason(stage: Stage) -> None:
    await stage.dead(2)
    parent = await put_final(stage.store, TaskStatus.COMPLETED)
    [child] = await stage.dead(1, parent=ParentLink(parent.task_id, 0, 0))
    after = await stage.run_once(await stage.begin())
    assert (after.total, after.done, after.refused, after.skipped) == (3, 2, 1, 0)
    [refused] = after.refusals
    assert (refused.id, "it cannot be retried alone" in refused.problem) == (child.task_id, True)


async def test_failed_and_dead_tasks_are_retried_and_cancelled_ones_if_they_are_asked_for(stage: Stage) -> None:
    await stage.dead(2)
    await put_final(stage.store, TaskStatus.DEAD_LETTER)
    await put_final(stage.store, TaskStatus.CANCELLED)
    replay = await stage.run_once(await stage.begin(Action.RETRY, task_type="test-task"))
    assert (replay.done, await stage.in_status(TaskStatus.QUEUED)) == (3, 3)
    replay = await stage.run_once(await stage.begin(Action.RETRY, status=TaskStatus.CANCELLED))
    assert (replay.done, await stage.in_status(TaskStatus.QUEUED)) == (1, 4)


async def test_tasks_that_are_retried_later_are_tried_at_once(stage: Stage, clock: FakeClock) -> None:
    later = {"status": TaskStatus.RETRYING, "attempts": 1, "not_before": stage.store.now() + DAY}
    tasks = [await put(stage.store, **later, next_dispatch_at=stage.store.now() + DAY) for _ in range(3)]
    clock.advance(1)
    replay = await stage.run_once(await stage.begin(Action.RETRY, status=TaskStatus.RETRYING))
    assert (replay.status, replay.done, replay.total) == (BulkActionStatus.DONE, 3, 3)
    for task in [await stage.tasks.get(task.task_id, EVERYONE) for task in tasks]:
        assert (task.status, task.attempts, task.not_before) == (TaskStatus.RETRYING, 1, stage.store.now())
        assert task.history[-1].data == {"by": "ada", "reason": "mended", "replay_id": replay.replay_id}


async def test_discarding_takes_messages_too(stage: Stage) -> None:
    now = stage.store.now()
    for n in range(5):
        await stage.store.keep_dead_message(DeadMessage(f"m-{n}", b"x", {}, "q", f"Message: not JSON ({n})", now))
    await stage.store.keep_dead_message(DeadMessage("other", b"x", {}, "q", "no task", now))
    await stage.dead(3)
    replay = await stage.run_once(await stage.begin(Action.DISCARD, text="JSON"))
    assert (replay.status, replay.done, replay.total) == (BulkActionStatus.DONE, 5, 5)
    assert [message.id for message in await stage.store.outline_dead_messages(limit=9)] == ["other"]
    replay = await stage.run_once(await stage.begin(Action.DISCARD, kind="task"))
    assert replay.done == 3
    assert (await stage.store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=9)).items == ()


async def test_an_action_for_a_user_chooses_only_the_tasks_of_that_user(stage: Stage) -> None:
    await stage.dead(2, user_id="alice")
    await stage.dead(3, user_id="bob")
    replay = await stage.run_once(await stage.begin(user_id="bob"))
    assert (replay.total, replay.done) == (3, 3)


async def test_tasks_are_chosen_by_when_they_ended_or_were_submitted(stage: Stage) -> None:
    now = stage.store.now()
    for age in range(4):
        await stage.dead(1, finished_at=now - age * SECOND)
        message = DeadMessage(f"m-{age}", b"x", {}, "q", "not JSON", now - age * SECOND)
        await stage.store.keep_dead_message(message)
    times: dict[str, Any] = {"finished_after": now - 2 * SECOND, "finished_before": now}
    replay = await stage.run_once(await stage.begin(Action.DISCARD, **times))
    assert (replay.total, replay.done) == (4, 4)
    assert {message.id for message in await stage.store.outline_dead_messages(limit=9)} == {"m-0", "m-3"}
    assert replay.where.conditions["finished_before"] == rfc3339(now)

    tasks = [await put(stage.store, created_at=now - age * SECOND) for age in range(4)]
    times = {"created_after": now - 2 * SECOND, "created_before": now}
    replay = await stage.run_once(await stage.begin(Action.CANCEL, **times))
    statuses = [(await stage.tasks.get(task.task_id, EVERYONE)).status for task in tasks]
    assert [status is TaskStatus.CANCELLED for status in statuses] == [False, True, True, False]


async def test_an_unknown_action_is_not_found(stage: Stage) -> None:
    for ask in (stage.replays.get, stage.replays.stop):
        with pytest.raises(ReplayNotFoundError):
            await ask("unknown")


@pytest.mark.parametrize("deletes_late", [False, True])
async def test_an_action_that_is_written_late_is_carried_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, deletes_late: bool
) -> None:
    """The process pauses between mark and action, for so long that a carrier takes the mark for a dead one's."""
    await stage.dead(3)
    write_records, delete_records = stage.store.write_records, stage.store.delete_records
    looking: list[asyncio.Task[bool]] = []
    may_delete, looked = asyncio.Event(), asyncio.Event()

    async def write_late(records: Sequence[Record]) -> Sequence[Record | None]:
        if records[0].kind == REPLAY.name and not looking:
            stage.clock.advance(2 * TAKEOVER_DELAY)
            looking.append(asyncio.create_task(stage.carrier.run_once()))
            await (looked.wait() if deletes_late else looking[0])
        return await write_records(records)

    async def delete_late(records: Sequence[Record]) -> int:
        looked.set()
        if deletes_late:
            await may_delete.wait()
        return await delete_records(records)

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "write_records", write_late)
        patch.setattr(stage.store, "delete_records", delete_late)
        replay = await stage.begin(fingerprint="cause")
        may_delete.set()
        await looking[0]
    assert (await stage.run_once(replay)).status is BulkActionStatus.DONE


async def test_a_mark_without_its_action_is_taken_away(stage: Stage) -> None:
    replay = await stage.begin(fingerprint="cause")
    [record] = (await stage.store.read_records([f"replay/{replay.replay_id}"])).values()
    await stage.store.delete_records([record])
    await stage.carrier.run_once()
    assert len(await stage.store.list_records(RUNNING_ACTION.name, limit=5)) == 1, "it may be about to come"
    stage.clock.advance(timedelta(minutes=1))
    await stage.carrier.run_once()
    assert await stage.store.list_records(RUNNING_ACTION.name, limit=5) == []
