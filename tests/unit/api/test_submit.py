"""POST /tasks: accepted means stored, once for each idempotency key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.api.conftest import COUNT_WORDS, TASKS, Api, problem_of


async def test_a_submitted_task_is_answered_with_202_its_address_and_itself(api: Api) -> None:
    answer = await api.post(TASKS, json=COUNT_WORDS)
    task = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{TASKS}/{task['task_id']}"
    assert (task["status"], task["user_id"], task["parameters"]) == ("QUEUED", "anonymous", {"text": "one two three"})
    assert (await api.get(answer.headers["location"])).json() == task


async def test_all_fields_of_a_submission_reach_the_task(api: Api) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    task = await api.submit(
        priority="high",
        not_before=later.isoformat(),
        deadline=(later + timedelta(hours=1)).isoformat(),
        max_attempts=7,
        idempotency_key="key",
        correlation_id="order-7",
    )
    stored = await api.framework.get(task["task_id"])
    assert (stored.priority, stored.max_attempts, stored.correlation_id) == ("high", 7, "order-7")
    assert stored.idempotency_key == "key"
    assert stored.not_before == later.replace(microsecond=later.microsecond // 1000 * 1000)
    assert stored.deadline == stored.not_before + timedelta(hours=1)
    assert task["deadline"].endswith("Z")


async def test_a_null_field_of_a_submission_counts_as_left_out(api: Api) -> None:
    fields = ("priority", "not_before", "deadline", "max_attempts", "idempotency_key", "correlation_id")
    task = await api.submit(**dict.fromkeys(fields))
    assert (task["priority"], task["max_attempts"], task["correlation_id"]) == ("normal", 5, task["task_id"])


@pytest.mark.parametrize("place", ["header", "field", "both"])
async def test_the_same_key_gives_the_first_task(api: Api, place: str) -> None:
    headers = {"Idempotency-Key": "k 1"} if place != "field" else {}
    body = COUNT_WORDS | ({"idempotency_key": "k 1"} if place != "header" else {})
    first = await api.post(TASKS, json=body, headers=headers)
    second = await api.post(TASKS, json=COUNT_WORDS, headers={"Idempotency-Key": "k 1"})
    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json()["task_id"] == first.json()["task_id"]
    assert second.headers["location"] == first.headers["location"]


async def test_the_same_key_for_something_else_is_a_conflict(api: Api) -> None:
    first = await api.submit(idempotency_key="k")
    answer = await api.post(TASKS, json={**COUNT_WORDS, "parameters": {"text": "other"}, "idempotency_key": "k"})
    problem = problem_of(answer, 409, "idempotency_conflict")
    assert problem["task_id"] == first["task_id"]
    assert first["task_id"] in problem["detail"]


async def test_header_and_field_that_differ_are_refused(api: Api) -> None:
    answer = await api.post(TASKS, json=COUNT_WORDS | {"idempotency_key": "a"}, headers={"Idempotency-Key": "b"})
    assert problem_of(answer, 422, "invalid_request")["errors"][0]["field"] == "idempotency_key"


async def test_two_idempotency_keys_in_one_request_are_refused(api: Api) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    problem_of(await api.post(TASKS, json=COUNT_WORDS, headers=headers), 422, "invalid_request")


async def test_an_unknown_type_is_refused_with_the_nearest_one(api: Api) -> None:
    problem = problem_of(await api.post(TASKS, json={"task_type": "count-word"}), 422, "unknown_task_type")
    assert "count-words" in problem["hint"]
    assert problem["errors"][0]["field"] == "task_type"
    assert problem["instance"] == TASKS


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({}, "parameters.text"), ({"text": 5}, "parameters.text"), ("text", "parameters"), (None, "parameters")],
)
async def test_wrong_parameters_are_named(api: Api, parameters: Any, field: str) -> None:
    answer = await api.post(TASKS, json={"task_type": "count-words", "parameters": parameters})
    problem = problem_of(answer, 422, "invalid_parameters")
    assert [error["field"] for error in problem["errors"]] == [field]


async def test_the_callers_trace_goes_on_in_the_task(api: Api) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await api.post(TASKS, json=COUNT_WORDS, headers={"traceparent": trace})
    assert (await api.framework.get(answer.json()["task_id"])).traceparent == trace
    without = await api.submit()
    assert (await api.framework.get(without["task_id"])).traceparent is None


async def test_a_refused_submission_is_not_stored(api: Api) -> None:
    await api.post(TASKS, json=COUNT_WORDS | {"max_attempts": 0})
    await api.post(TASKS, json=COUNT_WORDS | {"status": "COMPLETED"})
    assert (await api.get(TASKS)).json()["items"] == []
