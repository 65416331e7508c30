"""Store suite: guarded writes on records, shown with buckets of rate limits. Each write does what its rule does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskframework.clock import to_timestamp
from taskframework.errors import StoreUnavailableError
from taskframework.model.rate_limits import RATE, UNUSED_TURNS_SECONDS, Bucket, BucketLimit, HoldBucket, TakePermits
from taskframework.model.records import Record
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import StoreSuite, lose_reply

OPENAI = RATE.id_of("openai")
#: A limit that gives no new permits while a test runs, and a limit that does.
SLOW, FAST = BucketLimit(0.001, 5), BucketLimit(20, 3)
#: The last digits of a time, in seconds, may be rounded differently by another server.
_TIME_TOLERANCE = 1e-5


def take(limit: BucketLimit = SLOW, most: int = 1, **options: Any) -> TakePermits:
    return TakePermits(OPENAI, limit, most, **options)


async def change_and_check(store: TaskStore, change: TakePermits | HoldBucket) -> Bucket:
    """Make a change, check it against the rule, and return the bucket after it."""
    before = (await store.read_records([change.record_id])).get(change.record_id)
    asked_after = to_timestamp(store.now()) - 0.05
    after = await store.change_record(change)
    assert await store.read_records([change.record_id]) == {change.record_id: after}
    bucket = RATE.content(after)
    expected = change.apply(None if before is None else RATE.content(before), bucket.asked_at)
    assert bucket.granted == expected.granted
    assert _times(bucket) == pytest.approx(_times(expected), rel=0, abs=_TIME_TOLERANCE)
    assert after.expires_at is not None
    assert abs(after.expires_at - expected.expires_at) < timedelta(milliseconds=2)
    assert (after.kind, before is None or after.revision != before.revision) == (RATE.name, True)
    assert bucket.asked_at >= asked_after, "by the store's clock"
    return bucket


def _times(bucket: Bucket) -> tuple[float, ...]:
    return bucket.full_at, bucket.line_at, bucket.late_at, bucket.first_at


class BucketCases(StoreSuite):
    """The promises of `change_record`."""

    async def test_a_full_bucket_gives_what_it_holds_and_then_nothing(self, store: TaskStore) -> None:
        assert (await change_and_check(store, take(most=3))).granted == 3
        assert (await change_and_check(store, take(most=3))).granted == 2
        assert (await change_and_check(store, take(most=3))).granted == 0

    async def test_a_bucket_fills_up_as_time_passes(self, store: TaskStore) -> None:
        assert (await change_and_check(store, take(FAST, 10))).granted == 3
        await self.pass_time(0.15)
        assert (await change_and_check(store, take(FAST, 10))).granted >= 3

    async def test_permits_are_taken_ahead_of_their_time(self, store: TaskStore) -> None:
        assert (await change_and_check(store, take(most=10, ahead=3_000))).granted == 8
        assert (await change_and_check(store, take(most=10, ahead=500))).granted == 0

    async def test_requests_in_line_get_turns_one_behind_the_other(self, store: TaskStore) -> None:
        await change_and_check(store, take(most=5))
        first = await change_and_check(store, take(in_line=True))
        second = await change_and_check(store, take(in_line=True))
        assert (first.granted, second.granted) == (0, 0)
        assert second.first_at - first.first_at == pytest.approx(1 / SLOW.rate, abs=_TIME_TOLERANCE)

    async def test_several_turns_at_once_are_as_those_of_single_requests(self, store: TaskStore) -> None:
        await change_and_check(store, take(most=5))
        first = await change_and_check(store, take(most=3, in_line=True))
        fourth = await change_and_check(store, take(in_line=True))
        assert (first.granted, fourth.granted) == (0, 0)
        assert fourth.first_at - first.first_at == pytest.approx(3 / SLOW.rate, abs=_TIME_TOLERANCE)
        late = await change_and_check(store, take(most=2, in_line=True, has_turn=True))
        third = await change_and_check(store, take(in_line=True, has_turn=True))
        assert third.first_at - late.first_at == pytest.approx(2 / SLOW.rate, abs=_TIME_TOLERANCE)

    async def test_a_new_request_waits_for_the_line_and_a_request_with_a_turn_does_not(self, store: TaskStore) -> None:
        await change_and_check(store, take(most=5))
        await change_and_check(store, take(in_line=True))
        assert (await change_and_check(store, take(ahead=1_500, in_line=True))).granted == 0
        assert (await change_and_check(store, take(ahead=1_500, in_line=True, has_turn=True))).granted == 1

    @pytest.mark.parametrize("has_turn", [False, True])
    @pytest.mark.parametrize("seconds_full", [UNUSED_TURNS_SECONDS / 2, UNUSED_TURNS_SECONDS * 2])
    async def test_turns_that_nobody_uses_hold_up_no_newcomer(
        self, store: TaskStore, seconds_full: float, has_turn: bool
    ) -> None:
        """As after a flood of one key was cancelled: its turns are up to an hour ahead, and the bucket is full."""
        now = to_timestamp(store.now())
        bucket = Bucket(full_at=now - seconds_full, line_at=now + 3_600, late_at=now + 1_800)
        await store.write_records([RATE.with_id(OPENAI, None, bucket, expires_at=bucket.expires_at)])
        after = await change_and_check(store, take(FAST, in_line=True, has_turn=has_turn))
        are_unused = seconds_full > UNUSED_TURNS_SECONDS and not has_turn
        assert (after.granted, after.last_turn_over_at > now) == (int(are_unused or has_turn), not are_unused)

    async def test_a_request_whose_turn_came_too_late_gets_the_next_turn(self, store: TaskStore) -> None:
        await change_and_check(store, take(most=5))
        for _ in range(9):
            last = await change_and_check(store, take(in_line=True))
        late = [await change_and_check(store, take(in_line=True, has_turn=True)) for _ in range(2)]
        assert late[1].first_at - late[0].first_at == pytest.approx(1 / SLOW.rate, abs=_TIME_TOLERANCE)
        assert late[1].first_at < last.first_at - 6 / SLOW.rate
        newcomer = await change_and_check(store, take(in_line=True))
        assert newcomer.first_at - last.first_at == pytest.approx(1 / SLOW.rate, abs=_TIME_TOLERANCE)

    async def test_a_held_bucket_gives_nothing_until_the_hold_is_over(self, store: TaskStore) -> None:
        await change_and_check(store, HoldBucket(OPENAI, FAST, 0.2))
        await self.pass_time(0.3)
        assert (await change_and_check(store, take(FAST))).granted == 1
        await change_and_check(store, HoldBucket(OPENAI, FAST, 60))
        await change_and_check(store, HoldBucket(OPENAI, FAST, 0))
        assert (await change_and_check(store, take(FAST))).granted == 0, "a shorter hold does not end a longer one"

    async def test_concurrent_requests_get_no_more_permits_than_there_are(self, store: TaskStore) -> None:
        replies = await asyncio.gather(*(store.change_record(take()) for _ in range(40)))
        assert sum(RATE.content(reply).granted for reply in replies) == SLOW.burst

    async def test_every_key_has_a_bucket_of_its_own(self, store: TaskStore) -> None:
        ids = [RATE.id_of("openai", key) for key in ("alice", "bob", "$where", "a.b/c")]
        granted = [(await change_and_check(store, TakePermits(record_id, SLOW, 5))).granted for record_id in ids]
        assert granted == [5] * 4

    async def test_fields_of_a_newer_release_stay_in_a_bucket(self, store: TaskStore) -> None:
        await store.write_records([Record(OPENAI, RATE.name, {"full_at": 0.0, "novel": {"b": 1}})])
        await change_and_check(store, take())
        [record] = (await store.read_records([OPENAI])).values()
        assert record.data["novel"] == {"b": 1}

    async def test_permits_whose_reply_is_lost_are_not_given_twice(self, store: TaskStore) -> None:
        with lose_reply("record.reply"), pytest.raises(StoreUnavailableError):
            await store.change_record(take(most=2))
        assert (await change_and_check(store, take(most=5))).granted == 3
