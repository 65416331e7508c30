"""Debounced, throttled and versioned submissions over HTTP: what is shared, what is refused, and what to do next."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.conftest import COUNT_WORDS, TASKS, Api, problem_of

DEBOUNCE: dict[str, Any] = {"debounce": {"key": "page", "wait": "1h"}}
THROTTLE: dict[str, Any] = {"throttle": {"key": "page", "every": "300d"}}


def wanted(text: str, option: dict[str, Any]) -> dict[str, Any]:
    return {**COUNT_WORDS, "parameters": {"text": text}, **option}


@pytest.mark.parametrize(("option", "text"), [(DEBOUNCE, "two"), (THROTTLE, "one")], ids=["debounce", "throttle"])
async def test_a_submission_that_shares_an_existing_task_is_answered_with_200(
    api: Api, option: dict[str, Any], text: str
) -> None:
    first = await api.post(TASKS, json=wanted("one", option))
    second = await api.post(TASKS, json=wanted("two", option))
    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json()["task_id"] == first.json()["task_id"]
    assert second.headers["location"] == first.headers["location"]
    assert (await api.get(first.headers["location"])).json()["parameters"] == {"text": text}


@pytest.mark.parametrize("option", [DEBOUNCE, THROTTLE], ids=["debounce", "throttle"])
async def test_submissions_in_bulk_share_a_task_too(api: Api, option: dict[str, Any]) -> None:
    tasks = [wanted(str(n), option) for n in range(3)]
    items = (await api.post(f"{TASKS}/bulk", json={"tasks": tasks})).json()["items"]
    assert [item["status"] for item in items] == [202, 200, 200]
    assert len({item["task"]["task_id"] for item in items}) == 1


@pytest.mark.parametrize(
    ("option", "field", "said"),
    [
        ({**DEBOUNCE, "idempotency_key": "k"}, "debounce", "Submissions with this key already share one task."),
        ({**DEBOUNCE, **THROTTLE}, "throttle", "Submissions with this key already share one task."),
        ({**DEBOUNCE, "not_before": "2030-01-01T00:00:00Z"}, "not_before", "starts when its wait is over"),
        ({"debounce": {"key": "k", "wait": "1h", "max_wait": "1m"}}, "debounce.max_wait", "not shorter than wait"),
        ({"debounce": {"key": "k", "wait": 5}}, "debounce.wait", "needs a unit: 5s for seconds"),
        ({"debounce": {"key": "k", "wait": "soon"}}, "debounce.wait", "a duration such as 30s"),
        ({"debounce": {"key": "k", "wait": ["1s"]}}, "debounce.wait", "a duration such as 30s"),
        ({"debounce": {"wait": "1s"}}, "debounce.key", ""),
        ({"debounce": "page"}, "debounce", ""),
        ({"throttle": {"key": "k", "every": "0s"}}, "throttle.every", "from 1ms to 366d"),
        ({"throttle": {"key": "\n", "every": "1s"}}, "throttle.key", "printable"),
        ({"throttle": {"key": "k", "every": "1s", "first": True}}, "throttle.first", ""),
    ],
)
async def test_contradicting_options_are_refused_with_the_name_of_the_field(
    api: Api, option: dict[str, Any], field: str, said: str
) -> None:
    answer = await api.post(TASKS, json=wanted("one", option))
    problem = problem_of(answer, 422, "invalid_request")
    assert problem["errors"][0]["field"] == field
    assert said in answer.text
    assert (await api.get(TASKS)).json()["items"] == []


async def test_a_key_in_the_header_is_refused_too(api: Api) -> None:
    answer = await api.post(TASKS, json=wanted("one", DEBOUNCE), headers={"Idempotency-Key": "k"})
    assert problem_of(answer, 422, "invalid_request")["errors"][0]["field"] == "debounce"


async def test_a_version_that_is_a_task_of_another_type_is_refused_and_names_it(api: Api) -> None:
    version = {"unique": {"key": "page", "version": 1}}
    first = (await api.post(TASKS, json=wanted("one", version))).json()
    problem = problem_of(await api.post(TASKS, json={"task_type": "waits", **version}), 409, "version_conflict")
    assert problem["task_id"] == first["task_id"]
    assert "of the type 'count-words'" in problem["detail"]
    assert "Use another key for this type, or a higher version." in problem["hint"]
