"""`schedules`: made, shown, changed, run and deleted by name."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest

import taskframework.wiring.process  # noqa: F401 - as above
from taskframework import Settings, TaskFramework
from taskframework.cli.applications import register_modules
from taskframework.errors import StoreUnavailableError
from taskframework.model.schedules import Schedule
from taskframework.operations.schedules import ScheduleOperations
from tests.unit.cli.conftest import Cli, Done

NIGHTLY = ("nightly", "greets", '"ann"', "--cron", "30 2 * * *", "--timezone", "Europe/Berlin")

LETTERS = """
from pydantic import BaseModel

from taskframework import task


class Letter(BaseModel):
    to: str


@task("write")
def write(parameters: Letter) -> None: ...
"""


@pytest.fixture(autouse=True)
def _worked(folder: Path) -> None:
    """A worker with the module `greeting` has run here, and with a schedule in its settings."""

    async def run() -> None:
        async with framework.running(worker=True):
            pass

    settled = {"settled": {"task_type": "greets", "parameters": "bob", "every": "8h"}}
    framework = TaskFramework(Settings.model_validate({"schedules": settled}))
    register_modules(framework, ["greeting"])
    asyncio.run(run())


def shown(done: Done) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_schedule_is_created_shown_and_listed(cli: Cli) -> None:
    made = cli("schedules", "create", *NIGHTLY, "--missed", "skip", "--overlap", "cancel_previous", "--jitter", "30s")
    assert made.out.startswith("Schedule nightly is created.\n"), made.err
    schedule = shown(cli("schedules", "show", "nightly", "--json"))
    assert (schedule["missed"], schedule["overlap"], schedule["jitter"]) == ("skip", "cancel_previous", "30s")
    assert "30 2 * * *  Europe/Berlin" in (said := cli("schedules", "show", "nightly").out)
    assert all(run in said for run in schedule["next_runs"])
    listed = cli("schedules", "list").out
    assert "nightly" in listed
    assert "every 8h" in listed
    assert [item["name"] for item in shown(cli("schedules", "list", "--json"))["items"]] == ["nightly", "settled"]


def test_without_a_rule_the_options_are_named_not_the_fields_of_the_interface(cli: Cli) -> None:
    for rule in ([], ["--cron", "* * * * *", "--every", "1h"]):
        answer = cli("schedules", "create", "nightly", "greets", '"ann"', *rule)
        assert (answer.code, "Give either --cron or --every." in answer.err) == (2, True)


def test_named_fields_of_a_schedule_are_changed_and_the_others_stay(cli: Cli) -> None:
    cli("schedules", "create", *NIGHTLY, "--jitter", "30s")
    assert "Give at least one option" in cli("schedules", "update", "nightly").err
    changed = shown(cli("schedules", "update", "nightly", "--parameters", '"eve"', "--json"))
    assert (changed["parameters"], changed["jitter"], changed["cron"]) == ("eve", "30s", "30 2 * * *")
    changed = shown(cli("schedules", "update", "nightly", "--every", "90m", "--user", "alice", "--json"))
    assert (changed["cron"], changed["every"], changed["user_id"]) == (None, "1h30m", "alice")
    assert (
        "needs either cron or every"
        in cli("schedules", "update", "nightly", "--every", "1m", "--cron", "* * * * *").err
    )


def test_an_update_leaves_a_pause_that_came_at_the_same_moment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("schedules", "create", *NIGHTLY)
    get = ScheduleOperations.get

    async def get_before_a_pause(self: ScheduleOperations, name: str) -> Schedule:
        found = await get(self, name)
        await self.pause(name)
        return found

    monkeypatch.setattr(ScheduleOperations, "get", get_before_a_pause)
    changed = shown(cli("schedules", "update", "nightly", "--jitter", "30s", "--json"))
    assert (changed["jitter"], changed["is_paused"]) == ("30s", True)


def test_a_schedule_is_paused_resumed_run_and_deleted(cli: Cli) -> None:
    cli("schedules", "create", *NIGHTLY)
    assert "none, it is paused" in cli("schedules", "pause", "nightly").out
    assert "paused" in cli("schedules", "list").out
    run = cli("schedules", "run", "nightly", "--key", "k")
    assert run.out.startswith("Submitted greets ")
    task = shown(cli("schedules", "run", "nightly", "--key", "k", "--json"))
    assert task["task_id"] in run.out
    assert "--key: the key is empty" in " ".join(cli("schedules", "run", "nightly", "--key", "").err.split())
    assert task["task_id"] in cli("schedules", "resume", "nightly").out
    assert cli("schedules", "delete", "nightly").out == "Schedule nightly is deleted.\n"
    assert "There is no schedule 'nightly'" in cli("schedules", "show", "nightly").err


def test_schedules_of_the_settings_are_changed_only_there(cli: Cli) -> None:
    done = cli("schedules", "update", "settled", "--every", "1m")
    assert done.code == 1
    assert "comes from the settings" in done.err
    assert "Made by" in cli("schedules", "show", "settled").out


def test_doctor_tells_of_schedules_that_cannot_run_and_of_wrong_settings(cli: Cli, folder: Path) -> None:
    assert "schedules" in cli("doctor").out
    (folder / "application.yml").write_text('schedules: {nightly: {task_type: greets, cron: "61 * * * *"}}')
    done = cli("doctor", "--app", "greeting")
    assert done.code == 1
    assert "1 problem found" in done.out
    assert "schedules.nightly: cron: has a wrong minute '61'" in " ".join(done.out.split())
    places = [("one", '1, timezone: Europe/Berln, cron: "* * * * *"'), ("two", '1, timezone: UTC+2, cron: "* * * * *"')]
    named = ", ".join(f"{name}: {{task_type: greets, parameters: {rest}}}" for name, rest in places)
    (folder / "application.yml").write_text(f"schedules: {{{named}}}")
    said = " ".join((done := cli("doctor")).out.split())
    assert done.code == 1
    assert "schedules.one: timezone: 'Europe/Berln' is not a time zone. Did you mean Europe/Berlin?" in said
    assert "schedules.two: timezone: 'UTC+2' is not a time zone. Give a place, such as Europe/Berlin;" in said
    assert "2 problems found" in said
    (folder / "application.yml").write_text("schedules: {nightly: {task_type: greets, parameters: 5, every: 1h}}")
    said = " ".join(cli("doctor", "--app", "greeting").out.split())
    assert "schedules.nightly: The parameters are not valid for task type 'greets'" in said
    wrong = "schedules: {nightly: {task_type: greets, parameters: 5, every: 1h}}"
    (folder / "application.yml").write_text(wrong)
    assert "schedules.nightly: The parameters are not valid for task type 'greets'" in " ".join(
        cli("doctor", "--app", "greeting").out.split()
    )


@pytest.mark.parametrize(
    ("definition", "problem", "hint"),
    [
        ('{task_type: greets, cron: "61 * * * *"}', "cron: has a wrong minute '61'", "such as `30 2 * * MON-FRI`"),
        ("{task_type: greets, cron: 1 * * * *, timezone: Europe/Berln}", "timezone: 'Europe/Berln'", "Europe/Berlin"),
    ],
)
def test_config_show_tells_of_schedules_with_which_no_process_starts(
    cli: Cli, folder: Path, definition: str, problem: str, hint: str
) -> None:
    (folder / "application.yml").write_text(f"schedules: {{nightly: {definition}}}")
    for options in ((), ("--json",)):
        done = cli("config", "show", *options)
        assert (done.code, done.out) == (1, "")
        assert f"schedules.nightly: {problem}" in done.err
        assert hint in done.err


def test_a_wrong_field_in_the_settings_is_not_to_be_submitted_again(cli: Cli, folder: Path) -> None:
    (folder / "letters.py").write_text(LETTERS)
    (folder / "application.yml").write_text("schedules: {nightly: {task_type: write, parameters: {}, every: 1h}}")
    said = " ".join(cli("doctor", "--app", "letters").out.split())
    assert "task type 'write': to: Field required. Correct the named fields. " in said


def test_doctor_tells_of_limits_of_types_that_nobody_knows(cli: Cli, folder: Path) -> None:
    (folder / "application.yml").write_text("concurrency: {limits: {greets: 2, greet: 3}}")
    done = cli("doctor")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "concurrency.limits: There is no task type 'greet'. Did you mean 'greets'?" in said
    assert "1 problem found" in said


def test_a_run_whose_answer_is_lost_says_how_to_repeat_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("schedules", "create", *NIGHTLY)
    run = ScheduleOperations.run

    async def run_and_lose_the_answer(*arguments: Any, **options: Any) -> None:
        await run(*arguments, **options)
        raise StoreUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(ScheduleOperations, "run", run_and_lose_the_answer)
        lost = cli("schedules", "run", "nightly")
    assert lost.code == 1
    [key] = re.findall(r"--key (\S+)", lost.err)
    assert cli("schedules", "run", "nightly", "--key", key).out.startswith("Submitted before: greets ")
