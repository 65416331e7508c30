"""Many tasks travel in as few requests as they fit in, and each has its own outcome in its own place."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from taskframework import (
    ApiError,
    ApiUnavailableError,
    InvalidRequestError,
    UnknownTaskTypeError,
    ValueNotStorableError,
)
from taskframework.api.bodies import MAX_BULK_ITEMS
from taskframework.api.problems import problem_of
from taskframework.client import uploads
from taskframework.client.answers import RemoteTask
from taskframework.durations import parse_duration
from tests.unit.client.conftest import Connect, problem, task_view
from tests.unit.client.test_repeating import BATCH

MAIL = "send-mail"


def take(request: httpx.Request) -> httpx.Response:
    """As the interface: one of type `unknown` is refused."""

    def outcome(index: int, one: dict[str, Any]) -> dict[str, Any]:
        if one["task_type"] == MAIL:
            return {"index": index, "status": 202, "task": task_view(parameters=one.get("parameters")), "error": None}
        refusal = problem_of(UnknownTaskTypeError(one["task_type"], ())).document("")
        return {"index": index, "status": 422, "task": None, "error": refusal}

    tasks = json.loads(request.content)["tasks"]
    assert 0 < len(tasks) <= MAX_BULK_ITEMS
    return httpx.Response(200, json={"items": [outcome(index, one) for index, one in enumerate(tasks)]})


async def test_each_submission_has_its_outcome_in_the_given_order(connect: Connect) -> None:
    stage = connect(take, take, take)
    wanted: list[Any] = [{"task_type": MAIL, "parameters": n} for n in range(2500)]
    wanted[1200] = {"task_type": "unknown"}
    wanted[1300] = {"task_type": MAIL, "parameters": object()}
    wanted[7] = {"task_type": MAIL, "parameters": 7, "unique": "what the interface refuses, not the client"}
    outcomes = await stage.client.submit_many(wanted)
    assert len(stage.asked) == 3
    assert [one.parameters for one in outcomes if isinstance(one, RemoteTask)] == [
        n for n in range(2500) if n not in (1200, 1300)
    ]
    assert isinstance(outcomes[1200], UnknownTaskTypeError)
    assert outcomes[1200].task_type == "unknown"
    assert isinstance(outcomes[1300], ValueNotStorableError)


async def test_a_repeated_request_has_the_same_keys(connect: Connect) -> None:
    stage = connect(httpx.ReadError("broken"), take)
    await stage.client.submit_many([{"task_type": MAIL}, {"task_type": MAIL, "idempotency_key": "mine"}])
    first, second = (json.loads(request.content)["tasks"] for request in stage.asked)
    assert first == second
    assert first[0]["idempotency_key"]
    assert first[1]["idempotency_key"] == "mine"


async def test_large_tasks_travel_in_more_requests(connect: Connect) -> None:
    stage = connect(take, take, problem(413, "body_too_large"))
    wanted = [{"task_type": MAIL, "parameters": "x" * size} for size in (400_000, 400_000, 400_000, 2_000_000)]
    outcomes = await stage.client.submit_many(wanted)
    assert [len(json.loads(request.content)["tasks"]) for request in stage.asked] == [2, 1, 1]
    assert all(len(request.content) < 1024 * 1024 for request in stage.asked[:2])
    assert [type(one) for one in outcomes] == [RemoteTask, RemoteTask, RemoteTask, ApiError]


async def test_a_body_that_is_too_large_for_this_interface_is_sent_in_parts(connect: Connect) -> None:
    """Its `api.max_body` may be smaller than the groups of the client, of which all tasks had this error."""

    def take_little(request: httpx.Request) -> httpx.Response:
        return problem(413, "body_too_large") if len(request.content) > 1_000 else take(request)

    stage = connect(*[take_little] * 9)
    sizes = (300, 300, 300, 300, 2_000, 300)
    outcomes = await stage.client.submit_many([{"task_type": MAIL, "parameters": "x" * size} for size in sizes])
    told = [len(one.parameters) if isinstance(one, RemoteTask) else getattr(one, "code", None) for one in outcomes]
    assert told == [300, 300, 300, 300, "body_too_large", 300]
    assert [len(json.loads(request.content)["tasks"]) for request in stage.asked] == [6, 3, 1, 2, 3, 1, 2, 1, 1]


async def test_a_list_that_is_too_large_for_this_interface_is_sent_line_by_line(connect: Connect) -> None:
    stage = connect(problem(413, "body_too_large"), BATCH)
    assert (await stage.client.submit_batch(MAIL, [1, 2, 3], priority="high")).batch_id == "b"
    whole, lines = stage.asked
    assert (lines.headers["content-type"], lines.content) == ("application/x-ndjson", b"1\n2\n3\n")
    assert json.loads(whole.content) == {**lines.url.params, "items": [1, 2, 3]}
    with pytest.raises(ApiError) as refused:
        await connect(problem(422, "other")).client.submit_batch(MAIL, [1])
    assert refused.value.status == 422


async def test_a_lost_request_does_not_hide_the_tasks_of_other_requests(connect: Connect) -> None:
    stage = connect(take, httpx.ConnectError("refused"), patience=0)
    outcomes = await stage.client.submit_many([{"task_type": MAIL}] * 2001)
    assert [type(one) for one in outcomes] == [RemoteTask] * 1000 + [ApiUnavailableError] * 1001


async def test_submitting_no_tasks_sends_no_request(connect: Connect) -> None:
    assert await connect().client.submit_many([]) == []


async def test_a_submission_that_shares_a_task_by_another_option_gets_no_key(connect: Connect) -> None:
    stage = connect(take)
    shared: list[Any] = [
        {"task_type": MAIL, "debounce": {"key": "k", "wait": timedelta(seconds=1.5)}},
        {"task_type": MAIL, "throttle": {"key": "k", "every": "10m"}},
        {"task_type": MAIL, "unique": {"key": "k", "version": 1}},
    ]
    await stage.client.submit_many(shared)
    [request] = stage.asked
    sent = json.loads(request.content)["tasks"]
    assert not any("idempotency_key" in one for one in sent)
    assert parse_duration(sent[0]["debounce"]["wait"]) == timedelta(seconds=1.5)


async def test_a_task_without_its_type_is_refused_alone(connect: Connect) -> None:
    wanted: list[Any] = [{"parameters": 1}, {"task_type": MAIL}, {"task_type": 5}]
    missing, good, wrong = await connect(take).client.submit_many(wanted)
    assert isinstance(missing, InvalidRequestError)
    assert missing.message == "task_type: is missing."
    assert 'Write {"task_type": "send-mail"' in str(missing.hint)
    assert isinstance(good, RemoteTask)
    assert isinstance(wrong, InvalidRequestError)


@pytest.mark.parametrize("wrong", [("send-mail", 1), "send-mail"])
async def test_a_submission_that_is_no_dictionary_is_refused_before_any_request(connect: Connect, wrong: Any) -> None:
    stage = connect()
    with pytest.raises(
        TypeError, match=r"Item 1 of submit_many is a (tuple|str), not a dictionary; give a list of such: \{"
    ):
        await stage.client.submit_many([{"task_type": MAIL}, wrong])
    assert not stage.asked


@pytest.mark.parametrize(("seconds_apart", "pieces"), [(0.1, [b"1\n", b"2\n", b"3\n"]), (0.0, [b"1\n2\n3\n"])])
async def test_items_that_come_one_by_one_are_sent_at_once(
    monkeypatch: pytest.MonkeyPatch, seconds_apart: float, pieces: list[bytes]
) -> None:
    clock = itertools.count(0, seconds_apart)
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert [piece async for piece in uploads.Upload(iter([1, 2, 3]))] == pieces
