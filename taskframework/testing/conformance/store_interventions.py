"""Store suite: what others than the running code do to a task."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taskframework.model.interventions import Cancel, Expire, Postpone, Reap, Replay
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import AT_REST, CLAIMABLE, FINAL, LIVE, REPLAYABLE, TaskStatus
from taskframework.model.task import CancelRequest, new_task_id
from taskframework.model.transitions import DEADLINE, Fail, Transition
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    EXPIRED,
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    an_error,
    claimed,
    moved,
    put,
    put_final,
    put_running,
    refused,
)

NO_TIME = timedelta(0)


def _reap(task_id: str, *, token: int = 1, grace: timedelta | None = NO_TIME, max_crashes: int = 3) -> Reap:
    return Reap(task_id, token, grace, max_crashes, MINUTE)


class ReapCases(StoreSuite):
    """What `Reap` promises: never early, never twice, and a poison task is stopped."""

    async def test_the_first_crash_is_retried_at_once(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=EXPIRED)
        reaped = await moved(store, _reap(task.task_id))
        assert (reaped.status, reaped.crashes, reaped.lease) == (TaskStatus.RETRYING, 1, None)
        assert reaped.not_before <= store.now() + 5 * SECOND
        assert reaped.error is not None
        assert reaped.error.code == "lease_expired"

    async def test_later_crashes_wait(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=EXPIRED, crashes=1)
        reaped = await moved(store, _reap(task.task_id))
        assert reaped.not_before > store.now() + MINUTE / 2

    async def test_a_poison_task_is_a_dead_letter(self, store: TaskStore) -> None:
        task = await put(store, max_attempts=100)
        for crash in range(1, 4):
            await claimed(store, task, lease=EXPIRED)
            task = await moved(store, Reap(task.task_id, crash, NO_TIME, 3, EXPIRED))
        assert (task.status, task.crashes) == (TaskStatus.DEAD_LETTER, 3)

    async def test_the_last_attempt_is_a_dead_letter(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=EXPIRED, attempts=2, max_attempts=2)
        assert (await moved(store, _reap(task.task_id))).status is TaskStatus.DEAD_LETTER

    @pytest.mark.parametrize(("by", "status"), [("alice", TaskStatus.CANCELLED), (DEADLINE, TaskStatus.FAILED)])
    async def test_a_cancelled_task_ends(self, store: TaskStore, by: str, status: TaskStatus) -> None:
        cancel = CancelRequest(by, store.now(), None)
        task, _ = await put_running(store, lease=EXPIRED, cancel=cancel)
        assert (await moved(store, _reap(task.task_id))).status is status

    async def test_a_live_lease_is_left_alone(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=HOUR)
        await refused(store, _reap(task.task_id))

    async def test_a_live_lease_of_a_worker_that_is_known_to_be_dead_is_taken(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=HOUR)
        assert (await moved(store, _reap(task.task_id, grace=None))).status is TaskStatus.RETRYING
        await refused(store, _reap(task.task_id, grace=None))

    async def test_a_lease_is_left_alone_during_the_grace(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=-MINUTE)
        await refused(store, _reap(task.task_id, grace=2 * MINUTE))
        await moved(store, _reap(task.task_id, grace=MINUTE / 2))

    async def test_a_lease_ends_when_its_time_has_come(self, store: TaskStore) -> None:
        task, _ = await claimed(store, await put(store), lease=timedelta(seconds=0.2))
        await self.pass_time(0.3)
        await moved(store, _reap(task.task_id))

    async def test_the_guard_is_repeated_in_the_write(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=EXPIRED)
        retrying = await moved(store, Reap(task.task_id, 1, NO_TIME, 3, EXPIRED))
        await refused(store, _reap(task.task_id))
        await claimed(store, retrying, lease=EXPIRED)
        await refused(store, _reap(task.task_id, token=1))
        await refused(store, _reap(task.task_id, token=3))

    async def test_of_many_reapers_one_reaps(self, store: TaskStore) -> None:
        task, _ = await put_running(store, lease=EXPIRED)
        replies = await asyncio.gather(*(store.apply(_reap(task.task_id)) for _ in range(10)))
        assert sum(reply is not None for reply in replies) == 1


class CancelCases(StoreSuite):
    """What `Cancel` and `Expire` promise."""

    async def test_a_task_at_rest_is_cancelled_at_once(self, store: TaskStore) -> None:
        for status in AT_REST:
            task = await put(store, status=status)
            after = await moved(store, Cancel(task.task_id, EVERYONE, "alice", "not needed"))
            assert (after.status, after.next_dispatch_at) == (TaskStatus.CANCELLED, None)
            assert after.history[-1].data == {"by": "alice", "reason": "not needed"}

    async def test_a_running_task_is_asked_to_stop(self, store: TaskStore) -> None:
        task, _ = await put_running(store)
        after = await moved(store, Cancel(task.task_id, EVERYONE, "alice", None))
        assert (after.status, after.history[-1].type) == (TaskStatus.RUNNING, "cancel_requested")
        assert after.lease == task.lease
        await refused(store, Cancel(task.task_id, EVERYONE, "bob", None))

    async def test_a_finished_task_is_not_cancelled(self, store: TaskStore) -> None:
        for status in FINAL:
            task = await put_final(store, status)
            await refused(store, Cancel(task.task_id, EVERYONE, "alice", None))

    async def test_only_its_owner_cancels_a_task(self, store: TaskStore) -> None:
        task = await put(store, user_id="alice")
        await refused(store, Cancel(task.task_id, Scope.of("bob"), "bob", None))
        await refused(store, Cancel(task.task_id, Scope.of(""), "bob", None))
        await moved(store, Cancel(task.task_id, Scope.of("alice"), "alice", None))

    async def test_a_cancel_of_nothing_is_refused(self, store: TaskStore) -> None:
        assert await store.apply(Cancel(new_task_id(), EVERYONE, "alice", None)) is None

    async def test_a_task_at_rest_fails_at_its_deadline(self, store: TaskStore) -> None:
        for status in AT_REST:
            task = await put(store, status=status, deadline=store.now() - MINUTE)
            after = await moved(store, Expire(task.task_id))
            assert after.status is TaskStatus.FAILED
            assert after.error is not None
            assert after.error.code == "deadline"
            await refused(store, Expire(task.task_id))

    async def test_a_running_task_is_asked_to_stop_at_its_deadline(self, store: TaskStore) -> None:
        task, _ = await put_running(store, deadline=store.now() - MINUTE)
        after = await moved(store, Expire(task.task_id))
        assert after.cancel is not None
        assert (after.status, after.cancel.by) == (TaskStatus.RUNNING, DEADLINE)
        await refused(store, Expire(task.task_id))

    async def test_without_a_passed_deadline_nothing_expires(self, store: TaskStore) -> None:
        for status in LIVE:
            await refused(store, Expire((await put(store, status=status)).task_id))
            later = await put(store, status=status, deadline=store.now() + HOUR)
            await refused(store, Expire(later.task_id))

    async def test_a_finished_task_does_not_expire(self, store: TaskStore) -> None:
        for status in FINAL:
            task = await put_final(store, status, deadline=store.now() - MINUTE)
            await refused(store, Expire(task.task_id))


class PostponeCases(StoreSuite):
    """What `Postpone` promises to a task nobody here can run."""

    async def test_it_is_tried_again_later(self, store: TaskStore) -> None:
        for status in CLAIMABLE:
            task = await put(store, status=status)
            after = await moved(store, Postpone(task.task_id, 1, MINUTE, 2))
            assert (after.status, after.no_handler, after.sequence) == (status, 1, task.sequence)
            assert after.next_dispatch_at is not None
            assert after.next_dispatch_at > store.now() + MINUTE / 2

    async def test_over_the_limit_it_is_a_dead_letter(self, store: TaskStore) -> None:
        task = await put(store)
        for _ in range(2):
            assert (await moved(store, Postpone(task.task_id, 1, MINUTE, 2))).status is TaskStatus.QUEUED
        after = await moved(store, Postpone(task.task_id, 1, MINUTE, 2))
        assert after.status is TaskStatus.DEAD_LETTER
        assert after.error is not None
        assert after.error.code == "no_handler"

    async def test_only_a_waiting_task_is_postponed(self, store: TaskStore) -> None:
        for status in set(TaskStatus) - CLAIMABLE:
            task = await put(store, status=status)
            await refused(store, Postpone(task.task_id, 1, MINUTE, 2))

    async def test_an_old_message_postpones_nothing(self, store: TaskStore) -> None:
        task = await put(store, dispatch_epoch=2)
        await refused(store, Postpone(task.task_id, 1, MINUTE, 2))

    async def test_a_claim_forgets_the_count(self, store: TaskStore) -> None:
        task = await put(store)
        running, _ = await claimed(store, await moved(store, Postpone(task.task_id, 1, MINUTE, 2)))
        assert running.no_handler == 0


class ReplayCases(StoreSuite):
    """What `Replay` promises: a new generation with a new budget, whose old writers are still shut out."""

    async def test_an_ended_task_is_queued_anew(self, store: TaskStore) -> None:
        cancel = CancelRequest("alice", store.now(), None)
        spent = {"attempts": 5, "crashes": 2, "releases": 1, "no_handler": 3, "fencing_token": 5, "cancel": cancel}
        for status in REPLAYABLE:
            task = await put_final(store, status, error=an_error(), progress=1, purge_at=store.now() + HOUR, **spent)
            after = await moved(store, Replay(task.task_id, EVERYONE, "operator", 5 * SECOND))
            assert (after.status, after.generation, after.fencing_token) == (TaskStatus.QUEUED, 1, 5)
            assert (after.attempts, after.error, after.cancel, after.finished_at) == (0, None, None, None)
            assert after.history[-1].data == {"by": "operator"}
            running, _ = await claimed(store, after)
            assert (running.fencing_token, running.attempts) == (6, 1)

    async def test_no_other_task_is_replayed(self, store: TaskStore) -> None:
        for status in set(TaskStatus) - REPLAYABLE:
            task = await put(store, status=status)
            await refused(store, Replay(task.task_id, EVERYONE, "operator", 5 * SECOND))

    async def test_only_its_owner_replays_a_task(self, store: TaskStore) -> None:
        task = await put_final(store, TaskStatus.FAILED, user_id="alice")
        await refused(store, Replay(task.task_id, Scope.of("bob"), "bob", 5 * SECOND))
        await moved(store, Replay(task.task_id, Scope.of("alice"), "alice", 5 * SECOND))

    async def test_a_replay_of_what_has_changed_since_is_refused(self, store: TaskStore) -> None:
        task = await put_final(store, TaskStatus.FAILED)
        await refused(store, Replay(task.task_id, EVERYONE, "operator", SECOND, revision=task.revision + 1))
        await moved(store, Replay(task.task_id, EVERYONE, "operator", SECOND, revision=task.revision))

    async def test_of_many_replays_one_wins(self, store: TaskStore) -> None:
        task = await put_final(store, TaskStatus.DEAD_LETTER)
        replays: list[Transition] = [Replay(task.task_id, EVERYONE, "operator", SECOND) for _ in range(10)]
        replies = await asyncio.gather(*(store.apply(replay) for replay in replays))
        assert sum(reply is not None for reply in replies) == 1

    async def test_a_zombie_of_the_old_generation_is_shut_out(self, store: TaskStore) -> None:
        task, zombie = await put_running(store, lease=EXPIRED, attempts=5)
        await moved(store, _reap(task.task_id))
        replayed = await moved(store, Replay(task.task_id, EVERYONE, "operator", SECOND))
        await claimed(store, replayed)
        await refused(store, Fail(zombie, "worker-1", an_error(), True, NO_TIME))
