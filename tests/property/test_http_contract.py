"""Whatever is sent, the answer is one that the OpenAPI document names: never a 5xx, and never of another form."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from httpx_sse import aconnect_sse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from taskframework import Settings, TaskFramework
from taskframework.api.app import create_app
from tests.acceptance.http_support import COUNT_WORDS, Api, serve

#: About two seconds on a quiet machine.
EXAMPLES = 400
DOCUMENT = create_app(TaskFramework(Settings())).openapi()
OPERATIONS = [(template, method) for template, ways in DOCUMENT["paths"].items() for method in ways]
#: Those that accept something are drawn more often: few of what is drawn for them is right.
ACCEPTING = [(way, method) for way, method in OPERATIONS if "202" in DOCUMENT["paths"][way][method]["responses"]]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"]
#: They answer HEAD as well as GET, for who asks whether a process is there; the document leaves this out.
PROBES = {way for way in DOCUMENT["paths"] if not way.startswith("/api/")}
#: Stand for ids that the test knows when it runs.
PLACES = ("<live>", "<dead>", "<done>")

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
SEGMENTS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=12)
HEADER_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=30)
TYPES = st.sampled_from(["count-words", "refuses", "waits", "returns", "broken"])


@dataclass(frozen=True)
class Call:
    """A request, and the path of the document that it is meant for."""

    template: str
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: list[tuple[str, str]]
    body: bytes | None


def fitting(schema: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Values that the schema describes, most of the time."""
    if "$ref" in schema:
        return fitting(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name)
    if "anyOf" in schema:
        return st.one_of([fitting(kind, name) for kind in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    found: st.SearchStrategy[Any]
    match schema.get("type"):
        case "string" if name in ("task_type", "ids"):
            found = TYPES if name == "task_type" else st.sampled_from(PLACES)
        case "string" if schema.get("format") == "date-time":
            found = st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat())
        case "string" if "pattern" in schema:
            found = st.from_regex(schema["pattern"], fullmatch=True).map(lambda text: text[: schema.get("maxLength")])
        case "string":
            found = st.text(max_size=10)
        case "integer":
            found = st.integers(schema.get("minimum"), schema.get("maximum"))
        case "boolean":
            found = st.booleans()
        case "array":
            found = st.lists(fitting(schema["items"], name), max_size=3)
        case "object":
            parts = {part: fitting(kind, part) for part, kind in schema.get("properties", {}).items()}
            needed = {part: parts.pop(part) for part in schema.get("required", ())}
            found = st.fixed_dictionaries(needed, optional=parts)
        case _:
            found = JSON | st.just({"text": "one two"})
    return st.one_of(found, found, found, JSON)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    template, method = draw(st.sampled_from([*OPERATIONS, *ACCEPTING * 5]))
    operation = DOCUMENT["paths"][template][method]
    segments = st.sampled_from(PLACES) | SEGMENTS.filter(lambda text: text not in (".", "..", "bulk", "replay"))
    path = re.sub(r"\{\w+\}", lambda _: draw(segments.map(lambda text: quote(text, safe="<>"))), template)
    query: list[tuple[str, str]] = []
    headers: list[tuple[str, str]] = []
    for parameter in operation.get("parameters", ()):
        if parameter["in"] != "path" and draw(st.booleans()):
            value = draw(fitting(parameter["schema"], parameter["name"]).map(str) | HEADER_VALUES)
            (query if parameter["in"] == "query" else headers).append((parameter["name"], value))
    query += draw(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=1))
    body = None
    if "requestBody" in operation:
        wanted = fitting(operation["requestBody"]["content"]["application/json"]["schema"])
        no_json = st.binary(max_size=20).map(lambda content: b"{" + content)
        body = draw(wanted.map(lambda value: json.dumps(value).encode()) | no_json | st.none())
        kind = "application/json"
        headers.append(("Content-Type", draw(st.sampled_from([kind, kind, kind, kind, "text/plain"]) | HEADER_VALUES)))
    method = draw(st.sampled_from([method.upper()] * 9 + METHODS))
    return Call(template, method, path, query, _sendable(headers), body)


def _sendable(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What the client's library lets through: no control characters, and Latin-1."""
    return [(name, re.sub(r"[^ -~\xa0-\xff]", "", value).strip()) for name, value in headers]


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    return [f"{error.instance_path}: {error.message[:200]}" for error in validator.iter_errors(value)]


def faults(call: Call, answer: httpx.Response, event: dict[str, str]) -> Iterator[str]:
    """What is wrong about an answer."""
    ways = DOCUMENT["paths"][call.template]
    if call.method == "HEAD" and call.template in PROBES:
        if answer.content or str(answer.status_code) not in ways["get"]["responses"]:
            yield f"{answer.status_code}, or a body, for a probe by HEAD"
        return
    if call.method.lower() not in ways:
        allowed = [*sorted(ways), *(["head"] if call.template in PROBES else [])]
        if answer.status_code != 405 or answer.headers["allow"] != ", ".join(allowed).upper():
            yield f"{answer.status_code}, Allow: {answer.headers.get('allow')}, for a method that is not documented"
        return
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    documented = ways[call.method.lower()]["responses"].get(str(answer.status_code))
    if documented is None or answer.status_code >= 500:
        yield f"status {answer.status_code} is not documented, or an error of ours"
    elif "content" not in documented:
        if answer.content:
            yield "it has a body"
    elif (content := documented["content"].get(media_type)) is None:
        yield f"the content type {media_type!r} is not documented"
    elif media_type == "text/event-stream":
        yield from event_faults(event) if event else ()
    elif media_type.endswith("json"):
        yield from problems(content["schema"], answer.json())
        if media_type == "application/problem+json" and f"`{answer.json()['code']}`" not in documented["description"]:
            yield f"the code {answer.json()['code']} is not documented for this operation"


def event_faults(event: dict[str, str]) -> Iterator[str]:
    schema = DOCUMENT["components"]["schemas"]["StreamedEvent"]
    yield from problems(schema, event)
    yield from problems(schema["properties"]["data"]["contentSchema"], json.loads(event["data"]))


async def sent(stage: Stage, call: Call) -> tuple[httpx.Response, dict[str, str]]:
    """The answer; of a stream its first event, if one came."""
    path, body = call.path, call.body
    for place, task_id in stage.ids.items():
        path, body = path.replace(place, task_id), body and body.replace(place.encode(), task_id.encode())
    headers = [(name.encode(), value.encode("latin-1")) for name, value in call.headers]
    lines: list[str] = []
    query = httpx.QueryParams(tuple(call.query))
    async with stage.api.stream(call.method, path, params=query, headers=headers, content=body) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            async for line in answer.aiter_lines():
                if not line:
                    break
                lines.append(line)
        else:
            await answer.aread()
    parts = (line.partition(": ") for line in lines if not line.startswith(":"))
    return answer, {name: value for name, _, value in parts}


@dataclass
class Stage:
    """A running API with tasks in all states, and what has come of the requests so far."""

    api: Api
    ids: dict[str, str]
    met: Counter[int] = field(default_factory=Counter)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with serve(tmp_path) as api:
        bodies: list[dict[str, Any]] = [{"task_type": "waits"}, {"task_type": "refuses"}, COUNT_WORDS]
        ids = [str((await api.submit(body))["task_id"]) for body in bodies]
        yield Stage(api, dict(zip(PLACES, ids, strict=True)))


# The same requests each time: what makes it fail is a change of the code.
@pytest.mark.timeout(300)
@settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
@given(call=calls())
async def test_no_request_gets_an_answer_that_is_not_documented(stage: Stage, call: Call) -> None:
    answer, event = await sent(stage, call)
    found = list(faults(call, answer, event))
    assert not found, (found, call.method, call.path, event or answer.text)
    stage.met[answer.status_code] += 1
    if stage.met.total() == EXAMPLES:
        assert {200, 202, 400, 404, 405, 409, 415, 422} <= stage.met.keys(), stage.met


async def test_every_event_is_as_documented(stage: Stage) -> None:
    headers = {"Last-Event-ID": "x"}
    async with aconnect_sse(stage.api, "GET", "/api/v1/events", headers=headers) as everything:
        task = await stage.api.submit({"task_type": "flaky", "parameters": {"succeed_at": 2}})
        async with stage.api.events_of(task) as source, asyncio.timeout(20):
            heard = [event async for event in source.aiter_sse() if event.data]
            async for event in everything.aiter_sse():
                heard += [event] if event.data else []  # of a heartbeat httpx-sse makes an event without data
                if event.id.startswith(task["task_id"]) and event.event == "task.completed":
                    break
    assert {"snapshot", "resync", "task.submitted", "task.retrying", "task.completed"} <= {one.event for one in heard}
    for one in heard:
        as_sent = {"event": one.event, "data": one.data} | ({"id": one.id} if one.id else {})
        assert list(event_faults(as_sent)) == [], one
