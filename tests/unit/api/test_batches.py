"""Batches over HTTP: what is accepted, what is refused, and what is told of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from starlette.requests import Request

from taskframework.api.bodies import prefers
from taskframework.api.ndjson import read_values
from taskframework.testing.eventually import eventually
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of

BATCHES = "/api/v1/batches"
NDJSON = {"Content-Type": "application/x-ndjson"}
WORDS = [{"text": "one"}, {"text": "one two"}, {"text": "one two three"}]


def lines(items: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


async def upload(api: Api, items: Iterable[Any], key: str = "", **options: str) -> Any:
    headers = NDJSON | ({"Idempotency-Key": key} if key else {})
    query = {"task_type": "count-words"} | options
    return await api.post(BATCHES, content=lines(items), headers=headers, params=query)


async def batch_of(api: Api, batch: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"{BATCHES}/{batch['batch_id']}")).json()
    return found


async def finished(api: Api, batch: dict[str, Any]) -> dict[str, Any]:
    async def is_over() -> dict[str, Any] | None:
        found = await batch_of(api, batch)
        return found if found["finished_at"] else None

    return await eventually(is_over)


@pytest.mark.parametrize("is_upload", [False, True], ids=["JSON", "NDJSON"])
async def test_every_item_of_a_batch_is_done(open_api: OpenApi, is_upload: bool) -> None:
    async with open_api(worker=True) as api:
        body = {"task_type": "count-words", "items": WORDS, "priority": "high"}
        answer = await upload(api, WORDS, priority="high") if is_upload else await api.post(BATCHES, json=body)
        assert answer.status_code == 202, answer.text
        batch = answer.json()
        assert answer.headers["location"] == f"{BATCHES}/{batch['batch_id']}"
        assert (batch["total"], batch["is_sealed"], batch["priority"]) == (3, True, "high")

        over = await finished(api, batch)
        assert (over["status"], over["done"], over["succeeded"], over["percent"]) == ("COMPLETED", 3, 3, 100)
        assert over["counts"] == {"COMPLETED": 3}
        assert over["created_at"] <= over["first_result_at"] <= over["finished_at"]

        page = (await api.get(f"{BATCHES}/{batch['batch_id']}/results")).json()
        assert page["next_cursor"] is None
        assert [(one["index"], one["result"]) for one in page["items"]] == [(n, {"words": n + 1}) for n in range(3)]
        child = (await api.get(f"{TASKS}/{page['items'][0]['task_id']}")).json()
        assert (child["parent_task_id"], child["priority"]) == (batch["batch_id"], "high")


@pytest.mark.parametrize(
    ("accept", "are_lines"),
    [
        ("application/x-ndjson", True),
        ("Application/X-NDJSON; q=0.9, application/json;q=0.5", True),
        ("*/*, application/x-ndjson", True),
        ("application/x-ndjson;q=0", False),
        ("application/json, application/x-ndjson;q=0.1", False),
        ("application/x-ndjson;q=high", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_lines_are_sent_to_those_who_prefer_them(accept: str, are_lines: bool) -> None:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert prefers(request, "application/x-ndjson") is are_lines


async def test_results_are_lines_while_it_runs(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        batch = (await api.post(BATCHES, json={"task_type": "count-words", "items": WORDS * 100})).json()
        answer = await api.get(f"{BATCHES}/{batch['batch_id']}/results", headers={"Accept": "application/x-ndjson"})
        assert answer.headers["content-type"] == "application/x-ndjson"
        results = [json.loads(line) for line in answer.text.splitlines()]
        assert [result["index"] for result in results] == list(range(300)), "each once, in order"
        assert {result["status"] for result in results} == {"COMPLETED"}


async def test_failures_are_allowed_counted_and_retried(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        body = {"task_type": "flaky", "items": [{"succeed_at": 1}, {"succeed_at": 9}], "max_attempts": 1}
        batch = (await api.post(BATCHES, json=body)).json()
        over = await finished(api, batch)
        assert (over["status"], over["succeeded"], over["failed"]) == ("COMPLETED_WITH_ERRORS", 1, 1)
        failed = (await api.get(f"{BATCHES}/{batch['batch_id']}/results")).json()["items"][1]
        assert (failed["status"], failed["error"]["message"]) == ("DEAD_LETTER", "not yet")

        answer = await api.post(f"{BATCHES}/{batch['batch_id']}/retry-failed")
        assert (answer.status_code, answer.json()["status"]) == (202, "WAITING")
        await finished(api, batch)
        task = (await api.get(f"{TASKS}/{failed['task_id']}")).json()
        assert (task["generation"], task["status"]) == (1, "DEAD_LETTER")
        untouched = (await api.get(f"{BATCHES}/{batch['batch_id']}/results")).json()["items"][0]["task_id"]
        assert (await api.get(f"{TASKS}/{untouched}")).json()["generation"] == 0


async def test_a_policy_decides_what_a_failure_means(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        body = {"task_type": "refuses", "items": [None], "policy": "all_must_succeed"}
        over = await finished(api, (await api.post(BATCHES, json=body)).json())
        assert (over["status"], over["error"]["code"]) == ("FAILED", "subtasks_failed")


async def test_a_cancelled_batch_cancels_its_tasks(api: Api) -> None:
    batch = (await upload(api, WORDS)).json()
    path = f"{BATCHES}/{batch['batch_id']}"
    answer = await api.post(f"{path}/cancel", json={"reason": "not needed"})
    assert (answer.status_code, answer.json()["status"]) == (202, "CANCELLED")
    refused = problem_of(await api.post(f"{path}/cancel"), 409, "transition_refused")
    assert refused["detail"].startswith("Batch ")
    assert refused["hint"].startswith("Only a batch that is ")

    async def all_cancelled() -> bool:
        return bool((await batch_of(api, batch))["counts"] == {"CANCELLED": 3})

    await eventually(all_cancelled)


async def test_a_batch_is_listed_among_batches_only(api: Api) -> None:
    task = await api.submit()
    batch = (await upload(api, WORDS)).json()
    listed = (await api.get(BATCHES)).json()
    assert [one["batch_id"] for one in listed["items"]] == [batch["batch_id"]]
    assert (listed["items"][0]["total"], listed["items"][0]["counts"], listed["next_cursor"]) == (3, None, None)
    assert (await api.get(BATCHES, params={"task_type": "other"})).json()["items"] == []
    tasks = {one["task_id"] for one in (await api.get(TASKS)).json()["items"]}
    assert task["task_id"] in tasks
    assert batch["batch_id"] not in tasks
    assert (await api.get(f"{TASKS}/{batch['batch_id']}")).json()["subtasks"]["planned"] == 3
    problem_of(await api.get(f"{BATCHES}/{task['task_id']}"), 404, "task_not_found")
    problem_of(await api.post(f"{BATCHES}/{task['task_id']}/retry-failed"), 404, "task_not_found")


async def test_a_filter_that_batches_do_not_have_is_refused(api: Api) -> None:
    problem_of(await api.get(BATCHES, params={"parent_task_id": "x"}), 422, "invalid_request")


async def test_a_batch_is_not_retried_as_a_task(api: Api) -> None:
    batch = (await upload(api, WORDS)).json()
    await api.post(f"{BATCHES}/{batch['batch_id']}/cancel")
    problem = problem_of(await api.post(f"{TASKS}/{batch['batch_id']}/retry"), 409, "transition_refused")
    assert "is a batch" in problem["detail"]
    assert f"/batches/{batch['batch_id']}/retry-failed" in problem["hint"]


async def test_pages_of_results_tell_where_to_go_on(api: Api) -> None:
    batch = (await upload(api, WORDS * 3)).json()
    seen, cursor = [], "0"
    while cursor is not None:
        query = {"limit": "4", "cursor": cursor}
        page = (await api.get(f"{BATCHES}/{batch['batch_id']}/results", params=query)).json()
        seen += [one["index"] for one in page["items"]]
        cursor = page["next_cursor"]
    assert seen == list(range(9))


@pytest.mark.parametrize("is_upload", [False, True], ids=["JSON", "NDJSON"])
async def test_the_same_upload_again_is_the_same_batch(api: Api, is_upload: bool) -> None:
    async def send(items: list[Any]) -> Any:
        if is_upload:
            return await upload(api, items, "k")
        body = {"task_type": "count-words", "items": items, "idempotency_key": "k"}
        return await api.post(BATCHES, json=body)

    first, again = await send(WORDS), await send(WORDS)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["batch_id"] == first.json()["batch_id"]
    other = [*WORDS[:2], {"text": "else"}]
    for items, index in ((other, 2), (WORDS[:2], 2), ([*WORDS, *WORDS], 3)):
        problem = problem_of(await send(items), 409, "batch_conflict")
        assert problem["errors"][0]["field"] == f"items.{index}"
    assert (await batch_of(api, first.json()))["counts"] == {"QUEUED": 3}


async def test_the_key_of_a_batch_is_for_that_type_and_policy(api: Api) -> None:
    await upload(api, WORDS, "k")
    problem_of(await upload(api, WORDS, "k", policy="first_success"), 409, "idempotency_conflict")
    problem_of(await upload(api, [None], "k", task_type="waits"), 409, "idempotency_conflict")


async def test_an_upload_with_a_wrong_line_is_corrected_and_continued(api: Api) -> None:
    for wrong, code in ((b'{"text": 5}', "invalid_parameters"), (b"{", "invalid_json")):
        content = lines(WORDS[:2]) + wrong + b"\n" + lines(WORDS)
        headers = NDJSON | {"Idempotency-Key": "k"}
        answer = await api.post(BATCHES, content=content, headers=headers, params={"task_type": "count-words"})
        problem = problem_of(answer, 422 if code == "invalid_parameters" else 400, code)
        assert problem["errors"][0]["field"].startswith("items.2")
    [batch] = (await api.get(BATCHES)).json()["items"]
    assert (batch["status"], batch["is_sealed"]) == ("WAITING", False)
    whole = (await upload(api, WORDS, "k")).json()
    assert (whole["batch_id"], whole["is_sealed"], whole["total"]) == (batch["batch_id"], True, 3)


async def test_an_upload_that_fails_without_a_key_is_cancelled(api: Api) -> None:
    async def breaks_off() -> AsyncIterator[bytes]:
        yield lines(WORDS)
        yield b"{\n"

    answer = await api.post(BATCHES, content=breaks_off(), headers=NDJSON, params={"task_type": "count-words"})
    problem_of(answer, 400, "invalid_json")
    [batch] = (await api.get(BATCHES)).json()["items"]
    assert batch["status"] == "CANCELLED"
    refused = await api.post(f"{BATCHES}/{batch['batch_id']}/retry-failed")
    problem_of(refused, 409, "transition_refused")
    assert "submit the items again" in refused.json()["hint"], "it never can be retried, also when all is cancelled"


async def test_an_abandoned_upload_is_cancelled(open_api: OpenApi) -> None:
    async with open_api(batches={"upload_timeout": "1s"}) as api:
        content = lines(WORDS) + b"{\n"
        headers = NDJSON | {"Idempotency-Key": "k"}
        await api.post(BATCHES, content=content, headers=headers, params={"task_type": "count-words"})
        [batch] = (await api.get(BATCHES)).json()["items"]
        over = await finished(api, batch)
        assert (over["status"], over["error"]["code"]) == ("CANCELLED", "upload_abandoned")
        problem_of(await upload(api, WORDS, "k"), 409, "batch_closed")

        async def cancelled_item() -> dict[str, Any] | None:
            found = (await api.get(f"{TASKS}?parent_task_id={batch['batch_id']}&status=CANCELLED")).json()["items"]
            return found[0] if found else None

        item = await eventually(cancelled_item)
        for body in ({}, {"reopen": True}):
            refused = await api.post(f"{TASKS}/{item['task_id']}/retry", json=body)
            assert "Submit the items again" in problem_of(refused, 409, "parent_finished")["hint"]
        assert (await batch_of(api, batch))["status"] == "CANCELLED"


BODIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no items": ({"task_type": "count-words", "items": []}, "invalid_request", "items"),
    "too many": ({"task_type": "waits", "items": [None] * 1001}, "invalid_request", "items"),
    "no type": ({"items": WORDS}, "invalid_request", "task_type"),
    "an unknown type": ({"task_type": "nothing", "items": WORDS}, "unknown_task_type", "task_type"),
    "a wrong item": ({"task_type": "count-words", "items": [*WORDS, {}]}, "invalid_parameters", "items.3.text"),
    "an item of no use": ({"task_type": "returns", "items": [2**70]}, "value_not_storable", "items.0"),
    "an unknown field": ({"task_type": "waits", "items": [None], "atomic": True}, "invalid_request", "atomic"),
    "an unknown policy": ({"task_type": "waits", "items": [None], "policy": "most"}, "invalid_request", "policy"),
    "an impossible policy": (
        {"task_type": "waits", "items": [None], "policy": "at_least(2)"},
        "invalid_request",
        "policy",
    ),
    "a passed deadline": (
        {"task_type": "waits", "items": [None], "deadline": "2001-01-01T00:00:00Z"},
        "invalid_request",
        "deadline",
    ),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_wrong_body_stores_nothing(api: Api, name: str) -> None:
    body, code, field = BODIES[name]
    problem = problem_of(await api.post(BATCHES, json=body), 422, code)
    assert problem["errors"][0]["field"] == field
    assert (await api.get(BATCHES)).json()["items"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "task_type"),
        ({"task_type": "waits", "items": "1"}, "items"),
        ({"task_type": "waits", "max_attempts": "0"}, "max_attempts"),
        ({"task_type": "waits", "max_attempts": "many"}, "max_attempts"),
        ({"task_type": "waits", "chunk_size": "9" * 5000}, "chunk_size"),
        ({"task_type": "waits", "chunk_size": "\N{ARABIC-INDIC DIGIT THREE}"}, "chunk_size"),
        ({"task_type": "waits", "policy": ""}, "policy"),
    ],
)
async def test_wrong_options_of_an_upload_store_nothing(api: Api, query: dict[str, str], field: str) -> None:
    answer = await api.post(BATCHES, content=lines([None]), headers=NDJSON, params=query)
    assert problem_of(answer, 422, "invalid_request")["errors"][0]["field"] == field
    assert (await api.get(BATCHES)).json()["items"] == []


async def test_batch_options_in_the_wrong_place_are_refused(api: Api) -> None:
    body = {"task_type": "count-words", "items": WORDS}
    problem_of(await api.post(f"{BATCHES}?priority=high", json=body), 422, "invalid_request")
    both = await api.post(BATCHES, json=body | {"idempotency_key": "a"}, headers={"Idempotency-Key": "b"})
    problem_of(both, 422, "invalid_request")


async def test_an_upload_of_nothing_is_refused(api: Api) -> None:
    for content in (b"", b"\n \n"):
        answer = await api.post(BATCHES, content=content, headers=NDJSON, params={"task_type": "waits"})
        problem_of(answer, 422, "invalid_request")
    assert (await api.get(BATCHES)).json()["items"] == []


async def test_a_line_has_a_limit(api: Api) -> None:
    content = lines([{"text": "x"}]) + b'{"text": "' + b"x" * 3_000_000 + b'"}\n'
    answer = await api.post(BATCHES, content=content, headers=NDJSON, params={"task_type": "count-words"})
    assert problem_of(answer, 413, "body_too_large")["errors"][0]["field"] == "items.1"


@pytest.mark.timeout(60)  # it takes two seconds; copied for each piece, the line took minutes
async def test_a_long_line_in_small_pieces_is_not_copied_for_each_of_them() -> None:
    pieces = [b'"', *[b"0123456789"] * 200_000, b'"\n2\n', b"3"]
    messages = iter({"type": "http.request", "body": piece, "more_body": True} for piece in [*pieces, b""])

    async def receive() -> Any:
        return next(messages, {"type": "http.request", "body": b"", "more_body": False})

    read = [values async for values in read_values(Request({"type": "http"}, receive))]
    assert read == [["0123456789" * 200_000, 2], [3]]


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-ndjson; charset=latin-1"])
async def test_a_batch_of_another_content_type_is_refused(api: Api, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    problem_of(await api.post(BATCHES, content=b"{}", headers=headers), 415, "unsupported_media_type")
    answer = await api.post(BATCHES, content=b"{}", headers=headers, params={"task_type": "count-words"})
    told = problem_of(answer, 415, "unsupported_media_type")["hint"]
    assert "send the header Content-Type: application/x-ndjson" in told


async def test_options_in_the_query_of_json_are_refused(api: Api) -> None:
    answer = await api.post(BATCHES, json={"task_type": "count-words", "items": []}, params={"priority": "low"})
    assert "send the options as fields of the body" in problem_of(answer, 422, "invalid_request")["hint"]


async def test_a_line_that_is_not_json_is_named_by_its_item(api: Api) -> None:
    content = b'{"text": "a"}\n\n{"text":\n'
    answer = await api.post(BATCHES, content=content, headers=NDJSON, params={"task_type": "count-words"})
    told = problem_of(answer, 400, "invalid_json")["detail"]
    assert told.startswith("Item 1 (the first is 0) is not JSON: EOF while parsing a value at column 8.")


async def test_compressed_lines_are_not_read(api: Api) -> None:
    headers = NDJSON | {"Content-Encoding": "gzip"}
    answer = await api.post(BATCHES, content=b"{}", headers=headers, params={"task_type": "waits"})
    problem_of(answer, 415, "unsupported_media_type")


async def test_empty_lines_do_not_keep_an_upload_open(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.api.ndjson.LINE_TIMEOUT_SECONDS", 0.2)

    async def empty_lines() -> AsyncIterator[bytes]:
        yield b'{"text": "a"}\n'
        while True:
            await asyncio.sleep(0.01)
            yield b" \n\n"

    async with asyncio.timeout(20):
        answer = await api.post(f"{BATCHES}?task_type=count-words", content=empty_lines(), headers=NDJSON)
    problem_of(answer, 408, "request_timeout")


async def test_each_line_renews_the_time_limit_of_an_upload_even_in_pieces(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.api.ndjson.LINE_TIMEOUT_SECONDS", 0.5)

    async def lines_in_pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            for piece in (b'{"text":', b' "a"}', b"\n"):
                yield piece
            await asyncio.sleep(0.1)

    answer = await api.post(f"{BATCHES}?task_type=count-words", content=lines_in_pieces(), headers=NDJSON)
    assert (answer.status_code, answer.json()["total"]) == (202, 10)
