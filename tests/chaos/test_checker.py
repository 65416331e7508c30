"""The checker finds what it is there to find: a good history is clean, and for each rule a bad one is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import parent_rules, rules, stream_rules
from tests.chaos.checker import check
from tests.chaos.history import Observation, Recorder, read

START = 1_800_000_000.0
TASK = "task-1"


class Tale:
    """A history under construction: a task that fails once, is interrupted by a kill, and is then completed."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.document = _document()
        self.see(0.0, "subscriber.start", subscriber="durable")
        self.see(0.1, "submit.invoke", submission="s-1", task_type="work", not_before=START + 1)
        self.see(0.2, "submit.ok", submission="s-1", status=202, task=TASK)
        self.run(1.1, 1, 10, outcome="raised", delay=0.5)
        self.run(2.0, 2, 10, outcome=None)
        self.see(2.3, "fault.start", fault="kill -9", target="worker-1", pids=[10])
        self.run(5.0, 3, 11)
        for entry in self.document["history"]:
            self.hear(6.0 + entry["sequence"] / 10, entry["sequence"], entry["type"])
        result = self.document["result"]
        self.see(7.0, "final", task=TASK, status="COMPLETED", generation=0, sequence=7, result=result)
        self.see(9.0, "queue", name="tasks.work.normal", messages=0)
        self.see(9.1, "undriven", count=0)
        self.see(9.2, "process.end", target="worker-1", code=0, seconds=0.5)

    def see(self, at: float, kind: str, **fields: Any) -> None:
        self.lines.append({"at": at, "kind": kind, **fields})

    def run(self, at: float, token: int, pid: int, *, outcome: str | None = "returned", delay: float = 0) -> None:
        common = {"task": TASK, "token": token, "pid": pid}
        self.see(at, "execution.start", attempt=token, **common)
        if outcome is not None:
            self.see(at + 0.1, "execution.effect", **common)
            self.see(at + 0.2, "execution.end", outcome=outcome, delay=delay, **common)

    def hear(self, at: float, sequence: int, kind: str) -> None:
        self.see(at, "event", subscriber="durable", task=TASK, sequence=sequence, type=kind)

    def line(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The first line of a kind with these fields, to be changed."""
        return next(line for line in self.lines if _matches(line, kind, fields))

    def drop(self, kind: str, **fields: Any) -> None:
        self.lines = [line for line in self.lines if not _matches(line, kind, fields)]

    def told(self) -> list[Observation]:
        lines = [*self.lines]
        if self.document:
            lines.append({"at": 10.0, "kind": "document", "document": self.document})
        return [
            Observation(
                line["kind"],
                "test",
                line["at"],
                START + line["at"],
                {name: value for name, value in line.items() if name not in ("at", "kind")},
            )
            for line in sorted(lines, key=lambda line: line["at"])
        ]


def _matches(line: dict[str, Any], kind: str, fields: dict[str, Any]) -> bool:
    return line["kind"] == kind and all(line[name] == value for name, value in fields.items())


def _document() -> dict[str, Any]:
    history = [
        (0.2, "submitted", None),
        (1.05, "started", "host:10:aa"),
        (1.3, "retrying", "host:10:aa"),
        (1.9, "started", "host:10:aa"),
        (4.5, "retrying", "host:10:aa"),
        (4.9, "started", "host:11:bb"),
        (5.3, "completed", "host:11:bb"),
    ]
    return {
        "_id": TASK,
        "correlation_id": "s-1",
        "status": "COMPLETED",
        "generation": 0,
        "fencing_token": 3,
        "sequence": 7,
        "published_sequence": 7,
        "publish_at": None,
        "next_dispatch_at": None,
        "lease": None,
        "result": {"token": 3},
        "history": [
            {"sequence": number, "type": kind, "at": _moment(at), "worker_id": worker}
            for number, (at, kind, worker) in enumerate(history, start=1)
        ],
    }


def _moment(at: float) -> str:
    return datetime.fromtimestamp(START + at, UTC).isoformat(timespec="milliseconds")


def _entry(tale: Tale, kind: str, at: float) -> None:
    """One more entry in the document and at the subscriber."""
    number = tale.document["sequence"] + 1
    tale.document["history"].append({"sequence": number, "type": kind, "at": _moment(at), "worker_id": None})
    tale.document.update(sequence=number, published_sequence=number)
    tale.hear(8 + number / 100, number, kind)


def _lost(tale: Tale) -> None:
    tale.document = {}


def _not_final(tale: Tale) -> None:
    tale.drop("final")
    tale.document.update(status="RUNNING", lease={"worker_id": "host:11:bb"})


def _unexpected(tale: Tale) -> None:
    tale.line("submit.ok").update(kind="submit.fail", status=422)


def _unknown_submission(tale: Tale) -> None:
    tale.document["correlation_id"] = "s-9"


def _doubled(tale: Tale) -> None:
    tale.see(9.5, "document", document=_document() | {"_id": "task-2"})


def _doubled_answer(tale: Tale) -> None:
    tale.see(0.3, "submit.ok", submission="s-1", status=202, task="task-2")


def _server_error(tale: Tale) -> None:
    tale.see(0.15, "submit.unknown", submission="s-1", status=500, retry_after=None, reason="a bug")


def _no_retry_after(tale: Tale) -> None:
    tale.see(0.15, "submit.unknown", submission="s-1", status=503, retry_after=None, reason="away")


def _completed_twice(tale: Tale) -> None:
    _entry(tale, "completed", 6)


def _completed_twice_as_heard(tale: Tale) -> None:
    """The second end overwrote the first in the document; the subscriber remembers both."""
    tale.hear(8.0, 8, "failed")


def _went_on(tale: Tale) -> None:
    tale.drop("final")
    _entry(tale, "started", 6)
    tale.document["fencing_token"] = 4
    tale.document["result"] = {"token": 4}


def _status_changed(tale: Tale) -> None:
    tale.document["status"] = "FAILED"


def _result_changed(tale: Tale) -> None:
    tale.line("final")["result"] = {"token": 3, "other": True}


def _contradicted(tale: Tale) -> None:
    tale.line("event", sequence=4)["type"] = "cancelled"


def _stale_result(tale: Tale) -> None:
    tale.document["result"] = {"token": 2}
    tale.line("final")["result"] = {"token": 2}


def _later_execution(tale: Tale) -> None:
    tale.run(5.15, 4, 12)


def _gap(tale: Tale) -> None:
    del tale.document["history"][2]


def _unclaimed(tale: Tale) -> None:
    tale.document["fencing_token"] = 4
    tale.document["result"]["token"] = 4


def _event_missing(tale: Tale) -> None:
    tale.drop("event", sequence=5)


def _out_of_order(tale: Tale) -> None:
    tale.line("event", sequence=5)["at"] = 6.05


def _never_ran(tale: Tale) -> None:
    tale.drop("execution.end", token=3)


def _token_ran_twice(tale: Tale) -> None:
    tale.run(5.3, 3, 12)


def _undriven(tale: Tale) -> None:
    tale.drop("final")
    tale.document.update(status="QUEUED")


def _no_lease(tale: Tale) -> None:
    tale.drop("final")
    tale.document.update(status="RUNNING")


def _unpublished(tale: Tale) -> None:
    tale.document.update(published_sequence=6)


def _metric(tale: Tale) -> None:
    tale.line("undriven")["count"] = 1


def _left_in_queue(tale: Tale) -> None:
    tale.line("queue")["messages"] = 2


def _before_not_before(tale: Tale) -> None:
    tale.line("submit.invoke")["not_before"] = START + 1.2


def _before_delay(tale: Tale) -> None:
    tale.line("execution.end", token=1)["delay"] = 0.7


def _stopped_badly(tale: Tale) -> None:
    tale.line("process.end")["code"] = 137


def _error_logged(tale: Tale) -> None:
    tale.see(9.3, "error", target="worker-1", line="reap failed and continues")


def _zombie(tale: Tale) -> None:
    tale.see(5.1, "execution.effect", task=TASK, token=1, pid=10)
    tale.drop("fault.start")


BAD: list[tuple[str, Callable[[Tale], None]]] = [
    ("lost", _lost),
    ("not_final", _not_final),
    ("unexpected", _unexpected),
    ("unexpected", _unknown_submission),
    ("doubled", _doubled),
    ("doubled", _doubled_answer),
    ("refused_badly", _server_error),
    ("refused_badly", _no_retry_after),
    ("completed_twice", _completed_twice),
    ("completed_twice", _completed_twice_as_heard),
    ("final_changed", _went_on),
    ("final_changed", _status_changed),
    ("final_changed", _result_changed),
    ("contradicted", _contradicted),
    ("stale_result", _stale_result),
    ("stale_result", _later_execution),
    ("history_broken", _gap),
    ("history_broken", _unclaimed),
    ("event_missing", _event_missing),
    ("event_out_of_order", _out_of_order),
    ("never_ran", _never_ran),
    ("token_ran_twice", _token_ran_twice),
    ("undriven", _undriven),
    ("undriven", _no_lease),
    ("undriven", _unpublished),
    ("undriven", _metric),
    ("left_in_queue", _left_in_queue),
    ("early_claim", _before_not_before),
    ("early_claim", _before_delay),
    ("stopped_badly", _stopped_badly),
    ("error_logged", _error_logged),
    ("zombie_effect", _zombie),
]


def test_a_good_history_is_clean() -> None:
    report = check(Tale().told(), recovery_limit=3)
    assert report.violations == ()
    assert (report.accepted, report.executions, report.repeated, report.losses) == (1, 3, 2, 0)
    assert report.recoveries == pytest.approx([2.6])
    assert report.faults == {"kill -9": 1}


@pytest.mark.parametrize(("rule", "spoil"), BAD, ids=[f"{rule}-{spoil.__name__[1:]}" for rule, spoil in BAD])
def test_a_bad_history_is_found_out(rule: str, spoil: Callable[[Tale], None]) -> None:
    tale = Tale()
    spoil(tale)
    assert rule in {violation.rule for violation in check(tale.told()).violations}


def test_there_is_a_bad_history_for_every_rule() -> None:
    own = {rule.__name__ for rule in rules.ALL if rule not in (*parent_rules.ALL, *stream_rules.ALL)}
    assert own | {"zombie_effect"} == {rule for rule, _ in BAD}


def test_a_slow_recovery_is_found_out() -> None:
    assert [violation.rule for violation in check(Tale().told(), recovery_limit=2).violations] == ["slow_recovery"]


def test_a_replay_may_end_a_second_time() -> None:
    tale = Tale()
    _entry(tale, "replayed", 6)
    _entry(tale, "started", 6.1)
    _entry(tale, "completed", 6.2)
    tale.run(6.1, 4, 11)
    tale.document.update(generation=1, fencing_token=4, result={"token": 4})
    assert check(tale.told()).violations == ()


def test_a_submission_without_an_answer_may_be_there_or_not() -> None:
    tale = Tale()
    tale.line("submit.ok").update(kind="submit.unknown", status=None, retry_after=None, reason="reset")
    tale.see(0.4, "submit.unknown", submission="s-2", status=503, retry_after="5", reason="away")
    report = check(tale.told())
    assert report.violations == ()
    assert (report.accepted, report.recovered, report.submissions) == (0, 1, 2)


def test_the_late_work_of_a_paused_worker_is_counted_and_excused() -> None:
    tale = Tale()
    tale.see(1.9, "fault.start", fault="pause", target="worker-1", pids=[10])
    tale.see(5.2, "fault.stop", fault="pause", target="worker-1", pids=[10])
    tale.see(5.25, "execution.effect", task=TASK, token=2, pid=10)
    report = check(tale.told())
    assert (report.violations, report.zombie_effects) == ((), 1)


def test_an_attempt_that_was_paused_between_its_claim_and_its_code_is_excused() -> None:
    tale = Tale()
    tale.drop("fault.start")
    tale.line("execution.start", token=2)["at"] = 5.25
    assert [violation.rule for violation in check(tale.told()).violations] == ["zombie_effect"]
    tale.see(1.95, "fault.start", fault="pause", target="worker-1", pids=[10])
    tale.see(5.2, "fault.stop", fault="pause", target="worker-1", pids=[10])
    report = check(tale.told())
    assert (report.violations, report.zombie_effects) == ((), 1)


def test_a_delay_counts_only_once_it_was_written_down() -> None:
    tale = Tale()
    _before_delay(tale)
    tale.document["history"][2]["data"] = {"code": "lease_expired"}
    assert check(tale.told()).violations == ()


def test_duplicates_of_events_are_no_fault() -> None:
    tale = Tale()
    tale.hear(8.0, 3, "retrying")
    report = check(tale.told())
    assert (report.violations, report.events, report.duplicate_events) == ((), 8, 1)


def test_a_cut_history_is_judged_by_what_is_left() -> None:
    tale = Tale()
    shift = 200
    entries = [copy.deepcopy(tale.document["history"][0]) | {"type": "cancel_requested"} for _ in range(93)]
    kept = [*entries, *tale.document["history"]]
    for number, entry in enumerate(kept, start=shift + 1):
        entry["sequence"] = number
    tale.drop("event")
    tale.drop("subscriber.start")
    tale.line("final")["sequence"] = shift + 100
    tale.document.update(history=kept, sequence=shift + 100, published_sequence=shift + 100)
    assert check(tale.told()).violations == ()
    del kept[5]
    assert {violation.rule for violation in check(tale.told()).violations} == {"history_broken"}


def test_a_history_is_written_by_many_and_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    first, second = Recorder(path, "first"), Recorder(path, "second")
    for number in range(3):
        first.record("queue", name="a", messages=number)
        second.record("queue", name="b", messages=number)
    first.close()
    second.close()
    seen = read(path)
    assert [(one.process, one["messages"]) for one in seen] == [
        (process, number) for number in range(3) for process in ("first", "second")
    ]
    assert all(json.dumps(dict(one.fields)) for one in seen)
