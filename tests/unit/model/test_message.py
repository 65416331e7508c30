"""The message on the wire."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from taskframework.errors import MessageUnreadableError
from taskframework.model.message import MAX_MESSAGE_BYTES, TaskMessage, claimable_since, read_message, rfc3339
from taskframework.model.status import Priority
from tests.unit.model.scenes import NOW, queued

GOOD: dict[str, Any] = {"schema_version": 1, "task_id": "t-1", "task_type": "count-words", "dispatch_epoch": 3}


def body(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in (GOOD | changes).items() if value is not ...}).encode()


def test_a_message_is_read_as_it_was_written() -> None:
    message = TaskMessage("t-1", "count-words", 3)
    assert json.loads(message.to_body()) == GOOD
    assert read_message(message.to_body()) == message


def test_fields_of_a_newer_writer_are_passed_over() -> None:
    assert read_message(body(novel={"a": 1})) == TaskMessage("t-1", "count-words", 3)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"{" * 10_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "65,537 bytes"),
        (body(schema_version=2), "its schema_version is 2, this release reads 1"),
        (body(schema_version=...), "its schema_version is missing, this release reads 1"),
        (body(schema_version="x" * 1000), "its schema_version is 'xxx"),
        (body(task_id=...), "its task_id is missing"),
        (body(task_id=""), "its task_id is ''"),
        (body(task_id=7), "its task_id is 7"),
        (body(task_id="x" * 101), "its task_id is 'xxx"),
        (body(task_id="a\0b"), "its task_id is 'a"),
        (body(task_type=...), "task_type or dispatch_epoch"),
        (body(task_type=["x"]), "task_type or dispatch_epoch"),
        (body(dispatch_epoch="3"), "task_type or dispatch_epoch"),
        (body(dispatch_epoch=3.0), "task_type or dispatch_epoch"),
        (body(dispatch_epoch=True), "task_type or dispatch_epoch"),
        (body(dispatch_epoch=0), "its dispatch_epoch is 0"),
        (body(dispatch_epoch=-1), "its dispatch_epoch is -1"),
        (body(dispatch_epoch=2**63), "its dispatch_epoch is 9223372036854775808"),
        (body(dispatch_epoch=2**80), "task_type or dispatch_epoch"),
    ],
)
def test_a_message_of_another_form_is_unreadable_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(MessageUnreadableError) as refusal:
        read_message(raw)
    assert reason in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_the_headers_are_for_people_and_tracing() -> None:
    message = TaskMessage.for_task(
        queued(priority="high", traceparent="00-trace", dispatch_epoch=4, attempts=2, crashes=1)
    )
    assert message.lane is Priority.HIGH
    assert message.dispatch_epoch == 4
    assert message.headers == {
        "task_id": "the-task",
        "task_type": "test-task",
        "user_id": "alice",
        "correlation_id": "correlation-1",
        "submitted_at": "2026-01-02T03:03:05.000Z",
        "x-retry-count": 2,
        "x-crashes": 1,
        "traceparent": "00-trace",
    }
    assert "traceparent" not in (TaskMessage.for_task(queued()).headers or {})


@pytest.mark.parametrize("later", [timedelta(0), timedelta(hours=2)], ids=["at once", "later"])
def test_a_message_says_since_when_its_task_waits(later: timedelta) -> None:
    task = queued(created_at=NOW, not_before=NOW + later)
    headers = {name: str(value) for name, value in (TaskMessage.for_task(task).headers or {}).items()}
    assert claimable_since(headers) == NOW + later


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-02T03:04:05", "9" * 100])
def test_a_foreign_message_has_no_time_since_when_its_task_waits(time: str) -> None:
    assert claimable_since({"submitted_at": time}) is None
    assert claimable_since({}) is None


def test_times_look_the_same_everywhere() -> None:
    assert rfc3339(NOW.replace(microsecond=120_000)) == "2026-01-02T03:04:05.120Z"
