"""Buckets in Redis do what the rules of the model say, and a restart of the server gives nobody more."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from taskframework.clock import SystemClock
from taskframework.limits.buckets import LimiterUnavailableError
from taskframework.limits.redis import RedisBuckets
from taskframework.model.rate_limits import RATE, UNUSED_TURNS_SECONDS, Bucket, BucketLimit, HoldBucket, TakePermits
from taskframework.testing.eventually import eventually
from tests.support.redis import RedisServer

OPENAI = RATE.id_of("openai")
#: Full from the first second on, whatever the server forgot; and one that gets nothing while a test runs.
FAST, SLOW = BucketLimit(1_000, 3), BucketLimit(0.001, 2)

Make = Callable[..., RedisBuckets]


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(6)


@pytest.fixture
async def make(redis_server: RedisServer, prefix: str) -> AsyncIterator[Make]:
    """Makes buckets under a prefix of this test's own."""
    made = list[RedisBuckets]()

    def make(*, waits: bool = True) -> RedisBuckets:
        made.append(RedisBuckets(redis_server.url, prefix, SystemClock(), waits=waits))
        return made[-1]

    async def is_full() -> bool:
        """Not in the first second of the server: it counts its age in whole ones."""
        return (await made[0].take(TakePermits(RATE.id_of(secrets.token_hex(6)), FAST, 3))).granted == 3

    make()
    await eventually(is_full)
    yield make
    for buckets in made:
        await buckets.close()


def same(bucket: Bucket, expected: Bucket) -> bool:
    times = (bucket.full_at, bucket.line_at, bucket.late_at, bucket.first_at)
    return bucket.granted == expected.granted and times == pytest.approx(
        (expected.full_at, expected.line_at, expected.late_at, expected.first_at), rel=0, abs=1e-5
    )


async def test_each_request_of_permits_does_what_its_rule_says(make: Make) -> None:
    buckets, chance = make(), random.Random(7)
    before = await buckets.take(TakePermits(OPENAI, FAST, 3))
    for _ in range(300):
        limit = BucketLimit(chance.choice([500, 1_000]), chance.randint(1, 5))
        take = TakePermits(
            OPENAI, limit, chance.randint(1, 6), chance.choice([0, 0.01]), chance.random() < 0.5, chance.random() < 0.5
        )
        bucket = await buckets.take(take)
        assert same(bucket, take.apply(before, bucket.asked_at)), take
        before = bucket


async def test_turns_that_nobody_uses_are_forgotten_as_the_rule_says(
    make: Make, prefix: str, redis_server: RedisServer
) -> None:
    buckets, unused = make(), UNUSED_TURNS_SECONDS + 1 / FAST.rate

    async def server_is_old_enough() -> bool:
        """The script takes no bucket for older than the server."""
        return bool((await redis.info("server"))["uptime_in_seconds"] > unused + 2)

    async with Redis.from_url(redis_server.url) as redis:
        await eventually(server_is_old_enough, timeout=60)
        cases = itertools.product([unused - 1, unused + 1], [True, False], [True, False])
        for at, (idle, in_line, has_turn) in enumerate(cases):
            record_id = RATE.id_of("openai", str(at))
            seconds, microseconds = await redis.time()
            now = seconds + microseconds / 1_000_000
            before = Bucket(full_at=now - idle, line_at=now + 3_600, late_at=now + 1_800)
            fields: dict[Any, Any] = {"full_at": before.full_at, "line_at": before.line_at, "late_at": before.late_at}
            await redis.hset(f"{prefix}:{record_id}", mapping=fields)
            take = TakePermits(record_id, FAST, 1, 0, in_line, has_turn)
            bucket = await buckets.take(take)
            assert same(bucket, take.apply(before, bucket.asked_at)), (idle, take)


async def test_concurrent_requests_get_no_more_permits_than_there_are(make: Make) -> None:
    buckets = [make(), make()]
    started = await buckets[0].take(TakePermits(OPENAI, SLOW, 0))
    replies = await asyncio.gather(*(buckets[at % 2].take(TakePermits(OPENAI, SLOW, ahead=2_000)) for at in range(50)))
    possible = TakePermits(OPENAI, SLOW, 50, ahead=2_000).apply(started, started.asked_at).granted
    assert possible == 2
    assert sum(reply.granted for reply in replies) == possible


async def test_a_hold_lets_nothing_through(make: Make) -> None:
    buckets = make()
    await buckets.hold(HoldBucket(OPENAI, FAST, 60))
    held = await buckets.take(TakePermits(OPENAI, FAST, 3))
    assert held.granted == 0
    assert held.first_at - held.asked_at == pytest.approx(60, abs=5)
    assert (await buckets.take(TakePermits(RATE.id_of("other"), FAST))).granted == 1


async def test_the_buckets_that_are_known_are_listed(make: Make) -> None:
    buckets = make()
    for key in ("bob", "alice", "a/b"):
        await buckets.take(TakePermits(RATE.id_of("openai", key), SLOW))
    known = {name: bucket for name, bucket in await buckets.list_known(1_000) if "openai" in name}
    assert list(known) == [
        "rate/openai/a%2Fb",
        "rate/openai/alice",
        "rate/openai/bob",
    ]
    assert known == {name: await buckets.read(name) for name in known}
    assert len(await buckets.list_known(2)) == 2


async def test_a_list_does_not_look_at_all_keys_of_a_server_that_others_use(
    make: Make, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = make()
    monkeypatch.setattr("taskframework.limits.redis._SCANNED_KEYS", 10)
    monkeypatch.setattr("taskframework.limits.redis._MAX_SCANS", 3)
    await buckets._redis.mset({f"other-{prefix}-{number}": 1 for number in range(1_000)})
    await buckets._redis.config_resetstat()
    await buckets.list_known(10)
    stats: Any = await buckets._redis.info("commandstats")
    assert stats["cmdstat_scan"]["calls"] == 3


async def test_a_restarted_server_gives_only_the_permits_since_its_start(make: Make, redis_server: RedisServer) -> None:
    """The server tells its age in whole seconds, so it starts here late in a second and is asked early in the next."""
    limit = BucketLimit(20, 40)
    buckets = make()
    await asyncio.to_thread(redis_server.kill)
    await eventually(lambda: time.time() % 1 > 0.8)
    started_at = time.time()
    await asyncio.to_thread(redis_server.start)
    await eventually(lambda: time.time() // 1 > started_at // 1)
    bucket = await buckets.take(TakePermits(OPENAI, limit, 40))
    assert bucket.granted <= (bucket.asked_at - started_at) * limit.rate
    later: Bucket = await eventually(partial(_take, buckets, limit))
    assert bucket.granted + later.granted <= (later.asked_at - started_at) * limit.rate


async def _take(buckets: RedisBuckets, limit: BucketLimit) -> Bucket | None:
    bucket = await buckets.take(TakePermits(OPENAI, limit, 40))
    return bucket if bucket.granted else None


async def test_requests_wait_while_redis_is_away_and_then_continue(
    make: Make, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskframework.limits.redis")
    buckets, open_ones = make(), make(waits=False)
    await asyncio.to_thread(redis_server.kill)
    try:
        waiting = [asyncio.create_task(buckets.take(TakePermits(OPENAI, FAST))) for _ in range(5)]
        await eventually(lambda: "Redis is away, tasks with a rate limit wait" in caplog.text)
        assert (await open_ones.take(TakePermits(OPENAI, SLOW, 7))).granted == 7
        with pytest.raises(LimiterUnavailableError, match=r"rate_limiter\.redis_url"):
            await buckets.hold(HoldBucket(OPENAI, FAST, 1))
        with pytest.raises(LimiterUnavailableError, match=r"[^.]\.$"):
            await buckets.read(OPENAI)
        assert await open_ones.read(OPENAI) is None
        assert not any(task.done() for task in waiting)
    finally:
        await asyncio.to_thread(redis_server.start)
    await asyncio.gather(*waiting)
    levels = [record.levelname for record in caplog.records if "wait" in record.message or "back" in record.message]
    assert levels == ["WARNING", "INFO"]


async def test_a_bucket_can_be_looked_at_without_a_request(make: Make) -> None:
    buckets = make()
    unknown = await buckets.read(OPENAI)
    assert unknown is None or unknown.full_at == 0
    taken = await buckets.take(TakePermits(OPENAI, SLOW, 2))
    for _ in range(2):
        seen = await buckets.read(OPENAI)
        assert seen is not None
        assert seen.full_at == pytest.approx(taken.full_at, rel=0, abs=1e-5)


@pytest.mark.parametrize(
    ("refusing", "accepting", "words", "hint"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "refuses: .*maxmemory", "raise maxmemory"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "refuses: .*read only replica", "name the primary"),
    ],
)
async def test_a_server_that_takes_no_writes_is_an_error_wherever_buckets_are_looked_at(
    make: Make, redis_server: RedisServer, refusing: str, accepting: str, words: str, hint: str
) -> None:
    buckets, own = make(), cast(Any, Redis.from_url(redis_server.url))
    await own.execute_command(*refusing.split())
    try:
        for look in (buckets.read(OPENAI), buckets.list_known(5), buckets.hold(HoldBucket(OPENAI, SLOW, 1))):
            with pytest.raises(LimiterUnavailableError, match=words) as raised:
                await look
            assert hint in str(raised.value)
            assert "script" not in str(raised.value)
    finally:
        await own.execute_command(*accepting.split())
        await own.aclose()
    assert await buckets.read(OPENAI) is not None


async def test_a_wrong_password_is_called_a_refusal_and_not_shown(redis_server: RedisServer) -> None:
    buckets = RedisBuckets(redis_server.url.replace("://", "://ada:hunter2@"), "p", SystemClock())
    try:
        with pytest.raises(LimiterUnavailableError, match=r"Redis refuses: .*\. Correct the user") as raised:
            await buckets.read(OPENAI)
        assert "hunter2" not in str(raised.value)
    finally:
        await buckets.close()
