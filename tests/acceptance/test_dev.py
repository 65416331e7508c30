"""`taskframework dev`: everything in one process, which may die at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.support.command import Folder, Started, environment_with, start_program
from tests.support.process import wait_until

DEV = ("dev", "--app", "program", "--port", "0")


@pytest.fixture
def dev(folder: Folder) -> Started:
    started = folder.start(*DEV)
    started.event("ready")
    return started


class Api(httpx.Client):
    """A client of a running process."""

    def __init__(self, started: Started) -> None:
        ready = started.event("ready")
        super().__init__(base_url=f"http://{ready['host']}:{ready['port']}/api/v1", trust_env=False, timeout=20)

    def submit_many(self, task_type: str, parameters: Any, count: int) -> None:
        task = {"task_type": task_type, "parameters": parameters}
        assert self.post("/tasks/bulk", json={"tasks": [task] * count}).status_code == 200

    def started(self, task_id: str) -> bool:
        return int(self.get(f"/tasks/{task_id}").json()["attempt"]) > 0

    def count(self, status: str) -> int:
        return len(self.get("/tasks", params={"status": status, "limit": 500}).json()["items"])


def running_task(folder: Folder, started: Started, seconds: float) -> str:
    """The id of a task that has begun to wait."""
    task_id: str = folder.json("submit", "waits", str(seconds), "--app", "program")["task_id"]
    with Api(started) as api:
        wait_until(lambda: api.started(task_id), "it runs", timeout=20)
    return task_id


def count_words(folder: Folder, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return folder.run("submit", "count-words", json.dumps({"text": text}), "--app", "program", *options)


def test_a_task_of_another_process_is_taken_and_waited_for(folder: Folder, dev: Started) -> None:
    done = count_words(folder, "one two three", "--wait")
    assert "COMPLETED" in done.stdout
    assert done.stdout.splitlines()[-1] == "3"
    task = json.loads(count_words(folder, "one two", "--wait", "--json").stdout)
    assert (task["status"], task["result"]) == ("COMPLETED", 2)
    with Api(dev) as api:
        assert api.get(f"/tasks/{task['task_id']}").json() == task, "the same through either door"


def test_a_type_that_dev_executes_is_submitted_by_name(folder: Folder, dev: Started) -> None:
    done = folder.run("submit", "count-words", '{"text": "one two"}', "--wait")
    assert done.stdout.splitlines()[-1] == "2"
    with Api(dev) as api:
        items = api.get("/task-types").json()["items"]
    assert [item["task_type"] for item in items] == ["broken", "count-words", "flaky", "naps", "waits"]
    assert "declared types" in folder.run("doctor").stdout
    assert dev.end() == 0
    assert folder.json("submit", "flaky")["status"] == "QUEUED", "the store goes on knowing it"


def test_a_task_that_fails_gives_exit_code_1_and_its_reason(folder: Folder, dev: Started) -> None:
    done = folder.run("submit", "broken", "--app", "program", "--wait", code=1)
    assert "FAILED" in done.stdout
    assert "ValueError: a \N{REPLACEMENT CHARACTER}[31mbug" in done.stdout, "what a task says does not steer a terminal"
    assert "taskframework tasks retry" in done.stderr


def test_a_retried_task_is_followed_to_its_end(folder: Folder, dev: Started) -> None:
    task_id = folder.json("submit", "flaky", "--app", "program")["task_id"]
    done = folder.run("tasks", "watch", task_id)
    history = [line.split() for line in done.stdout.splitlines() if "Z  " in line]
    assert [words[3] for words in history] == ["submitted", "started", "retrying", "started", "completed"]
    assert "COMPLETED" in done.stdout


def test_waiting_ends_with_its_time(folder: Folder, dev: Started) -> None:
    done = folder.run("submit", "waits", "60", "--app", "program", "--wait", "--timeout", "1s", code=1)
    assert re.search("is still (QUEUED|RUNNING)", done.stderr)  # a busy machine may not have begun it by then
    assert "Wait again" in done.stderr


def test_a_running_task_is_cancelled(folder: Folder, dev: Started) -> None:
    task_id = running_task(folder, dev, 60)
    assert folder.json("tasks", "cancel", task_id, "--reason", "not needed")["status"] == "RUNNING"
    folder.run("tasks", "watch", task_id, code=1)
    shown = folder.run("tasks", "show", task_id).stdout
    assert "CANCELLED" in shown
    assert "reason not needed" in shown


def test_dead_letters_are_listed_shown_and_replayed(folder: Folder, dev: Started) -> None:
    folder.run("submit", "broken", "--app", "program", "--wait", code=1)
    [letter] = folder.json("dlq", "list")["items"]
    assert letter["reason"] == "a \x1b[31mbug"
    assert "ValueError" in folder.run("dlq", "list").stdout
    assert "program.py" in folder.run("dlq", "show", letter["id"]).stdout
    outcomes = folder.json("dlq", "replay", letter["id"], "nope", code=1)
    assert [outcome["replayed"] for outcome in outcomes] == [True, False]
    folder.run("tasks", "watch", letter["id"], code=1)
    assert folder.json("tasks", "show", letter["id"])["generation"] == 1


def test_a_type_is_paused_and_goes_on(folder: Folder, dev: Started) -> None:
    paused = folder.json("queues", "pause", "waits", "--reason", "the provider is down", "--drain")
    assert (paused["is_paused"], paused["is_running"]) == (True, False)
    task = folder.json("submit", "waits", "0", "--app", "program")
    listed = folder.run("queues", "list").stdout
    assert "the provider is down" in " ".join(listed.split())
    assert folder.json("tasks", "show", task["task_id"])["status"] == "QUEUED"
    assert folder.run("queues", "resume", "waits").stdout == "waits is resumed.\n"
    folder.run("tasks", "watch", task["task_id"])
    assert folder.run("queues", "resume", "waits").stdout == "waits was not paused.\n"
    assert "waits" in folder.run("queues", "pause", "wait", code=1).stderr


def test_events_are_heard_from_another_process(folder: Folder, dev: Started) -> None:
    ready = dev.event("ready")
    tail = folder.start("events", "tail", "--json", "--url", f"http://{ready['host']}:{ready['port']}")
    tail.line("Listening")
    count_words(folder, "one two", "--wait")
    tail.line("task.completed")
    types = [json.loads(line)["type"] for line in tail.out]
    assert types == ["task.submitted", "task.started", "task.completed"]
    assert tail.end(signal.SIGINT) == 130
    assert "Traceback" not in "".join(tail.err)


def test_events_are_heard_again_when_the_process_is_back(folder: Folder) -> None:
    first = folder.start(*DEV)
    port = str(first.event("ready")["port"])
    tail = folder.start("events", "tail", "--url", f"http://127.0.0.1:{port}")
    tail.line("Listening")
    assert first.end() == 0
    tail.line("trying again")
    folder.start("dev", "--app", "program", "--port", port).event("ready")
    wait_until(lambda: sum("Listening" in line for line in tail.err) == 2, "it listens again", timeout=20)
    count_words(folder, "one two", "--wait")
    tail.line("count-words")


def test_no_task_is_lost_when_dev_is_killed_with_500_tasks_queued(folder: Folder) -> None:
    few = {"TASKFRAMEWORK_WORKER__CONCURRENCY": "10"}
    first = folder.start(*DEV, env=few)
    with Api(first) as api:
        api.submit_many("waits", 0.02, 500)
        wait_until(lambda: api.count("COMPLETED") > 0, "the first is done", timeout=20)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert folder.json("tasks", "list", "--status", "queued")["items"], "it died in the middle"
    second = folder.start(*DEV, env=few)
    with Api(second) as api:
        wait_until(lambda: api.count("COMPLETED") == 500, "all are done", timeout=40)
        assert api.get("/tasks", params={"limit": 500}).json()["next_cursor"] is None


def test_a_second_process_on_the_same_file_refuses_and_names_the_first(folder: Folder, dev: Started) -> None:
    for command in (DEV, ("worker", "--app", "program"), ("api", "--port", "0")):
        done = folder.run(*command, code=1)
        assert f"process {dev.pid} " in done.stderr
        assert "Stop that process first" in done.stderr
    assert count_words(folder, "one", "--wait").returncode == 0, "the first goes on"


SUBMITS = """
import asyncio

from taskframework import ConfigurationError, TaskFramework


async def main() -> None:
    framework = TaskFramework()
    async with framework.running(worker=False):
        handle = await framework.submit("count-words", {"text": "one two"})
        print(await handle.result(timeout=60))
    try:
        async with framework.running(worker=True):
            raise AssertionError("a second process executes")
    except ConfigurationError as error:
        print(error.hint)


asyncio.run(main())
"""


def test_a_program_that_only_submits_runs_beside_dev(folder: Folder, dev: Started) -> None:
    (folder.path / "submits.py").write_text(SUBMITS)
    done = subprocess.run([sys.executable, "submits.py"], cwd=folder.path, capture_output=True, text=True, check=True)
    result, refusal = done.stdout.splitlines()
    assert result == "2"
    assert "`worker=False`" in refusal, "whoever only wants to submit is told how"


def test_closing_the_terminal_stops_dev_in_order(folder: Folder, dev: Started) -> None:
    task_id = running_task(folder, dev, 2)
    dev.send(signal.SIGHUP)
    dev.event("stopping")
    assert dev.end(signal.SIGHUP) == 0
    assert folder.json("tasks", "show", task_id)["status"] == "COMPLETED"


def test_dev_under_nohup_outlives_the_terminal(folder: Folder) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        command = [sys.executable, "-m", "taskframework", *DEV]
        dev = start_program(command, folder.path, environment_with({}))
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        dev.event("ready")
        dev.send(signal.SIGHUP)
        assert folder.run("submit", "count-words", '{"text": "a b"}', "--wait").returncode == 0
        assert dev.is_alive
        assert dev.end() == 0
    finally:
        dev.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dev_stops_in_order(folder: Folder, dev: Started, number: signal.Signals) -> None:
    task_id = running_task(folder, dev, 2)
    assert dev.end(number) == 0
    assert [line["event"] for line in dev.log if line["logger"] == "taskframework.cli.process"] == [
        "starting",
        "stopping",
        "stopped",
    ]
    assert folder.json("tasks", "show", task_id)["status"] == "COMPLETED", "what runs may finish"
    [waits] = [line["event"] for line in dev.log if line["logger"] == "taskframework.worker.worker"]
    assert waits.startswith("waiting up to 30 s for running tasks: 1 ")
    assert waits.endswith("; a second signal ends them at once")


def test_dev_can_be_stopped_while_it_starts(folder: Folder) -> None:
    dev = folder.start(*DEV)
    dev.event("starting")
    assert dev.end() == 0
    assert dev.log[-1]["event"] == "stopped"
    assert "Traceback" not in "".join(dev.err)


def test_a_second_signal_ends_dev_at_once_and_the_task_is_taken_up_again(folder: Folder) -> None:
    dev = folder.start(*DEV)
    dev.event("ready")
    task_id = running_task(folder, dev, 60)
    dev.send(signal.SIGTERM)
    dev.event("stopping")
    assert dev.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert folder.json("tasks", "show", task_id)["status"] == "RUNNING"
    folder.start(*DEV).event("ready")
    wait_until(lambda: folder.json("tasks", "show", task_id)["attempt"] == 2, "it runs again", timeout=20)


def test_task_code_that_does_not_stop_does_not_hold_the_process(folder: Folder) -> None:
    dev = folder.start(*DEV, env={"TASKFRAMEWORK_SHUTDOWN__AWAIT_TERMINATION_TIMEOUT": "0s"})
    dev.event("ready")
    folder.run("submit", "naps", "600", "--app", "program")
    wait_until((folder.path / "napping").exists, "it naps", timeout=20)
    assert dev.end() == 0
    assert "exiting without waiting for task code" in "".join(dev.err)


STUBBORN = """
import asyncio
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext


class Stubborn(BackgroundTaskExecutable[None, None]):
    task_type = "stubborn"

    async def execute(self, context: TaskContext[None]) -> None:
        Path("begun").touch()
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
"""


def test_a_coroutine_that_swallows_its_cancellation_does_not_hold_the_process(folder: Folder) -> None:
    (folder.path / "stubborn.py").write_text(STUBBORN)
    worker = folder.start(
        "worker", "--app", "stubborn", env={"TASKFRAMEWORK_SHUTDOWN__AWAIT_TERMINATION_TIMEOUT": "0s"}
    )
    worker.event("ready")
    folder.run("submit", "stubborn", "null", "--app", "stubborn")
    wait_until((folder.path / "begun").exists, "it has begun", timeout=20)
    assert worker.end() == 0
    worker.event("stopped")
    assert "exiting without waiting for task code" in "".join(worker.err)


def test_dev_without_a_program_says_what_is_missing(folder: Folder) -> None:
    dev = folder.start("dev", "--port", "0")
    dev.event("ready")
    assert "--app" in dev.line("No task types are registered")
    assert dev.end() == 0


def test_ctrl_c_while_the_pipe_of_an_uploaded_batch_is_silent_cancels_the_stored_part(
    folder: Folder, dev: Started
) -> None:
    out, into = os.pipe()
    with Api(dev) as api, os.fdopen(out), os.fdopen(into, "wb", buffering=0) as items:
        url = str(api.base_url.join("/"))
        submitting = folder.start("batch", "submit", "waits", "-", "--api", url, stdin=out)

        def is_stored() -> bool:
            items.write(b"3600\n")  # of lines that come together, the last ones are sent with the next line
            return api.count("RUNNING") > 0

        wait_until(is_stored, "an item is stored", timeout=60)
        assert submitting.end(signal.SIGINT) == 130
        [batch] = api.get("/batches").json()["items"]
    [note] = submitting.err
    assert note.startswith("The stored part is cancelled.")
    assert batch["status"] == "CANCELLED"
