"""What a person is shown of one task: the facts that docs/operations/stuck-task.md reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from taskframework.cli.render import event_line, print_next_step, print_tasks, print_timeline, task_facts
from taskframework.model.outcome import describe
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, HistoryEntry, Lease, StepOutcome
from taskframework.testing.factories import new_task

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def shown(task: Task) -> dict[str, str]:
    """The facts by their names."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(task_facts(task))
    return {line[:16].strip(): line[16:].strip() for line in _aligned(capture.get())}


def _aligned(text: str) -> list[str]:
    rows = [line.split("  ", 1) for line in text.splitlines() if line.strip()]
    return [f"{row[0]:<16}{row[-1]}" for row in rows]


def test_the_time_of_all_attempts_and_of_the_last_one_are_shown_separately() -> None:
    end = NOW + timedelta(seconds=2.6)
    task = new_task(now=NOW, status=TaskStatus.COMPLETED, finished_at=end, started_at=end - timedelta(milliseconds=5))
    assert shown(task)["Finished"].endswith("02.600Z, after 2.6 s; the last attempt began 5 ms before that")


def test_a_waiting_task_shows_what_it_waits_for() -> None:
    task = new_task(
        now=NOW,
        status=TaskStatus.QUEUED,
        not_before=NOW + timedelta(minutes=1),
        next_dispatch_at=NOW + timedelta(minutes=2),
        dispatches=3,
        no_handler=2,
        crashes=1,
        releases=4,
        fencing_token=7,
    )
    facts = shown(task)
    assert facts["Not before"] == "2026-11-20T12:01:00.000Z"
    assert facts["Next dispatch"] == "2026-11-20T12:02:00.000Z"
    counts = ("Dispatches", "No handler", "Crashes", "Releases", "Fencing token")
    assert [facts[name] for name in counts] == ["3", "2", "1", "4", "7"]


def test_a_running_task_shows_its_lease_its_steps_and_who_wants_it_to_end() -> None:
    task = new_task(
        now=NOW,
        status=TaskStatus.RUNNING,
        next_dispatch_at=None,
        lease=Lease("host:1:abc", "claim", NOW + timedelta(seconds=30)),
        cancel=CancelRequest("ada", NOW, "no longer needed"),
        steps=(StepOutcome("charge", "secret"), StepOutcome("label", None)),
    )
    facts = shown(task)
    assert (facts["Worker"], facts["Lease until"]) == ("host:1:abc", "2026-11-20T12:00:30.000Z")
    assert facts["Cancel asked"] == "by ada at 2026-11-20T12:00:00.000Z: no longer needed"
    assert facts["Steps done"] == "charge, label"
    assert not facts.keys() & {"Next dispatch", "Not before", "Dispatches", "Crashes", "Releases", "No handler"}


def test_the_history_names_the_worker_of_each_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    started = HistoryEntry(2, "started", NOW, 1, "host:1:abc", None)
    completed = HistoryEntry(3, "completed", NOW, 1, "host:1:abc", None)
    print_timeline(new_task(now=NOW, history=(started, completed)))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("started           attempt 1, worker host:1:abc")
    assert second.endswith("completed         attempt 1")


def test_a_new_task_that_was_never_dispatched_shows_no_dispatches() -> None:
    assert shown(new_task(now=NOW))["Dispatches"] == "0"


@pytest.mark.parametrize(
    ("status", "progress", "remark"),
    [
        (TaskStatus.RUNNING, {"percent": 50}, "50 %"),
        (TaskStatus.RUNNING, None, ""),
        (TaskStatus.RETRYING, {"percent": 50}, "OSError: disk"),
        (TaskStatus.DEAD_LETTER, {"percent": 50}, "OSError: disk"),
    ],
)
def test_the_error_of_an_earlier_attempt_hides_no_progress(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: TaskStatus,
    progress: object,
    remark: str,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # set where tests run in parallel
    task = new_task(now=NOW, status=status, progress=progress, error=describe(OSError("disk"), True))
    print_tasks([task], NOW)
    row = capsys.readouterr().out.splitlines()[1]
    assert row.partition("  now")[2].strip() == remark


@pytest.mark.parametrize(("code", "step"), [("invalid_parameters", "dlq edit t1 JSON"), ("timeout", "tasks retry t1")])
def test_a_failed_task_is_shown_with_the_next_step(capsys: pytest.CaptureFixture[str], code: str, step: str) -> None:
    error = describe(ValueError("no"), False, code)
    print_next_step(new_task(task_id="t1", now=NOW, status=TaskStatus.FAILED, error=error))
    said = capsys.readouterr()
    assert f"taskframework {step}\n" in said.out + said.err


def test_a_live_task_shows_the_error_of_an_earlier_attempt_as_that() -> None:
    error = describe(OSError("disk"), True)
    assert shown(new_task(now=NOW, status=TaskStatus.RUNNING, error=error))["Last error"] == "OSError: disk"
    assert shown(new_task(now=NOW, status=TaskStatus.FAILED, error=error))["Error"] == "OSError: disk"


@pytest.mark.parametrize(("name", "is_told"), [("submitted", False), ("started", False), ("retrying", True)])
def test_an_event_from_before_a_failure_does_not_tell_of_it(name: str, is_told: bool) -> None:
    data = {"task_type": "a", "attempt": 1, "error": {"type": "OSError", "message": "disk"}}
    event = {"type": f"task.{name}", "time": "2026", "subject": "1", "data": data}
    assert ("OSError: disk" in event_line(event).plain) is is_told
