"""Which buckets the settings name, and those in memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework import Settings
from taskframework.clock import SystemClock
from taskframework.errors import ExtraMissingError
from taskframework.limits.buckets import LimiterUnavailableError, MemoryBuckets, StoreBuckets
from taskframework.limits.redis import RedisBuckets
from taskframework.model.rate_limits import RATE, BucketLimit, HoldBucket, TakePermits
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.wiring.adapters import build_buckets

LIMIT = BucketLimit(1, 2)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "tasks.db")


@pytest.mark.parametrize(
    ("section", "kind"),
    [({}, StoreBuckets), ({"type": "store"}, StoreBuckets), ({"type": "memory"}, MemoryBuckets)],
)
def test_the_settings_name_the_buckets(store: SqliteStore, section: dict[str, Any], kind: type[object]) -> None:
    settings = Settings.model_validate({"rate_limiter": section})
    assert type(build_buckets(settings, store, SystemClock())) is kind


async def test_redis_is_not_connected_before_it_is_needed(store: SqliteStore) -> None:
    settings = Settings.model_validate({"rate_limiter": {"type": "redis", "redis_url": "redis://localhost:1/0"}})
    buckets = build_buckets(settings, store, SystemClock())
    assert isinstance(buckets, RedisBuckets)
    await buckets.close()


def test_a_wrong_redis_address_is_refused_without_showing_its_password(store: SqliteStore) -> None:
    address = "redis://user:secret@localhost/0?socket_timeout=soon"
    settings = Settings.model_validate({"rate_limiter": {"type": "redis", "redis_url": address}})
    with pytest.raises(LimiterUnavailableError) as refused:
        build_buckets(settings, store, SystemClock())
    assert "secret" not in str(refused.value)


@pytest.fixture
def _without_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    present = sys.modules["taskframework.limits.redis"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "taskframework.limits.redis")
    yield
    sys.modules["taskframework.limits.redis"] = present


@pytest.mark.usefixtures("_without_redis")
def test_the_missing_extra_for_redis_is_named() -> None:
    with pytest.raises(ExtraMissingError, match=r"needs redis.* pip install 'taskframework\[redis\]'"):
        importlib.import_module("taskframework.limits.redis")


async def test_buckets_in_memory_give_and_hold() -> None:
    clock = FakeClock()
    buckets, openai = MemoryBuckets(clock), RATE.id_of("openai")
    assert (await buckets.take(TakePermits(openai, LIMIT, 5))).granted == 2
    clock.advance(1)
    assert (await buckets.take(TakePermits(openai, LIMIT, 5))).granted == 1
    await buckets.hold(HoldBucket(openai, LIMIT, 30))
    clock.advance(29)
    assert (await buckets.take(TakePermits(openai, LIMIT, 5))).granted == 0


async def test_buckets_in_memory_that_have_long_been_full_are_forgotten() -> None:
    clock = FakeClock()
    buckets = MemoryBuckets(clock)
    for user in range(50):
        await buckets.take(TakePermits(RATE.id_of("openai", str(user)), LIMIT))
    clock.advance(timedelta(minutes=3))
    await buckets.take(TakePermits(RATE.id_of("openai", "new"), LIMIT))
    assert [name for name, _ in await buckets.list_known(100)] == ["rate/openai/new"]


@pytest.mark.parametrize("kind", ["memory", "store"])
async def test_a_bucket_can_be_looked_at_without_a_request(store: SqliteStore, kind: str) -> None:
    await store.open()
    buckets, openai = MemoryBuckets(FakeClock()) if kind == "memory" else StoreBuckets(store), RATE.id_of("openai")
    assert await buckets.read(openai) is None
    taken = await buckets.take(TakePermits(openai, LIMIT, 2))
    for _ in range(2):
        assert await buckets.read(openai) == taken
    await store.close()


async def test_a_clock_that_is_set_back_leaves_buckets_in_memory_as_full_as_they_were() -> None:
    """As on a machine that starts with a wrong clock. With the old times there would be no permit for an hour."""
    clock = FakeClock()
    buckets = MemoryBuckets(clock)
    take = TakePermits("rate/a", LIMIT)
    assert [(await buckets.take(take)).granted for _ in range(3)] == [1, 1, 0]
    clock.advance(timedelta(hours=-1))
    bucket = await buckets.take(take)
    assert (bucket.granted, bucket.first_at - bucket.asked_at) == (0, 1)
    clock.advance(1)
    assert [(await buckets.take(take)).granted for _ in range(2)] == [1, 0]
    clock.advance(130)
    await buckets.take(TakePermits("rate/b", LIMIT))
    assert [name for name, _ in await buckets.list_known(10)] == ["rate/b"], "a full one is forgotten after a minute"
