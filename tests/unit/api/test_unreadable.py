"""Records that somebody changed by hand: lists leave them out, and the log names them."""

from __future__ import annotations

from typing import Any

import pytest

from taskframework.model.records import Record
from tests.unit.api.conftest import COUNT_WORDS, TASKS, Api, OpenApi, problem_of

SCHEDULES = "/api/v1/admin/schedules"
LISTS = ["workers", "schedules", "limits", "overview", "queues", "audit", "keys", "streams"]
KINDS = ["worker", "schedule", "rate", "slots", "pause", "audit", "key", "replay", "task-type", "stream"]
NONSENSE: list[Any] = ["text", None, [], {"number": "many", "seen_at": 5, "full_at": "late", "mode": 7}]


async def plant_schedule(api: Api, name: str) -> None:
    schedule = {"name": name, "task_type": "count-words", "parameters": {"text": "a"}, "every": "1h"}
    answer = await api.post(SCHEDULES, json=schedule)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("data", NONSENSE, ids=str)
async def test_one_unreadable_record_hides_no_other_record(
    open_api: OpenApi, caplog: pytest.LogCaptureFixture, data: Any
) -> None:
    async with open_api() as api:
        await plant_schedule(api, "zoo")
        ids = {kind: f"{kind}/a{NONSENSE.index(data)}" for kind in KINDS}
        await api.framework.services.store.write_records([Record(ids[kind], kind, data) for kind in KINDS])
        for _ in range(2):
            for name in LISTS:
                answer = await api.get(f"/api/v1/admin/{name}")
                assert answer.status_code == 200, (name, answer.text)
        assert [it["name"] for it in (await api.get(SCHEDULES)).json()["items"]] == ["zoo"]
    for kind in ("worker", "schedule", "slots", "rate"):
        assert caplog.text.count(f"The record {ids[kind]} in the store") == 1


async def test_a_page_ends_where_it_ends_though_its_last_record_is_unreadable(api: Api) -> None:
    await plant_schedule(api, "a")
    await plant_schedule(api, "c")
    await api.framework.services.store.write_records([Record("schedule/b", "schedule", {})])
    first = (await api.get(SCHEDULES, params={"limit": 2})).json()
    second = (await api.get(SCHEDULES, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [it["name"] for page in (first, second) for it in page["items"]] == ["a", "c"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("stream", {"stream": {"key": "k"}}),
        ("unique", {"unique": {"key": "k", "version": 2}}),
        ("idempotency", {"idempotency_key": "k"}),
    ],
)
@pytest.mark.parametrize("data", NONSENSE, ids=str)
async def test_a_submission_that_needs_an_unreadable_record_is_refused_with_its_name(
    api: Api, kind: str, options: dict[str, Any], data: Any
) -> None:
    user = (await api.submit())["user_id"]
    await api.framework.services.store.write_records([Record(f"{kind}/{user}/k", kind, data)])
    problem = problem_of(await api.post(TASKS, json=COUNT_WORDS | options), 409, "record_unreadable")
    assert problem["detail"] == f"The record {kind}/{user}/k in the store cannot be read."
    assert "Put it back from a backup, or delete it" in problem["hint"]


async def test_a_stream_of_nonsense_harms_no_other_that_is_submitted_to_with_it(api: Api) -> None:
    await api.framework.services.store.write_records([Record("stream/anonymous/bad", "stream", None)])
    items = [COUNT_WORDS | {"stream": {"key": key}} for key in ("bad", "good")]
    answer = await api.post(f"{TASKS}/bulk", json={"tasks": items})
    told = [it["error"] and it["error"]["code"] for it in answer.json()["items"]]
    assert told == ["record_unreadable", None]
