"""POST /tasks/bulk: many tasks, each with its own outcome."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskframework.errors import StoreUnavailableError
from tests.unit.api.conftest import COUNT_WORDS, TASKS, Api, OpenApi, problem_of


async def test_each_task_of_a_bulk_request_has_its_own_outcome(api: Api) -> None:
    wrong = [{"task_type": "nothing"}, {"task_type": "count-words"}, 5, {**COUNT_WORDS, "lease": {}}, {}]
    body = {"tasks": [COUNT_WORDS, *wrong, {**COUNT_WORDS, "not_before": "2027-01-31T12:00:00Z"}]}
    answer = await api.post(f"{TASKS}/bulk", json=body)
    assert answer.status_code == 200
    outcomes = answer.json()["items"]
    assert [outcome["index"] for outcome in outcomes] == list(range(7))
    assert [outcome["status"] for outcome in outcomes] == [202, 422, 422, 422, 422, 422, 202]
    codes = [outcome["error"] and outcome["error"]["code"] for outcome in outcomes]
    assert codes == [None, "unknown_task_type", "invalid_parameters", *["invalid_request"] * 3, None]
    assert outcomes[4]["error"]["errors"][0]["field"] == "lease"
    stored = {task["task_id"] for task in (await api.get(TASKS)).json()["items"]}
    assert stored == {outcomes[0]["task"]["task_id"], outcomes[6]["task"]["task_id"]}


async def test_a_key_counts_within_one_request_too(api: Api) -> None:
    keyed = {**COUNT_WORDS, "idempotency_key": "k"}
    conflicting = {**keyed, "parameters": {"text": "other"}}
    outcomes = (await api.post(f"{TASKS}/bulk", json={"tasks": [keyed, keyed, conflicting]})).json()["items"]
    assert sorted(outcome["status"] for outcome in outcomes) in ([200, 202, 409], [202, 409, 409])
    assert len((await api.get(TASKS)).json()["items"]) == 1


async def test_a_key_for_the_whole_request_is_refused(api: Api) -> None:
    """It was ignored, so that a repetition stored all tasks once more."""
    answer = await api.post(f"{TASKS}/bulk", json={"tasks": [COUNT_WORDS]}, headers={"Idempotency-Key": "k"})
    problem = problem_of(answer, 422, "invalid_request")
    assert problem["detail"] == "A bulk request has no key of its own."
    assert problem["hint"].startswith("Give each task an idempotency_key")
    assert (await api.get(TASKS)).json()["items"] == []


async def test_a_thousand_tasks_are_taken_and_not_one_more(open_api: OpenApi) -> None:
    task = {"task_type": "counts"}
    async with open_api() as api:
        answer = await api.post(f"{TASKS}/bulk", json={"tasks": [task] * 1000})
        assert {outcome["status"] for outcome in answer.json()["items"]} == {202}
        for count in (0, 1001):
            answer = await api.post(f"{TASKS}/bulk", json={"tasks": [task] * count})
            assert problem_of(answer, 422, "invalid_request")["errors"][0]["field"] == "tasks"


@pytest.mark.parametrize("body", [{}, {"tasks": "x"}, {"tasks": [], "atomic": True}, []])
async def test_a_wrong_envelope_is_refused_as_a_whole(api: Api, body: object) -> None:
    problem_of(await api.post(f"{TASKS}/bulk", json=body), 422, "invalid_request")


async def test_with_the_store_away_the_whole_request_is_to_be_repeated(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(tasks: Sequence[object]) -> list[Exception]:
        return [StoreUnavailableError("mongodb://secret-host is away") for _ in tasks]

    async def no_types(_: object) -> object:
        raise StoreUnavailableError("mongodb://secret-host is away")

    monkeypatch.setattr(api.framework.services.store, "insert", away)
    monkeypatch.setattr(api.framework.services.store, "read_records", no_types)
    for task in (COUNT_WORDS, {"task_type": "elsewhere"}):
        answer = await api.post(f"{TASKS}/bulk", json={"tasks": [task, task]})
        assert "secret" not in problem_of(answer, 503, "store_unavailable")["detail"]
