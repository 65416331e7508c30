"""Rate limits over HTTP and inside: which buckets are listed, and what each would let through."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from taskframework import BackgroundTaskExecutable, RateLimit, RegistrationError, TaskContext, TaskOptions
from taskframework.api.limit_views import LimitPage, LimitView, SlotsView
from taskframework.limits.buckets import LimiterUnavailableError
from taskframework.model.marks import MakeDue
from taskframework.model.rate_limits import RATE, AttemptLimit, Bucket, HoldBucket, TakePermits
from taskframework.model.slots import SLOTS, TakeSlot
from taskframework.model.task_fields import LimitWait
from taskframework.operations.limits import LimitOperations
from taskframework.settings.limits import BucketSettings
from taskframework.tasks.limits import limit_key
from taskframework.testing.factories import new_task
from tests.unit.api.conftest import OpenApi, problem_of

LIMITS = "/api/v1/admin/limits"
OPENAI = AttemptLimit(0.01, 3)
SECTION: dict[str, Any] = {
    "default": {"rate": 5, "burst_capacity": 2},
    "providers": {"openai": {"rate": 0.01, "burst_capacity": 3}},
}


async def test_each_bucket_is_listed_with_its_present_state(open_api: OpenApi) -> None:
    async with open_api(rate_limiter=SECTION) as api:
        buckets = api.framework.services.buckets
        await buckets.take(TakePermits(RATE.id_of("openai"), OPENAI))
        await buckets.take(TakePermits(RATE.id_of("openai", "a/b"), OPENAI, 3, ahead=1.0))
        await buckets.take(TakePermits(RATE.id_of("openai", "a/b"), OPENAI, in_line=True))
        await buckets.take(TakePermits(RATE.id_of("removed"), OPENAI))
        answer = await api.get(LIMITS)
        page = LimitPage.model_validate(answer.json(), strict=False)
        now = api.framework.services.store.now()
    buckets_shown = [item for item in page.items if isinstance(item, LimitView)]
    assert [(item.name, item.key, item.available) for item in buckets_shown] == [
        ("default", None, 2),
        ("openai", None, 2),
        ("openai", "a/b", 0),
    ]
    assert [(item.rate, item.burst_capacity, item.next_at, item.last_turn_at) for item in buckets_shown[:2]] == [
        (5, 2, None, None),
        (0.01, 3, None, None),
    ]
    waits = buckets_shown[2]
    assert waits.next_at is not None
    assert 60 < (waits.next_at - now).total_seconds() <= 101
    assert waits.last_turn_at is not None
    assert abs((waits.last_turn_at - waits.next_at).total_seconds()) < 1


async def test_the_slowest_and_largest_bucket_can_be_used_up_and_shown(open_api: OpenApi) -> None:
    slowest = BucketSettings(rate=0.00001, burst_capacity=1_000_000)
    limit = AttemptLimit(slowest.rate, slowest.burst_capacity)
    async with open_api(rate_limiter={"providers": {"slow": slowest.model_dump()}}) as api:
        for wanted in (limit.burst, 1):
            await api.framework.services.buckets.take(TakePermits(RATE.id_of("slow"), limit, wanted, in_line=True))
        answer = await api.get(LIMITS)
    assert (answer.status_code, answer.json()["items"][0]["available"]) == (200, 0)


async def test_a_held_bucket_lets_nothing_through_until_the_hold_is_over(open_api: OpenApi) -> None:
    async with open_api(rate_limiter=SECTION) as api:
        await api.framework.services.buckets.hold(HoldBucket(RATE.id_of("default"), AttemptLimit(5, 2), 500))
        held = (await api.get(LIMITS)).json()["items"][0]
    assert (held["name"], held["available"]) == ("default", 0)


async def test_each_concurrency_limit_is_listed_with_its_holders_and_waiting_tasks(open_api: OpenApi) -> None:
    async with open_api(rate_limiter=SECTION) as api:
        store = api.framework.services.store
        for record_id, claim in ((SLOTS.id_of("resize"), "a"), (SLOTS.id_of("resize", "a/b"), "b")):
            await store.change_record(TakeSlot(record_id, 3, f"task {claim}", claim, "host:1:w", 1, 0.0, 15.0))
        waiting = new_task(now=store.now(), task_id="waits")
        await store.insert([waiting, new_task(now=store.now(), task_id="next", task_type="resize")])
        await store.mark(MakeDue("waits", 1, timedelta(minutes=1), SLOTS.id_of("resize", "a/b")))
        page = LimitPage.model_validate((await api.get(LIMITS)).json(), strict=False)
        now = store.now()
    slots = [item for item in page.items if isinstance(item, SlotsView)]
    assert [(item.name, item.key, item.number, item.waiting) for item in slots] == [
        ("resize", None, 3, 1),
        ("resize", "a/b", 3, 1),
    ]
    [holder] = slots[1].holders
    assert (holder.task_id, holder.worker_id) == ("task b", "host:1:w")
    assert abs((now - holder.since).total_seconds()) < 60


@pytest.mark.parametrize("key", ["Müller", "x" * 900, "a/b"])
async def test_the_tasks_that_wait_for_a_key_are_found_whatever_the_key_is(open_api: OpenApi, key: str) -> None:
    async with open_api() as api:
        store = api.framework.services.store
        wait = LimitWait(SLOTS.id_of("resize", limit_key({"user": key}, "user")), 1, store.now() + timedelta(hours=1))
        task = new_task(now=store.now(), task_type="resize")
        await store.insert([task.evolve(waits_for_limit=wait), new_task(now=store.now(), task_id="other")])
        found = await api.get(f"/api/v1/tasks?waits_for_limit={quote(f'resize/{key}')}")
    assert [item["task_id"] for item in found.json()["items"]] == [task.task_id]


async def test_without_limits_the_list_of_limits_is_empty(open_api: OpenApi) -> None:
    async with open_api() as api:
        assert (await api.get(LIMITS)).json() == {"items": [], "next_cursor": None}


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "cursor=x", "limit=1&limit=2"])
async def test_a_wrong_question_is_refused(open_api: OpenApi, query: str) -> None:
    async with open_api(rate_limiter=SECTION) as api:
        problem_of(await api.get(f"{LIMITS}?{query}"), 422, "invalid_request")
        assert len((await api.get(f"{LIMITS}?limit=1")).json()["items"]) == 1


async def test_buckets_that_are_away_are_503(open_api: OpenApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: LimitOperations, limit: int) -> Sequence[Bucket]:
        raise LimiterUnavailableError("Redis at secret:6379 is away.")

    async with open_api(rate_limiter=SECTION) as api:
        monkeypatch.setattr(LimitOperations, "list_limits", away)
        answer = await api.get(LIMITS)
    problem_of(answer, 503, "limiter_unavailable")
    assert "secret" not in answer.text
    assert "Retry-After" in answer.headers


class Limited(BackgroundTaskExecutable[dict[str, str], None]):
    task_type = "limited"

    async def execute(self, context: TaskContext[dict[str, str]]) -> None: ...


@pytest.mark.parametrize("limit", ["opneai", RateLimit("opneai", key="user")], ids=["name", "with a key"])
async def test_a_bucket_that_is_not_in_the_settings_is_found_at_registration(open_api: OpenApi, limit: Any) -> None:
    class Wrong(Limited):
        options = TaskOptions(rate_limit=limit)

    async with open_api(rate_limiter=SECTION) as api:
        with pytest.raises(
            RegistrationError, match=r"'opneai', which is not in the settings.*Did you mean 'openai'\?"
        ) as error:
            api.framework.register(Wrong)
        assert "rate_limiter={'providers': {'opneai': {'rate': 5}}}" in error.value.hint, "as a harness takes it"
        assert "limited" not in api.framework.registry.task_types
