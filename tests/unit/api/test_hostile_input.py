"""Whatever is sent, the answer is a clear 4xx."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tests.unit.api.conftest import COUNT_WORDS, DEAD_LETTERS, TASKS, Api, problem_of

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
async def test_bodies(api: Api, name: str) -> None:
    content, status, code = BODIES[name]
    problem_of(await api.post(TASKS, content=content, headers=JSON), status, code)


FIELDS: dict[str, Any] = {
    "priority": ["urgent", "", 1, True, {"$gt": ""}],
    "not_before": [5, 1.5, True, "", "tomorrow", "2027-01-01", "1700000000", "2027-01-01T12:00:00", "2027-13-01T00:00:00Z"],
    "deadline": ["2001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:00", [], {}],
    "max_attempts": [0, -1, 1001, 1.0, "5", True, 10**30],
    "idempotency_key": ["", "x" * 201, "a\nb", "a\r\nSet-Cookie: x", "\u0000", "schlüssel", 5, ["a"]],
    "correlation_id": ["", "x" * 201, "a\nb", "\u001b[31m", "ключ", 5, {"a": 1}],
    # Not for callers to say, and fields of what is not built yet.
    **{name: [None, 1] for name in ("user_id", "status", "_id", "task_id", "lease", "fencing_token", "generation")},
    **{name: [None, {"key": "k"}] for name in ("stream", "unique", "parent", "__proto__", "$where", "x" * 10_000)},
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field[:20])
async def test_fields(api: Api, field: str) -> None:
    for value in FIELDS[field]:
        content = orjson.dumps(COUNT_WORDS) if value is ... else _json(COUNT_WORDS | {field: value})
        problem = problem_of(await api.post(TASKS, content=content, headers=JSON), 422, "invalid_request")
        assert field[:100] in problem["errors"][0]["field"], value
    assert (await api.get(TASKS)).json()["items"] == []


def _json(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()
