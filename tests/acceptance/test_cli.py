"""The command line without a running process: help, settings, doctor, and the queue that waits for a worker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.model.workers import LOST_AFTER, PRESENCE, Presence
from taskframework.stores.sqlite import SqliteStore
from tests.acceptance.undriven import finding_of_undriven, plant_undriven
from tests.acceptance.wrong_parents import finding_of_wrong_parents, plant_wrong_parents
from tests.support.command import Folder
from tests.support.process import wait_until

COMMANDS = (
    "demo",
    "dev",
    "api",
    "worker",
    "submit",
    "tasks",
    "queues",
    "schedules",
    "dlq",
    "workers",
    "limits",
    "events",
    "topology",
    "doctor",
    "config",
)


def test_help_names_every_command(folder: Folder) -> None:
    said = folder.run("--help").stdout
    assert [name for name in COMMANDS if name not in said] == []


def test_the_installed_command_is_the_same(folder: Folder) -> None:
    script = Path(sys.executable).with_name("taskframework")
    done = subprocess.run([script, "--version"], cwd=folder.path, capture_output=True, text=True, check=True)
    assert done.stdout == folder.run("--version").stdout
    assert done.stdout.startswith("taskframework ")


def test_help_loads_no_server_and_no_driver(folder: Folder) -> None:
    heavy = ("fastapi", "uvicorn", "motor", "pymongo", "aio_pika", "httpx", "taskframework.cli.demo.digest")
    script = (
        "import sys, taskframework.cli.main as main\n"
        "sys.argv = ['taskframework', '--help']\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder.path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_config_show_tells_where_each_value_came_from(folder: Folder) -> None:
    (folder.path / "application.yml").write_text("worker:\n  concurrency: 7\n")
    secret = {"TASKFRAMEWORK_BROKER__URL": "amqp://me:hidden@localhost:5672/"}
    rows = {row["key"]: row for row in folder.json("config", "show", env=secret)}
    assert (rows["worker.concurrency"]["value"], rows["worker.concurrency"]["origin"]) == (7, "application.yml:2")
    assert rows["broker.url"]["value"] == "amqp://me:***@localhost:5672/"
    assert rows["broker.url"]["origin"] == "environment TASKFRAMEWORK_BROKER__URL"
    assert rows["api.port"]["origin"] == "default"
    shown = folder.run("config", "show", env=secret).stdout
    assert "application.yml:2" in shown
    assert "hidden" not in shown


@pytest.mark.parametrize(
    "arguments", [("--config", "own.yml", "config", "show"), ("config", "show", "--config", "own.yml")]
)
def test_the_settings_file_is_named_before_or_after_the_command(folder: Folder, arguments: tuple[str, ...]) -> None:
    (folder.path / "own.yml").write_text("api: {port: 9}\n")
    rows = {row["key"]: row["value"] for row in folder.json(*arguments)}
    assert rows["api.port"] == 9


def test_doctor_is_content_with_the_embedded_default_and_changes_nothing(folder: Folder) -> None:
    before = set(folder.path.iterdir())
    found = folder.json("doctor")
    assert found["ok"]
    assert {finding["part"] for finding in found["findings"]} == {"versions", "settings", "program", "store", "broker"}
    assert set(folder.path.iterdir()) == before
    assert "No problem found" in folder.run("doctor", "--app", "program").stdout


def test_doctor_gives_a_remedy_for_each_problem(folder: Folder) -> None:
    done = folder.run(
        "doctor", "--app", "nothere", code=1, env={"TASKFRAMEWORK_STORE__URL": "sqlite:///no/folder/x.db"}
    )
    assert "There is no module 'nothere'" in done.stdout
    assert "Run the command in the folder that holds nothere.py" in done.stdout
    assert "Create it, or name another file in store.url." in done.stdout
    assert "2 problems found" in done.stdout
    wrong = folder.run("doctor", code=1, env={"TASKFRAMEWORK_STORE__URI": "x"})
    assert "Did you mean TASKFRAMEWORK_STORE__URL?" in wrong.stdout


def test_doctor_finds_tasks_that_nothing_would_move_on(folder: Folder) -> None:
    plant_undriven(SqliteStore(folder.path / "taskframework.db"))
    finding_of_undriven(folder, {})


def test_doctor_finds_parents_that_wait_in_vain(folder: Folder) -> None:
    plant_wrong_parents(SqliteStore(folder.path / "taskframework.db"))
    finding_of_wrong_parents(folder, {})


def test_doctor_finds_a_worker_that_is_lost(folder: Folder) -> None:
    async def lose() -> None:
        store = SqliteStore(folder.path / "taskframework.db")
        await store.open()
        seen_at = store.now() - LOST_AFTER - timedelta(seconds=1)
        lost = Presence("worker-1", "attic", 7, "1.0", ("count-words",), 10, 0, seen_at, seen_at)
        await store.write_records([PRESENCE.new("worker-1", content=lost)])
        await store.close()

    asyncio.run(lose())
    findings = folder.json("doctor", code=1)["findings"]
    [problem] = [text for finding in findings for text in finding["problems"]]
    assert problem.startswith("Worker worker-1 has sent no sign of life since")
    assert "Look at process 7 on attic" in problem


def test_tasks_wait_in_the_file_until_somebody_runs(folder: Folder) -> None:
    """What needs no worker, from submission to cancel."""
    parameters = json.dumps({"text": "one"})
    first = folder.json("submit", "count-words", parameters, "--app", "program", "--idempotency-key", "a")
    again = folder.run("submit", "count-words", "-", "--app", "program", "--idempotency-key", "a", given=parameters)
    assert f"Submitted before: count-words {first['task_id']}" in again.stdout
    doctor = " ".join(folder.run("doctor", code=1).stdout.split())
    assert "1 count-words task is waiting, and no running worker handles this type. One process executes all" in doctor
    assert "1 problem found" in doctor
    (folder.path / "p.json").write_text(parameters)
    later = folder.json(
        "--app", "program", "submit", "count-words", "@p.json", "--not-before", "2h", "--priority", "high"
    )  # fmt: skip
    assert later["priority"] == "high"
    assert later["not_before"] > later["created_at"]
    page = folder.json("tasks", "list", "--limit", "1")
    assert [item["task_id"] for item in page["items"]] == [later["task_id"]]
    rest = folder.json("tasks", "list", "--cursor", page["next_cursor"])
    assert [item["task_id"] for item in rest["items"]] == [first["task_id"]]
    listed = folder.run("tasks", "list", "--status", "queued", "--type", "count-words").stdout
    assert first["task_id"] in listed
    assert "starts in" in listed
    folder.run("tasks", "cancel", first["task_id"])
    folder.run("tasks", "cancel", first["task_id"], code=1)
    folder.run("tasks", "watch", first["task_id"], code=1)
    assert folder.json("tasks", "retry", first["task_id"])["status"] == "QUEUED"


def test_waiting_for_a_task_without_a_worker_names_the_command_explain(folder: Folder) -> None:
    done = folder.run("submit", "count-words", '{"text": ""}', "--app", "program", "--wait", "--timeout", "4s", code=1)
    [command] = re.findall("See why: taskframework (.*)", done.stderr)
    assert "taskframework dev --app" in folder.run(*command.split()).stdout, "the command leads to what helps"


def test_a_reader_that_leaves_is_no_error(folder: Folder) -> None:
    command = f"{sys.executable} -m taskframework config show | head -1"
    done = subprocess.run(command, shell=True, cwd=folder.path, capture_output=True, text=True, env=os.environ)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_stopping_to_wait_for_a_task_says_that_the_task_keeps_running(folder: Folder) -> None:
    waiting = folder.start("--app", "program", "submit", "waits", "1", "--wait")
    task_id = waiting.line("Submitted waits").split()[-1]
    assert waiting.end(signal.SIGINT) == 130
    waiting.line(f"The task keeps running. To follow it again: taskframework tasks watch {task_id}")
    assert folder.json("tasks", "show", task_id)["status"] == "QUEUED"


@pytest.mark.parametrize("file", ["-", "pipe"])
def test_ctrl_c_while_the_pipe_of_a_batch_is_silent_cancels_the_stored_part(folder: Folder, file: str) -> None:
    folder.run("submit", "waits", "1", "--app", "program")  # so that there is a store to look at
    os.mkfifo(folder.path / "pipe")
    pipe = os.open(folder.path / "pipe", os.O_RDWR)
    try:
        submitting = folder.start("--app", "program", "batch", "submit", "waits", file, stdin=pipe)
        os.write(pipe, b"2\n")
        two_tasks = ("tasks", "list", "--type", "waits", "--status", "queued")
        wait_until(lambda: len(folder.json(*two_tasks)["items"]) == 2, "the item is stored", timeout=60)
        assert submitting.end(signal.SIGINT) == 130
    finally:
        os.close(pipe)
    [note] = submitting.err
    assert note.startswith("The stored part is cancelled.")
    [batch] = folder.json("batch", "list")["items"]
    assert batch["status"] == "CANCELLED"
