"""Schedules over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of

SCHEDULES = "/api/v1/admin/schedules"
NIGHTLY = {"name": "nightly", "task_type": "count-words", "parameters": {"text": "one"}, "cron": "30 2 * * *"}


async def test_a_schedule_is_created_shown_changed_and_deleted(api: Api) -> None:
    answer = await api.post(SCHEDULES, json={**NIGHTLY, "timezone": "Europe/Berlin"})
    assert (answer.status_code, answer.headers["location"]) == (201, f"{SCHEDULES}/nightly")
    made = answer.json()
    assert (made["missed"], made["overlap"], made["jitter"], made["last_run"]) == ("once", "allow", "0s", None)
    assert made["next_runs"][0] == made["next_run_at"]
    assert len(made["next_runs"]) == 5
    assert (await api.get(f"{SCHEDULES}/nightly")).json() == made

    definition = {"task_type": "count-words", "parameters": {"text": "two"}, "every": "90m", "overlap": "skip"}
    changed = (await api.put(f"{SCHEDULES}/nightly", json=definition)).json()
    assert (changed["every"], changed["cron"], changed["overlap"]) == ("1h30m", None, "skip")

    page = (await api.get(SCHEDULES)).json()
    assert [item["name"] for item in page["items"]] == ["nightly"]
    answer = await api.delete(f"{SCHEDULES}/nightly")
    assert (answer.status_code, answer.content) == (204, b"")
    problem_of(await api.get(f"{SCHEDULES}/nightly"), 404, "schedule_not_found")


async def test_schedules_are_listed_page_by_page(api: Api) -> None:
    for name in ("a", "b.c", "d"):
        await api.post(SCHEDULES, json={**NIGHTLY, "name": name})
    page = (await api.get(SCHEDULES, params={"limit": 2})).json()
    assert ([item["name"] for item in page["items"]], page["next_cursor"]) == (["a", "b.c"], "b.c")
    page = (await api.get(SCHEDULES, params={"limit": 2, "cursor": "b.c"})).json()
    assert ([item["name"] for item in page["items"]], page["next_cursor"]) == (["d"], None)
    problem_of(await api.get(SCHEDULES, params={"cursor": "No!"}), 422, "invalid_request")


async def test_a_schedule_is_paused_resumed_and_run(api: Api) -> None:
    await api.post(SCHEDULES, json=NIGHTLY)
    paused = (await api.post(f"{SCHEDULES}/nightly/pause")).json()
    assert (paused["is_paused"], paused["next_run_at"], paused["next_runs"]) == (True, None, [])
    answer = await api.post(f"{SCHEDULES}/nightly/run", headers={"Idempotency-Key": "k"})
    task = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"{TASKS}/{task['task_id']}")
    assert (task["user_id"], task["parameters"]) == ("scheduler", {"text": "one"})
    again = await api.post(f"{SCHEDULES}/nightly/run", headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["task_id"]) == (200, task["task_id"])
    resumed = (await api.post(f"{SCHEDULES}/nightly/resume")).json()
    assert (resumed["is_paused"], resumed["last_run"]["task_id"]) == (False, task["task_id"])


@pytest.mark.parametrize(
    ("values", "status", "code", "field", "told"),
    [
        ({"cron": "61 * * * *"}, 422, "invalid_request", "cron", "has a wrong minute '61': it is 0-59"),
        ({"timezone": "Europe/Berln"}, 422, "invalid_request", "timezone", "'Europe/Berln' is not a time zone"),
        ({"every": "5m"}, 422, "invalid_request", "(whole)", "needs either cron or every, not both"),
        ({"cron": None, "every": 5}, 422, "invalid_request", "every", "needs a unit: 5s for seconds"),
        ({"parameters": {"text": 5}}, 422, "invalid_parameters", "parameters.text", "valid string"),
        ({"task_type": "count-word"}, 422, "unknown_task_type", "task_type", "There is no task type"),
        ({"name": "Nightly!"}, 422, "invalid_request", "name", "is not a valid name for a schedule"),
        ({"next_run_at": None}, 422, "invalid_request", "next_run_at", "no such field"),
        ({"missed": "never"}, 422, "invalid_request", "missed", "'skip', 'once' or 'all'"),
    ],
)
async def test_a_wrong_schedule_is_refused_with_the_name_of_the_field(
    api: Api, values: dict[str, Any], status: int, code: str, field: str, told: str
) -> None:
    problem = problem_of(await api.post(SCHEDULES, json=NIGHTLY | values), status, code)
    [wrong] = problem["errors"]
    assert wrong["field"] == field
    assert told in wrong["message"]
    assert (await api.get(SCHEDULES)).json()["items"] == []


async def test_a_change_that_conflicts_with_an_existing_schedule_is_refused(open_api: OpenApi) -> None:
    from_settings = {key: value for key, value in NIGHTLY.items() if key != "name"}
    async with open_api(worker=True, schedules={"settled": from_settings}) as api:
        shown = (await api.get(f"{SCHEDULES}/settled")).json()
        assert (shown["is_from_settings"], shown["cron"]) == (True, "30 2 * * *")
        problem_of(await api.post(SCHEDULES, json={**NIGHTLY, "name": "settled"}), 409, "schedule_exists")
        problem_of(await api.put(f"{SCHEDULES}/settled", json=from_settings), 409, "schedule_from_settings")
        problem_of(await api.delete(f"{SCHEDULES}/settled"), 409, "schedule_from_settings")
        assert (await api.post(f"{SCHEDULES}/settled/pause")).status_code == 200


@pytest.mark.parametrize("name", ["none", "No!", "a%00b", "%F0%9F%8E%89", "x" * 300])
async def test_a_schedule_that_does_not_exist_is_not_found(api: Api, name: str) -> None:
    place = f"{SCHEDULES}/{name}"
    calls = [api.get(place), api.delete(place), *(api.post(f"{place}/{do}") for do in ("run", "pause", "resume"))]
    calls.append(api.put(place, json={"task_type": "count-words", "parameters": {"text": "x"}, "every": "1m"}))
    for call in calls:
        problem_of(await call, 404, "schedule_not_found")
