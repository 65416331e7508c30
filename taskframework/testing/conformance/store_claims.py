"""Store suite: claims and heartbeats."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from taskframework.model.attempts import Complete, Fail
from taskframework.model.interventions import Cancel, Reap
from taskframework.model.marks import RenewLease
from taskframework.model.scope import EVERYONE
from taskframework.model.task import new_claim_id, new_task_id
from taskframework.model.transitions import Fence
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import (
    EXPIRED,
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    claim_task,
    expect_refusal,
    make_claim,
    make_error,
    make_move,
    put,
    put_running,
    read_task,
)


class ClaimCases(StoreSuite):
    """The promises of `Claim` beyond its rule: one winner, by the clock of the store."""

    async def test_one_of_many_claims_of_one_task_wins(self, store: TaskStore) -> None:
        task = await put(store)
        claims = [make_claim(task, worker_id=f"worker-{n}") for n in range(50)]

        replies = await asyncio.gather(*(store.apply(claim) for claim in claims))

        [winner] = [claim for claim, reply in zip(claims, replies, strict=True) if reply is not None]
        after = await read_task(store, task.task_id)
        assert after.lease is not None
        assert (after.lease.claim_id, after.lease.worker_id) == (winner.claim_id, winner.worker_id)
        assert (after.fencing_token, after.attempts, after.sequence) == (1, 1, 2)

    async def test_a_task_is_claimed_when_its_time_has_come(self, store: TaskStore) -> None:
        task = await put(store, not_before=store.now() + timedelta(seconds=0.2))
        await self.pass_time(0.3)
        await make_move(store, make_claim(task))

    async def test_a_task_is_not_claimed_when_its_deadline_has_passed(self, store: TaskStore) -> None:
        task = await put(store, deadline=store.now() + timedelta(seconds=0.2))
        await self.pass_time(0.3)
        assert await store.apply(make_claim(task)) is None
        assert await read_task(store, task.task_id) == task


class RenewalCases(StoreSuite):
    """The replies to a heartbeat."""

    async def test_a_held_lease_goes_on_and_nothing_else_changes(self, store: TaskStore) -> None:
        before, fence = await put_running(store, lease=SECOND)
        assert await store.renew([fence], HOUR) == {fence: None}
        renewed = RenewLease(fence, HOUR).apply(before, store.now())
        assert renewed is not None
        after = await read_task(store, before.task_id)
        assert differences(after, renewed) == []
        assert after.evolve(lease=before.lease) == before

    async def test_a_lost_lease_is_missing(self, store: TaskStore) -> None:
        held, fence = await put_running(store)
        finished, its_fence = await put_running(store)
        await make_move(store, Complete(its_fence, "worker-1", None))
        reaped, reaped_fence = await put_running(store, lease=EXPIRED)
        await make_move(store, Reap(reaped.task_id, 1, timedelta(0), 3, HOUR))
        wrong_token = Fence(held.task_id, 7, fence.claim_id)
        wrong_claim = Fence(held.task_id, 1, new_claim_id())
        unknown = Fence(new_task_id(), 1, new_claim_id())
        before = await read_task(store, held.task_id)

        assert await store.renew([its_fence, reaped_fence, wrong_claim, unknown], HOUR) == {}
        assert await read_task(store, held.task_id) == before
        assert await store.renew([wrong_token], HOUR) == {}
        assert (await read_task(store, finished.task_id)).lease is None

    async def test_held_and_lost_leases_in_one_beat(self, store: TaskStore) -> None:
        running = [await put_running(store, lease=SECOND) for _ in range(20)]
        lost = {fence for _, fence in running[::3]}
        for fence in lost:
            await make_move(store, Fail(fence, "worker-1", make_error(), False, timedelta(0)))

        renewed = await store.renew([fence for _, fence in running], HOUR)

        assert await store.renew([], HOUR) == {}
        assert renewed.keys() == {fence for _, fence in running} - lost

    async def test_a_late_renewal_saves_a_lease_nobody_has_reaped(self, store: TaskStore) -> None:
        task, fence = await put_running(store, lease=EXPIRED)
        assert fence in await store.renew([fence], HOUR)
        await expect_refusal(store, Reap(task.task_id, 1, timedelta(0), 3, HOUR))

    async def test_a_cancel_request_is_returned_by_the_heartbeat(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        await make_move(store, Cancel(task.task_id, EVERYONE, "alice", "changed my mind"))

        renewed = await store.renew([fence], HOUR)

        cancel = renewed[fence]
        assert cancel is not None
        assert (cancel.by, cancel.reason) == ("alice", "changed my mind")

    async def test_a_cancel_request_is_found_between_two_heartbeats(self, store: TaskStore) -> None:
        running = [await put_running(store) for _ in range(5)]
        fences = [fence for _, fence in running]
        assert await store.cancel_requests(fences) == {}
        before = await read_task(store, running[3][0].task_id)
        for task, _ in running[:2]:
            await make_move(store, Cancel(task.task_id, EVERYONE, "alice", "changed my mind"))

        requests = await store.cancel_requests(fences)

        assert requests == {fence: (await read_task(store, task.task_id)).cancel for task, fence in running[:2]}
        assert await read_task(store, before.task_id) == before, "looking renews nothing"

    async def test_a_cancel_request_reaches_only_the_attempt_that_runs_the_task(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))
        strangers = [replace(fence, claim_id=new_claim_id()), replace(fence, fencing_token=2)]
        assert await store.cancel_requests([*strangers, Fence(new_task_id(), 1, new_claim_id())]) == {}
        assert list(await store.cancel_requests([*strangers, fence])) == [fence]
        await make_move(store, Complete(fence, "worker-1", None))
        assert await store.cancel_requests([fence]) == {}
        assert await store.cancel_requests([]) == {}

    async def test_a_renewal_of_an_older_claim_does_not_touch_the_newer(self, store: TaskStore) -> None:
        task, fence = await put_running(store, lease=EXPIRED)
        retrying = await make_move(store, Reap(task.task_id, 1, timedelta(0), 3, -HOUR))
        running, newer = await claim_task(store, retrying)

        assert await store.renew([fence], 2 * HOUR) == {}
        assert await read_task(store, task.task_id) == running
        for beat in ([replace(newer), fence], [fence, replace(newer)]):
            assert list(await store.renew(beat, HOUR)) == [newer], "a worker may have both in hand"

    async def test_a_lease_ends_when_its_time_has_come(self, store: TaskStore) -> None:
        task, _ = await claim_task(store, await put(store), lease=timedelta(seconds=0.2))
        await self.pass_time(0.3)
        await make_move(store, Reap(task.task_id, 1, timedelta(0), 3, MINUTE))
