"""Whatever is sent, the answer is a clear 4xx."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.api.conftest import COUNT_WORDS, DEAD_LETTERS, TASKS, Api, OpenApi, problem_of

JSON = {"Content-Type": "application/json"}


def with_parameters(parameters: bytes) -> bytes:
    return b'{"task_type":"returns","parameters":' + parameters + b"}"


BODIES: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "invalid_json"),
    "half": (b'{"task_type":', 400, "invalid_json"),
    "more than one value": (b"{} {}", 400, "invalid_json"),
    "byte order mark": (b"\xef\xbb\xbf{}", 400, "invalid_json"),
    "invalid UTF-8": (b'{"task_type":"\xff\xfe"}', 400, "invalid_json"),
    "UTF-16": ('{"task_type":"x"}'.encode("utf-16"), 400, "invalid_json"),
    "lone surrogate": (b'{"task_type":"\\ud800"}', 400, "invalid_json"),
    "nested without end": (with_parameters(b"[" * 100_000), 400, "invalid_json"),
    "nested 500 levels": (with_parameters(b"[" * 500 + b"]" * 500), 400, "invalid_json"),
    "nested 100 levels": (with_parameters(b"[" * 100 + b"]" * 100), 422, "value_not_storable"),
    "integer of 20 digits": (with_parameters(b"9" * 20), 422, "value_not_storable"),
    "integer of a megabyte": (with_parameters(b"9" * 1_000_000), 400, "invalid_json"),
    "not a number": (with_parameters(b"NaN"), 422, "value_not_storable"),
    "infinity": (with_parameters(b'{"a":[-Infinity]}'), 422, "value_not_storable"),
    "number beyond doubles": (with_parameters(b"1e999"), 422, "value_not_storable"),
    "NUL in a key": (with_parameters(b'{"\\u0000":1}'), 422, "value_not_storable"),
    "an array": (b"[]", 422, "invalid_request"),
    "a text": (b'"task"', 422, "invalid_request"),
    "null": (b"null", 422, "invalid_request"),
    "no type": (b"{}", 422, "invalid_request"),
    "type is a number": (b'{"task_type":1}', 422, "invalid_request"),
    "type is an operator": (b'{"task_type":{"$ne":null}}', 422, "invalid_request"),
    "type without end": (b'{"task_type":"' + b"x" * 100_000 + b'"}', 422, "invalid_request"),
    "type with NUL": (b'{"task_type":"count-words\\u0000"}', 422, "unknown_task_type"),
    "type with a wildcard": (b'{"task_type":"#"}', 422, "unknown_task_type"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_wrong_body_is_refused(api: Api, name: str) -> None:
    content, status, code = BODIES[name]
    problem_of(await api.post(TASKS, content=content, headers=JSON), status, code)


FIELDS: dict[str, Any] = {
    "priority": ["urgent", "", 1, True, {"$gt": ""}],
    "not_before": [5, 1.5, True, "", "tomorrow", "2027-01-01", "1700000000", "2027-01-01T12:00:00", "2027-13-01T00Z"],
    "deadline": ["2001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:00", [], {}],
    "max_attempts": [0, -1, 1001, 1.0, "5", True, 10**30],
    "idempotency_key": ["", "x" * 201, "a\nb", "a\r\nSet-Cookie: x", "\u0000", "schlüssel", 5, ["a"]],
    "correlation_id": ["", "x" * 201, "a\nb", "\u001b[31m", "ключ", 5, {"a": 1}],
    "user_id": ["", "x" * 201, "a\nb", "ключ", 5, ["a"]],
    # Not for callers to say, and fields of what is not built yet.
    **{name: [None, 1] for name in ("status", "_id", "task_id", "lease", "fencing_token", "generation")},
    **{name: [None, {"key": "k"}] for name in ("parent", "__proto__", "$where", "x" * 10_000)},
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field[:20])
async def test_a_field_with_a_wrong_value_is_refused_with_its_name(api: Api, field: str) -> None:
    for value in FIELDS[field]:
        content = json.dumps(COUNT_WORDS | {field: value})
        problem = problem_of(await api.post(TASKS, content=content, headers=JSON), 422, "invalid_request")
        assert problem["errors"][0]["field"] == field[:100], value
        assert len(problem["detail"]) < 1000, "what was sent is not sent back at length"
    assert (await api.get(TASKS)).json()["items"] == []


@pytest.mark.parametrize(
    "unique",
    [
        *(1, "k", [], {}, {"key": "k"}, {"version": 1}, {"key": "", "version": 1}, {"key": "k", "version": -1}),
        *({"key": "k", "version": 2**53}, {"key": "k", "version": "1"}, {"key": "k", "version": 1, "run": 1}),
        *({"key": "k", "version": True}, {"key": "k", "version": 1, "on_running": "kill"}),
    ],
)
async def test_a_version_is_one_or_none(api: Api, unique: Any) -> None:
    problem = problem_of(await api.post(TASKS, json=COUNT_WORDS | {"unique": unique}), 422, "invalid_request")
    assert problem["errors"][0]["field"].startswith("unique")


@pytest.mark.parametrize(
    "stream",
    [
        *(
            1,
            "k",
            [],
            {},
            {"mode": "serial"},
            {"key": ""},
            {"key": "k", "mode": "parallel"},
            {"key": "k", "position": 1},
        ),
        *({"key": "k", "on_failure": "stop"}, {"key": "k", "deadline": "soon"}, {"key": {"$ne": 1}}, {"key": "\u0000"}),
        {"key": "k", "mode": "ordered_results", "on_failure": "halt"},
    ],
)
async def test_a_stream_is_one_or_none(api: Api, stream: Any) -> None:
    problem = problem_of(await api.post(TASKS, json=COUNT_WORDS | {"stream": stream}), 422, "invalid_request")
    assert problem["errors"][0]["field"].startswith("stream")


CONTENT_TYPES = [
    None,
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json; charset=latin-1",
    "application/jsonp",
    "application/problem+json",
    "application/json, text/plain",
]


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize(
    "path", [TASKS, f"{TASKS}/bulk", f"{TASKS}/x/cancel", f"{TASKS}/x/retry", f"{DEAD_LETTERS}/replay"]
)
async def test_a_body_of_another_content_type_is_refused(api: Api, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    problem_of(await api.post(path, content=b"{}", headers=headers), 415, "unsupported_media_type")


async def test_compressed_json_is_not_read(api: Api) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    problem_of(await api.post(TASKS, content=b"{}", headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json;charset=UTF-8", 'Application/JSON; charset="utf-8"'])
async def test_json_in_utf8_is_read(api: Api, content_type: str) -> None:
    answer = await api.post(TASKS, content=json.dumps(COUNT_WORDS), headers={"Content-Type": content_type})
    assert answer.status_code == 202


HEADERS = ["", "x" * 201, "a\tb", "a\x00b", "a\nb", "a\r\nX: y", "a\x7fb", "schl\u00fcssel"]


@pytest.mark.parametrize("value", HEADERS)
async def test_a_wrong_idempotency_key_in_the_header_is_refused(api: Api, value: str) -> None:
    headers = [(b"Idempotency-Key", value.encode("latin-1"))]
    answer = await api.post(TASKS, json=COUNT_WORDS, headers=headers)
    assert problem_of(answer, 422, "invalid_request")["errors"][0]["field"] == "idempotency_key"


@pytest.mark.parametrize("traceparent", ["", "00-zz-zz-01", "\x00", "x" * 10_000])
async def test_a_broken_trace_is_ignored(api: Api, traceparent: str, caplog: pytest.LogCaptureFixture) -> None:
    headers = [(b"traceparent", traceparent.encode())]
    assert (await api.post(TASKS, json=COUNT_WORDS, headers=headers)).status_code == 202
    assert not caplog.records, "else any client could fill the log"


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize("announced", [None, "10", "nonsense", "-1"])
async def test_the_body_limit_counts_received_bytes_whatever_length_is_announced(
    open_api: OpenApi, announced: str | None
) -> None:
    headers = JSON | ({} if announced is None else {"Content-Length": announced})
    text = json.dumps(COUNT_WORDS).encode()
    async with open_api(api={"max_body": "2KiB"}) as api:
        fits = chunks(text, b" " * (2048 - len(text)))
        assert (await api.post(TASKS, content=fits, headers=headers)).status_code == 202
        problem = problem_of(
            await api.post(TASKS, content=chunks(text, b" " * (2049 - len(text))), headers=headers),
            413,
            "body_too_large",
        )
    assert "2,048 bytes" in problem["detail"]


@pytest.mark.parametrize("announced", ["2049", "9" * 400])
async def test_a_body_announced_as_too_large_is_not_awaited(open_api: OpenApi, announced: str) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with open_api(api={"max_body": "2KiB"}) as api:
        answer = await api.post(TASKS, content=never(), headers={**JSON, "Content-Length": announced})
        problem_of(answer, 413, "body_too_large")


IDS = [
    "%00",
    "a%00b",
    "%2e%2e",
    "$where",
    "a" * 101,
    "a" * 60_000,
    "%D9%A3",
    "a b",
    "%0d%0aX:y",
    "'or'1'='1",
    "%ff",
]


@pytest.mark.parametrize("task_id", IDS, ids=lambda text: text[:12])
async def test_a_wrong_id_in_a_path_is_not_found_without_asking_the_store(
    api: Api, task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*_: object, **__: object) -> None:
        raise AssertionError("the database was asked")

    for name in ("get", "apply"):
        monkeypatch.setattr(api.framework.services.store, name, asked)
    for method, path in [
        ("GET", f"{TASKS}/{task_id}"),
        ("GET", f"{TASKS}/{task_id}/events"),
        ("POST", f"{TASKS}/{task_id}/cancel"),
        ("POST", f"{TASKS}/{task_id}/retry"),
        ("GET", f"{DEAD_LETTERS}/{task_id}"),
    ]:
        problem = problem_of(await api.request(method, path), 404, "task_not_found")
        assert len(problem["detail"]) + len(problem["instance"]) < 1000


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=nonsense", "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=" + "A" * 600, "cursor"),
        ("cursor=OTk5OTk5OTk5OTk5OTk5OTk5OTk5fHg", "cursor"),
        ("unknown=1", "unknown"),
        ("status[$ne]=x", "status[$ne]"),
        ("filter[$where]=1", "filter[$where]"),
        ("sort=$natural", "sort"),
        ("&".join(f"x{number}=1" for number in range(1000)), "x0"),
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("path", [TASKS, DEAD_LETTERS])
async def test_a_wrong_query_parameter_is_refused_with_its_name(api: Api, path: str, query: str, field: str) -> None:
    answer = await api.get(f"{path}?{query}")
    code = answer.json()["code"]
    assert code in ("invalid_request", "invalid_cursor")
    assert problem_of(answer, 422, code)["errors"][0]["field"] == field


async def test_no_request_ignores_a_parameter_that_it_does_not_have(api: Api) -> None:
    document = (await api.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method in operations if path.startswith("/api") else ():
            # A batch has its options in the query if its body has one item per line.
            kind = "application/x-ndjson" if path == "/api/v1/batches" else "application/json"
            answer = await api.request(method, path, params={"zzz": "1"}, headers={"Content-Type": kind})
            problem = problem_of(answer, 422, "invalid_request")
            assert {"field": "zzz", "message": "there is no such field"} in problem["errors"], (method, path)
            answer = await api.request(
                method, path, params=[("zzz", "1"), ("zzz", "2")], headers={"Content-Type": kind}
            )
            assert problem_of(answer, 422, "invalid_request")["detail"] == "Given more than once: zzz."


async def test_no_request_ignores_a_body_that_it_does_not_have(api: Api) -> None:
    document = (await api.get("/openapi.json")).json()
    found = [
        (method, path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if path.startswith("/api") and method != "get" and "requestBody" not in operation
    ]
    assert ("post", "/api/v1/streams/{key}/go-on") in found  # with `position` in the body it went on at any position
    for method, path in found:
        for body in (b'{"position": 7}', b"garbage", b"[]", b" " * 100):
            answer = await api.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert problem_of(answer, 422, "invalid_request")["detail"] == "This call has no body.", (method, path)
        for body in (b"", b"{ }"):  # many clients send an empty object
            answer = await api.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert "has no body" not in answer.text, (method, path)


async def test_a_dry_run_that_is_asked_for_in_the_query_is_not_a_real_one(api: Api) -> None:
    task = await api.submit()
    body = {"filter": {"task_type": "count-words"}}
    problem = problem_of(await api.post(f"{TASKS}/cancel?dry_run=true", json=body), 422, "invalid_request")
    assert problem["detail"] == "dry_run: there is no such parameter in the query."
    assert "send it in the body" in problem["hint"]
    assert (await api.get("/api/v1/admin/replays")).json()["items"] == []
    problem = problem_of(await api.get(f"{TASKS}/{task['task_id']}?history=false"), 422, "invalid_request")
    assert problem["hint"] == "Leave it out; /docs describes the request."


async def test_probes_may_have_any_query(api: Api) -> None:
    assert (await api.get("/healthz?from=balancer&from=here")).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "status=RUN",
        "status=",
        "task_type=" + "x" * 101,
        "parent_task_id=" + "x" * 101,
    ],
)
async def test_a_wrong_filter_of_tasks_is_refused(api: Api, query: str) -> None:
    problem_of(await api.get(f"{TASKS}?{query}"), 422, "invalid_request")


async def test_an_unknown_status_is_refused_with_the_known_ones(api: Api) -> None:
    problem = problem_of(await api.get(f"{TASKS}?status=fail"), 422, "invalid_request")
    assert problem["detail"].startswith("status: Input should be 'QUEUED', 'RUNNING', 'RETRYING', ")


@pytest.mark.parametrize(
    ("method", "path", "body", "detail", "hint"),
    [
        ("POST", TASKS, COUNT_WORDS | {"priorty": "high"}, "priorty: there is no such field.", "'priority'"),
        ("POST", TASKS, COUNT_WORDS | {"zzz": 1}, "zzz: there is no such field.", "Correct the fields"),
        (
            "POST",
            TASKS,
            COUNT_WORDS | {"unique": {"key": "k", "version": 1, "onrunning": "cancel"}},
            "unique.onrunning: there is no such field.",
            "'on_running'",
        ),
        ("GET", f"{TASKS}?state=FAILED&Limit=5", None, "state: there is no such field.", "'status' and 'limit'"),
        ("GET", f"{TASKS}?created_after=2026-01-31T12:00:00", None, "created_after: needs a time zone", "Correct"),
        ("GET", f"{TASKS}/x/subtasks?cursor=x", None, "The cursor is not one this list gave out.", "Leave it out"),
        ("POST", TASKS, [COUNT_WORDS], "The body: Input should be an object.", "Correct"),
        ("POST", f"{DEAD_LETTERS}/replay", {}, "The body: needs either ids or filter, not both.", "Correct"),
        (
            "POST",
            TASKS,
            {"task_type": "count-words"},
            "The parameters are not valid for task type 'count-words': Input should be an object.",
            "/task-types has its schema",
        ),
        (
            "POST",
            TASKS,
            COUNT_WORDS | {"deadline": "2020-01-01T00:00:00Z"},
            "deadline: it is in the past or before not_before.",
            "Give a time",
        ),
    ],
)
async def test_an_honest_mistake_can_be_repaired_by_what_the_answer_says(
    api: Api, method: str, path: str, body: object, detail: str, hint: str
) -> None:
    answer = await api.request(method, path, json=body)
    problem = problem_of(answer, 422, answer.json()["code"])
    assert problem["detail"].startswith(detail)
    assert hint in problem["hint"]
    assert not problem["errors"][0]["message"].startswith(problem["errors"][0]["field"]), "the field is named once"


@pytest.mark.parametrize("query", ["task_type=%00", "task_type=$ne", "task_type=", "task_type=%27"])
async def test_filters_that_match_nothing(api: Api, query: str) -> None:
    await api.submit()
    assert (await api.get(f"{TASKS}?{query}")).json() == {"items": [], "next_cursor": None}


PIPELINES = ["$lease.owner", "$$ROOT", {"$function": {"body": "x"}}, {"a.b": 1, "$set": {"status": "COMPLETED"}}]


@pytest.mark.parametrize("value", PIPELINES, ids=str)
async def test_values_that_look_like_operators_are_kept_as_they_are(api: Api, value: Any) -> None:
    task = await api.submit(task_type="returns", parameters=value)
    cancelled = await api.post(f"{TASKS}/{task['task_id']}/cancel", json={"reason": str(value)})
    assert cancelled.json()["parameters"] == value
    assert cancelled.json()["history"][-1]["data"]["reason"] == str(value)
