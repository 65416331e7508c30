"""Ordered streams over HTTP: how one is, its results as a page and as events, letting it go on."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema_rs import Draft202012Validator

from taskframework import BackgroundTaskExecutable, TaskContext
from taskframework.api.stream_views import StreamPage, StreamResultPage, StreamView
from taskframework.model import streams
from taskframework.testing.eventually import eventually
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of

STREAMS = "/api/v1/streams"
ORDERED = {"key": "o", "mode": "ordered_results"}


class Gives(BackgroundTaskExecutable[int, int]):
    """Gives back its number; a negative one fails."""

    task_type = "gives"

    async def execute(self, context: TaskContext[int]) -> int:
        if context.parameters < 0:
            raise ValueError("negative")
        return context.parameters


@pytest.fixture
async def worker(open_api: OpenApi) -> AsyncIterator[Api]:
    async with open_api(worker=True, extra=[Gives], streams={"gap": "5s"}) as api:
        yield api


async def submit(api: Api, *numbers: int, **stream: Any) -> list[dict[str, Any]]:
    tasks = [{"task_type": "gives", "parameters": number, "stream": stream} for number in numbers]
    answer = await api.post(f"{TASKS}/bulk", json={"tasks": tasks})
    assert {item["status"] for item in answer.json()["items"]} == {202}
    return [item["task"] for item in answer.json()["items"]]


async def results(api: Api, key: str, count: int, first: int = 0) -> list[dict[str, Any]]:
    """The results of a page, once there are so many."""

    async def page() -> list[dict[str, Any]] | None:
        answer = await api.get(f"{STREAMS}/{key}/results", params={"from_position": first})
        assert answer.status_code == 200, answer.text
        StreamResultPage.model_validate(answer.json())
        assert answer.json()["next_cursor"] == str(first + len(answer.json()["items"]))
        items: list[dict[str, Any]] = answer.json()["items"]
        return items if len(items) == count else None

    return await eventually(page, timeout=20)


async def test_a_stream_is_shown_and_its_tasks_are_listed(api: Api) -> None:
    first = await api.submit(stream={"key": "a/b"})
    second = await api.submit(stream={"key": "a/b", "on_failure": "halt"})
    await api.submit()
    assert (first["status"], second["status"], second["stream"]) == (
        "BLOCKED",
        "BLOCKED",
        {"key": "a/b", "mode": "serial", "position": 1, "is_skipped": False},
    )
    for address in ("a/b", "a%2Fb"):
        answer = await api.get(f"{STREAMS}/{address}")
        StreamView.model_validate(answer.json())
        assert answer.json() == {
            "key": "a/b",
            "mode": "serial",
            "next_position": 2,
            "turn": {"task_id": first["task_id"], "position": 0},
            "waiting": 1,
            "is_halted": False,
        }
    listed = (await api.get(TASKS, params={"stream": "a/b"})).json()["items"]
    assert [(task["task_id"], task["status"]) for task in listed] == [
        (second["task_id"], "BLOCKED"),
        (first["task_id"], "QUEUED"),
    ]
    blocked = (await api.get(TASKS, params={"stream": "a/b", "status": "BLOCKED"})).json()["items"]
    assert [task["task_id"] for task in blocked] == [second["task_id"]]


async def test_a_page_has_what_is_known_in_order(worker: Api) -> None:
    tasks = await submit(worker, 5, -1, 7, **ORDERED)
    items = await results(worker, "o", 3)
    assert [(item["position"], item["status"], item["result"]) for item in items] == [
        (0, "COMPLETED", 5),
        (1, "FAILED", None),
        (2, "COMPLETED", 7),
    ]
    assert ([item["task_id"] for item in items], items[1]["error"]["message"]) == (
        [task["task_id"] for task in tasks],
        "negative",
    )
    assert await results(worker, "o", 1, first=2) == items[2:]
    assert (await worker.get(f"{STREAMS}/o/results?limit=2")).json() == {"items": items[:2], "next_cursor": "2"}
    assert (await worker.get(f"{STREAMS}/o/results?from_position=3")).json() == {"items": [], "next_cursor": "3"}


@pytest.mark.parametrize(
    "key", ["a/results", "a/go-on", "results", "go-on", "/results", "a//results", "a/results/results"]
)
async def test_a_key_may_end_like_an_address(worker: Api, key: str) -> None:
    await submit(worker, 1, 2, key=key, mode="ordered_results")
    sent = quote(key, safe="")
    assert (await worker.get(f"{STREAMS}/{sent}")).json()["key"] == key
    assert [one["result"] for one in await results(worker, sent, 2)] == [1, 2]
    assert [one["result"] for one in await results(worker, key, 2)] == [1, 2], "slashes may be sent as they are"
    problem_of(await worker.post(f"{STREAMS}/{sent}/go-on"), 409, "transition_refused")
    refused = await worker.get(f"{STREAMS}/{sent}/go-on")
    assert problem_of(refused, 405, "method_not_allowed")["hint"] == "Use POST."
    assert refused.headers["allow"] == "POST"


async def test_streams_are_listed_by_user_and_key_page_by_page(api: Api) -> None:
    for key in ("b", "a/~", "c"):
        await api.submit(stream={"key": key})
    await api.submit(stream={"key": "z", "mode": "ordered_results"})
    path, found = "/api/v1/admin/streams", []
    page = (await api.get(path, params={"limit": 3})).json()
    while True:
        StreamPage.model_validate(page)
        found += page["items"]
        if page["next_cursor"] is None:
            break
        page = (await api.get(path, params={"limit": 3, "cursor": page["next_cursor"]})).json()
    assert [(one["key"], one["mode"]) for one in found] == [
        ("a/~", "serial"),
        ("b", "serial"),
        ("c", "serial"),
        ("z", "ordered_results"),
    ]
    first = found[0]
    assert (first["user_id"], first["next_position"], first["is_halted"]) == ("anonymous", 1, False)
    assert (first["last_turn"]["position"], found[3]["last_turn"]) == (0, None)
    assert (await api.get(path, params={"user_id": "anonymou"})).json() == {"items": [], "next_cursor": None}
    assert len((await api.get(path, params={"user_id": "anonymous"})).json()["items"]) == 4
    problem_of(await api.get(path, params={"cursor": "x"}), 422, "invalid_cursor")


@pytest.mark.parametrize(("method", "end"), [("GET", ""), ("GET", "/results"), ("POST", "/go-on")])
async def test_a_stream_key_with_a_line_break_is_not_found(api: Api, method: str, end: str) -> None:
    problem_of(await api.request(method, f"{STREAMS}/%0A{end}"), 404, "task_not_found")


async def test_the_list_goes_on_behind_every_key_and_its_cursor_is_as_the_document_says(api: Api) -> None:
    store = api.framework.services.store
    keys = ["/" * 200, "a/b c", "z"]
    await store.write_records([streams.STREAMS.new("a b/c" * 40, key, content=streams.Stream()) for key in keys])
    page = (await api.get("/api/v1/admin/streams", params={"limit": 1})).json()
    for key in keys[1:]:
        page = (await api.get("/api/v1/admin/streams", params={"limit": 1, "cursor": page["next_cursor"]})).json()
        assert [one["key"] for one in page["items"]] == [key], page
    assert page["next_cursor"] is None
    document = (await api.get("/openapi.json")).json()
    [cursor] = [
        parameter["schema"]
        for parameter in document["paths"]["/api/v1/admin/streams"]["get"]["parameters"]
        if parameter["name"] == "cursor"
    ]
    page = (await api.get("/api/v1/admin/streams", params={"limit": 2})).json()
    assert re.search(cursor["pattern"], page["next_cursor"])
    assert len(page["next_cursor"]) <= cursor["maxLength"]
    page_schema = {"$ref": "#/components/schemas/StreamPage", "components": document["components"]}
    assert Draft202012Validator(page_schema).is_valid(page)


async def test_few_halted_streams_are_found_among_many(api: Api) -> None:
    store = api.framework.services.store
    for first in range(0, 5_600, 700):
        halted = {f"k{number:05}": number == 5_555 for number in range(first, first + 700)}
        records = [streams.STREAMS.new("u", key, content=streams.Stream(is_halted=it)) for key, it in halted.items()]
        await store.write_records(records)
    path = "/api/v1/admin/streams"
    page = (await api.get(path, params={"is_halted": "true"})).json()
    assert page["items"] == [], "a page looks at 5,000 and then asks to go on"
    page = (await api.get(path, params={"is_halted": "true", "cursor": page["next_cursor"]})).json()
    assert ([one["key"] for one in page["items"]], page["next_cursor"]) == (["k05555"], None)


async def test_a_halted_stream_continues_when_an_operator_orders_it(worker: Api) -> None:
    halting, last = *(await submit(worker, -1, key="k", on_failure="halt")), *(await submit(worker, 1, key="k"))

    async def is_halted() -> bool:
        return bool((await worker.get(f"{STREAMS}/k")).json()["is_halted"])

    await eventually(is_halted, timeout=20)
    [halted] = (await worker.get("/api/v1/admin/streams?is_halted=true")).json()["items"]
    assert (halted["key"], halted["last_turn"]["task_id"]) == ("k", halting["task_id"])
    view = (await worker.get(f"{STREAMS}/k")).json()
    assert (view["turn"], view["waiting"]) == ({"task_id": halting["task_id"], "position": 0}, 1)
    other = problem_of(await worker.post(f"{STREAMS}/k/go-on?position=1"), 409, "transition_refused")
    assert "not halted at position 1" in other["detail"]
    answer = await worker.post(f"{STREAMS}/k/go-on?position=0")
    assert (answer.status_code, answer.json()["is_halted"]) == (200, False)
    assert (await worker.finished(last))["status"] == "COMPLETED"
    refused = problem_of(await worker.post(f"{STREAMS}/k/go-on"), 409, "transition_refused")
    assert "task_status" not in refused, "a stream is no task"
    problem_of(await worker.get(f"{STREAMS}/k/go-on"), 405, "method_not_allowed")


async def test_unknown_streams_and_wrong_queries_are_refused(api: Api) -> None:
    for address in (f"{STREAMS}/none", f"{STREAMS}/none/results", f"{STREAMS}/{'x' * 300}", f"{STREAMS}/%00"):
        problem_of(await api.get(address), 404, "task_not_found")
    problem_of(await api.post(f"{STREAMS}/none/go-on"), 404, "task_not_found")
    await api.submit(stream=ORDERED)
    for query in ("from_position=-1", "from_position=x", "limit=0", "limit=501", "cursor=1", "limit=1&limit=2"):
        problem_of(await api.get(f"{STREAMS}/o/results?{query}"), 422, "invalid_request")
    accept = {"Accept": "text/event-stream"}
    for last in ("x", "-1", "9" * 30, "1-2"):
        headers = {**accept, "Last-Event-ID": last}
        problem_of(await api.get(f"{STREAMS}/o/results", headers=headers), 422, "invalid_request")
    problem_of(await api.get(f"{STREAMS}/none/results", headers=accept), 404, "task_not_found")
    excluded = {"Accept": "application/json, text/event-stream;q=0", "Last-Event-ID": "x"}
    assert (await api.get(f"{STREAMS}/o/results", headers=excluded)).json()["items"] == [], "a page, not events"
    body = {"task_type": "count-words", "parameters": {"text": "a"}, "stream": {"key": "o", "mode": "serial"}}
    assert "has the mode ordered_results" in json.dumps(
        problem_of(await api.post(TASKS, json=body), 409, "stream_mode")
    )
