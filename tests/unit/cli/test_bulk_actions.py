"""Actions on all that --where finds."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest

import taskframework.wiring.process  # noqa: F401 - as above
from taskframework.cli.bulk_actions import print_progress
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.query import TaskFilter
from taskframework.model.replays import BulkAction
from taskframework.model.scope import EVERYONE
from taskframework.operations.replay_carrier import ReplayCarrier
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_batch import work


def test_a_dry_run_tells_how_many_and_does_nothing(cli: Cli, folder: Path) -> None:
    work(folder)  # so that the type is known
    for name in ("ann", "bob"):
        assert cli("submit", "greets", json.dumps(name)).code == 0
    chosen = ("--where", "type=greets", "--dry-run")
    assert cli("tasks", "cancel", *chosen).out == "2 tasks would be cancelled.\n"
    assert cli("tasks", "retry", *chosen).out == "0 tasks would be queued again.\n"
    counted = cli("dlq", "discard", *chosen, "--reason", "old", "--json")
    assert json.loads(counted.out) == {"total": 0, "is_total_bounded": False}
    assert cli("dlq", "discard", "--where", "kind=message", "--dry-run").out == "0 dead letters would be discarded.\n"
    assert cli("dlq", "replay", *chosen).out.startswith("0 dead letters would be queued again, ")
    for condition, number in {"created_after=1h": "2 tasks", "created_before=1h": "0 tasks"}.items():
        assert cli("tasks", "cancel", *chosen, "--where", condition).out.startswith(number)
    wrong = cli("tasks", "cancel", "--where", "created_after=noon", "--dry-run")
    assert wrong.code == 2
    assert "'noon' is neither a time such as" in wrong.err
    assert "created_after" in cli("tasks", "cancel", "--help").out
    listed = json.loads(cli("tasks", "list", "--json").out)["items"]
    assert {task["status"] for task in listed} == {"QUEUED"}
    assert json.loads(cli("audit", "list", "--json").out)["items"] == [], "nor is it noted"
    assert json.loads(cli("replays", "list", "--json").out)["items"] == []


def test_options_for_many_are_refused_with_an_id(cli: Cli, folder: Path) -> None:
    work(folder)
    task_id = json.loads(cli("submit", "greets", '"ann"', "--json").out)["task_id"]
    for command in ("cancel", "retry"):
        answer = cli("tasks", command, task_id, "--dry-run")
        assert (answer.code, "--dry-run works only with --where" in answer.err) == (2, True)
        for option in (["--rate", "5"], ["--background"]):
            answer = cli("tasks", command, task_id, *option)
            assert (answer.code, f"{option[0]} works only with --where" in answer.err) == (2, True), (
                "and not passed over"
            )
            answer = cli("dlq", "replay", task_id, *option)
            assert (answer.code, f"{option[0]} works only with --where" in answer.err) == (2, True)
    assert json.loads(cli("tasks", "show", task_id, "--json").out)["status"] == "QUEUED"


def test_an_action_that_somebody_stopped_is_no_success(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_stopped(self: ReplayCarrier) -> bool:
        for replay in (await self._replays.list_replays(limit=5)).items:
            await self._replays.stop(replay.replay_id)
        return False

    work(folder)
    assert cli("submit", "greets", '"ann"').code == 0
    monkeypatch.setattr(ReplayCarrier, "run_once", is_stopped)
    done = cli("tasks", "cancel", "--where", "type=greets")
    assert (done.code, "is STOPPED: 0 of 1 done, 0 refused, 0 failed, 1 not done." in done.out) == (1, True)
    header, row = cli("replays", "list").out.splitlines()
    assert row[header.index("Not done") :].split()[0] == "1"


@pytest.mark.parametrize("option", [[], ["--background"]])
def test_a_filter_without_a_match_is_reported_in_one_line(cli: Cli, folder: Path, option: list[str]) -> None:
    work(folder)
    done = cli("tasks", "cancel", "--where", "type=greets", *option)
    assert (done.code, done.out, done.err) == (0, "Nothing fits --where, so nothing was cancelled.\n", "")
    done = cli("tasks", "retry", "--where", "type=greet", *option)
    assert done.err == "There is no task type 'greet'. Did you mean 'greets'?\n"


def test_a_task_that_waits_is_already_queued(cli: Cli, folder: Path) -> None:
    work(folder)
    task_id = json.loads(cli("submit", "greets", '"ann"', "--json").out)["task_id"]
    refused = cli("tasks", "retry", task_id)
    assert (refused.code, f"Task {task_id} is already queued; nothing was changed." in refused.err) == (1, True)


def test_a_stop_tells_whether_it_came_in_time(cli: Cli, folder: Path) -> None:
    work(folder)
    for name in ("ann", "bob"):
        assert cli("submit", "greets", json.dumps(name)).code == 0
    begun = cli("tasks", "cancel", "--where", "type=greets", "--background", "--json")
    replay_id = json.loads(begun.out)["replay_id"]
    for _ in range(2):
        stopped = cli("replays", "stop", replay_id)
        assert (stopped.code, "is STOPPED: 0 of 2 done" in stopped.out) == (0, True)

    begun = cli("tasks", "cancel", "--where", "type=greets", "--where", "text=it's away", "--background")
    shown = cli("replays", "list").out
    assert "type=greets 'text=it'\"'\"'s away'" in shown, "as it is pasted after --where"

    finished = json.loads(cli("tasks", "cancel", "--where", "type=greets", "--json").out)["replay_id"]
    late = cli("replays", "stop", finished, "--reason", "a mistake")
    assert (late.code, "is DONE: 2 of 2 done" in late.out) == (1, True)
    assert late.err == f"The cancel {finished} had already finished; nothing was stopped.\n"
    [newest, *_] = json.loads(cli("audit", "list", "--json").out)["items"]
    assert (newest["action"], newest["refusal"]) == ("replay.stop", late.err.strip())


def test_an_action_that_runs_already_is_shown_and_not_started_again(cli: Cli, folder: Path) -> None:
    work(folder)
    assert cli("submit", "greets", '"ann"').code == 0
    cancel = ("tasks", "cancel", "--where", "type=greets", "--background", "--reason")
    begun = cli(*cancel, "a mistake")
    assert (begun.err, begun.out.startswith("Started: ")) == (begun.err.splitlines()[0] + "\n", True)
    again = cli(*cancel, "mine")
    assert again.out == begun.out.replace("Started", "Running")
    assert again.err.startswith("The same cancel is running, begun by ")
    assert "(a mistake): nothing else was begun, and no other reason is kept." in again.err


def test_a_task_that_somebody_else_changed_first_is_listed_as_skipped(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_once = ReplayCarrier.run_once

    async def is_late(self: ReplayCarrier) -> bool:
        for task in (await self._store.list_tasks(EVERYONE, TaskFilter(), limit=1)).items:
            if not task.status.is_final:
                await self._tasks.cancel(task.task_id, EVERYONE, by="bob")
        monkeypatch.setattr(ReplayCarrier, "run_once", run_once)
        return await run_once(self)

    work(folder)
    for name in ("ann", "bob"):
        assert cli("submit", "greets", json.dumps(name)).code == 0
    monkeypatch.setattr(ReplayCarrier, "run_once", is_late)
    done = cli("tasks", "cancel", "--where", "type=greets")
    assert (done.code, "1 of 2 done, 0 refused, 0 failed, 1 skipped because" in done.out) == (0, True)
    [listed] = json.loads(cli("replays", "list", "--json").out)["items"]
    assert (listed["done"], listed["skipped"]) == (1, 1)
    header, row = cli("replays", "list").out.splitlines()
    assert "Skipped" in header
    assert row[header.index("Skipped") :].split()[0] == "1"


def test_a_filter_of_tasks_that_cannot_be_cancelled_is_refused(cli: Cli, folder: Path) -> None:
    work(folder)
    for options in ([], ["--dry-run"]):
        done = cli("tasks", "cancel", "--where", "status=completed", *options)
        assert done.code != 0
        assert "tasks that are COMPLETED cannot be selected for cancel" in done.err
        assert "Choose one of" in done.err


def test_progress_says_that_there_may_be_more_where_counting_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    where = ActionFilter(task_type="greets")
    action = BulkAction(
        replay_id="r",
        action=Action.CANCEL,
        where=where,
        by="ann",
        at=begun,
        total=10_000,
        done=11_000,
        due_at=begun,
        paced_until=begun,
    )
    print_progress(action)
    print_progress(replace(action, is_total_bounded=True))
    told = capsys.readouterr()
    assert "11,000 of 10,000 done" in told.out + told.err
    assert "11,000 of 10,000 or more done" in told.out + told.err
