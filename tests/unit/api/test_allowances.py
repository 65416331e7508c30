"""How many requests a caller may make, in one process."""

from __future__ import annotations

import pytest

from taskframework.api import allowances
from taskframework.api.allowances import Allowances
from taskframework.model.keys import Role
from taskframework.model.rate_limits import BucketLimit
from tests.unit.api.conftest import TASKS, OpenApi, problem_of

_TWO_A_SECOND = BucketLimit(rate=2, burst=3)


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate() -> None:
    clock = _Clock()
    counted = Allowances(clock)
    assert [counted.take("ada", _TWO_A_SECOND) for _ in range(4)] == [0, 0, 0, pytest.approx(0.5)]
    assert counted.wait("ada", _TWO_A_SECOND) == pytest.approx(0.5)
    assert counted.wait("eve", _TWO_A_SECOND) == 0
    clock.now += 0.5
    assert counted.wait("ada", _TWO_A_SECOND) == 0
    assert [counted.take("ada", _TWO_A_SECOND) for _ in range(2)] == [0, pytest.approx(0.5)], "what was refused is free"
    assert counted.take("eve", _TWO_A_SECOND) == 0


def test_the_number_of_callers_with_a_bucket_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "_MAX_BUCKETS", 3)
    counted, one = Allowances(_Clock()), BucketLimit(rate=1, burst=1)
    for name in ("a", "b", "c", "a", "d"):
        counted.take(name, one)
    assert [counted.wait(name, one) > 0 for name in "abcd"] == [True, False, True, True], "b was asked for longest ago"
    assert len(counted._buckets) == 3


async def test_a_key_has_the_limit_of_the_settings_or_its_own(open_api: OpenApi) -> None:
    async with open_api(security={"key_limit": {"rate": 0.01, "burst_capacity": 2}}) as api:
        keys = api.framework.services.keys
        for _ in range(5):
            assert (await api.get("/api/v1/me")).status_code == 200, "nobody is identified yet"
        _, plain = await keys.create("ada", [Role.READER], by="test")
        _, another = await keys.create("ada", [Role.READER], by="test")
        _, own = await keys.create("eve", [Role.READER], by="test", limit=BucketLimit(rate=0.5, burst=4))
        api.framework.services.callers._has_keys = None  # as another process that looks now

        async def statuses(text: str, count: int) -> list[int]:
            headers = {"Authorization": f"Bearer {text}"}
            return [(await api.get(TASKS, headers=headers)).status_code for _ in range(count)]

        assert await statuses(plain, 3) == [200, 200, 429]
        assert await statuses(another, 3) == [200, 200, 429], "each key for itself"
        assert await statuses(own, 5) == [200, 200, 200, 200, 429]
        refused = await api.get(TASKS, headers={"Authorization": f"Bearer {own}"})
        assert "0.5 requests per second, 4 at once" in problem_of(refused, 429, "too_many_requests")["detail"]
        assert refused.headers["retry-after"] == "2"
        for path in ("/healthz", "/metrics"):
            assert (await api.get(path, headers={"Authorization": f"Bearer {own}"})).status_code == 200


async def test_a_caller_that_tries_many_keys_is_refused_for_a_while(
    open_api: OpenApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_api(security={"failure_limit": {"rate": 0.001, "burst_capacity": 3}}) as api:
        services = api.framework.services
        _, known = await services.keys.create("ada", [Role.READER], by="test")
        _, unknown = await services.keys.create("eve", [Role.READER], by="test")
        services.callers._has_keys = None
        good = {"Authorization": f"Bearer {known}"}
        assert (await api.get(TASKS, headers=good)).status_code == 200

        for _ in range(5):
            problem_of(await api.get(TASKS), 401, "unauthorized")  # a request without a key guesses none
        tried = [await api.get(TASKS, headers={"Authorization": f"Bearer tf_{n:010}_x"}) for n in range(5)]
        assert [answer.status_code for answer in tried] == [401, 401, 401, 429, 429]
        assert int(tried[-1].headers["retry-after"]) > 900
        assert not [prefix for prefix in services.callers._remembered if prefix in ("tf_0000000003", "tf_0000000004")]
        unseen = await api.get(TASKS, headers={"Authorization": f"Bearer {unknown}"})
        problem_of(unseen, 429, "too_many_requests")
        monkeypatch.setattr("taskframework.operations.keys.REMEMBERED_SECONDS", 0.0)
        assert (await api.get(TASKS, headers=good)).status_code == 200, "who had shown a key goes on"
        assert (await api.get(TASKS, headers={"Authorization": f"Bearer {known}x"})).status_code == 429
