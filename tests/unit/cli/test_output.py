"""How times, progress and foreign text are shown."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta

import pytest

from taskframework.cli.batch_watching import print_end
from taskframework.cli.output import ago, as_json_text, note, print_json, print_json_line, printable, say, show_error
from taskframework.cli.render import counts_text, event_line, progress_text
from taskframework.errors import ApiError
from taskframework.model.batch_status import BatchStatus
from taskframework.model.outcome import describe
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import Subtasks
from tests.unit.model.test_batches import sealed_batch

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "now"),
        (-0.5, "now"),
        (1, "1 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7_300, "2 h ago"),
        (200_000, "2 d ago"),
        (-30, "in 30 s"),
        (-7_300, "in 2 h"),
    ],
)
def test_points_in_time_are_shown_as_an_age(seconds: float, shown: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == shown


@pytest.mark.parametrize(
    ("subtasks", "shown"),
    [
        (Subtasks(1, None, 1, failed=1), "1 of 1 sub-task done, 1 failed"),
        (Subtasks(2_000, None, 12), "12 of 2,000 sub-tasks done"),
        (Subtasks(None, None, 3), "3 of an unknown number of sub-tasks done"),
    ],
)
def test_counts_of_sub_tasks_are_shown_as_text(subtasks: Subtasks, shown: str) -> None:
    assert counts_text(subtasks) == shown


def test_progress_in_percent_reads_as_such_and_anything_else_is_shown_as_it_is() -> None:
    assert progress_text({"percent": 12.5, "step": "reading"}) == "12.5 %, step reading"
    assert progress_text({"done": 3}) == '{"done":3}'
    assert progress_text("x" * 500).endswith("…")


def test_foreign_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\x07\x9b") == "a\ufffd[2Jb\nc\ufffd\ufffd"
    assert "\x1b" not in as_json_text({"a": "\x1b[2J"})
    event = {
        "type": "task.failed",
        "subject": "1",
        "time": "2026-11-20T12:00:00.000Z",
        "data": {"task_type": "t", "error": {"type": "x.Error", "message": "\x1b[2J"}, "attempt": 1, "progress": None},
    }
    assert event_line(event).plain.endswith("t  1  Error: \ufffd[2J")


@pytest.mark.parametrize(
    ("name", "attempt", "said"),
    [("progress", 2, "t  1  12.5 %"), ("started", 2, "t  1  attempt 2"), ("started", 1, "t  1")],
)
def test_the_line_of_an_event_says_what_is_new(name: str, attempt: int, said: str) -> None:
    data = {"task_type": "t", "error": None, "attempt": attempt, "progress": {"percent": 12.5}}
    event = {"type": f"task.{name}", "subject": "1", "time": "2026-11-20T12:00:00.000Z", "data": data}
    assert event_line(event).plain.endswith(said)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_is_json_whatever_the_encoding_of_the_output(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    value = {"name": 'é \U0001f389 \\ " \x7f'}
    for write in (print_json, print_json_line):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        monkeypatch.setattr(sys, "stdout", stream)
        write(value)
        stream.flush()
        assert json.loads(stream.buffer.getvalue()) == value


def test_foreign_text_in_lines_and_errors_cannot_steer_it_either(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x1b[2J")
    note("\x1b[2J")
    show_error(ApiError("\x1b[2J", hint="\x9b2J"))
    error = describe(ValueError("\x1b[2J"), retryable=False)
    print_end(BatchStatus(sealed_batch().evolve(status=TaskStatus.FAILED, error=error), NOW, {}))
    said = capsys.readouterr()
    assert not {"\x1b", "\x9b"} & {*said.out, *said.err}
