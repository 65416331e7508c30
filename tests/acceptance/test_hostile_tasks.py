"""Task code that tries to end its worker: nothing else ends with it, and the log names it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.command import Folder
from tests.support.process import wait_until

TASKS = """
import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions


class Innocent(BackgroundTaskExecutable[str, int]):
    '''Ends when the file that it is given is there.'''

    task_type = "innocent"

    async def execute(self, context: TaskContext[str]) -> int:
        while not Path(context.parameters).exists():
            await asyncio.sleep(0.02)
        return context.attempt


class Guilty(BackgroundTaskExecutable[str, str]):
    task_type = "guilty"

    async def execute(self, context: TaskContext[str]) -> str:
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        match context.parameters:
            case "cancels all":
                for task in asyncio.all_tasks():
                    task.cancel()
            case "cancels others":
                for task in asyncio.all_tasks() - {current}:
                    task.cancel()
            case "cancels from a thread":
                await asyncio.to_thread(lambda: [task.cancel() for task in asyncio.all_tasks(loop) if task != current])
            case "stops the loop":
                loop.stop()
            case "shuts the loop down":
                await loop.shutdown_asyncgens()
            case "closes the loop":
                loop.close()
            case "exits":
                sys.exit(3)
            case "exits beside itself":
                await asyncio.create_task(exits())
            case "exits in a callback":
                loop.call_soon(sys.exit, 3)
            case "interrupts in a callback":
                loop.call_soon(signal.default_int_handler, signal.SIGINT, None)
            case "forks":
                if (child := os.fork()) == 0:
                    return "in another process"
                await asyncio.to_thread(os.waitpid, child, 0)
        await asyncio.sleep(0.05)
        return "did its worst"


async def exits() -> None:
    sys.exit(3)


class GuiltyInAThread(BackgroundTaskExecutable[str, int]):
    task_type = "guilty-in-a-thread"

    def execute(self, context: TaskContext[str]) -> int:
        if context.parameters == "forks" and (child := os.fork()):
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.exit(3)


class GuiltyInAProcess(BackgroundTaskExecutable[str, int]):
    task_type = "guilty-in-a-process"
    options = TaskOptions(run_in="process", max_attempts=1)

    def execute(self, context: TaskContext[str]) -> int:
        match context.parameters:
            case "forks":
                if child := os.fork():
                    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                sys.exit(3)
            case "exits":
                sys.exit(3)
            case "ends its process":
                os._exit(3)
            case "crashes":
                ctypes.string_at(0)
"""
SURVIVED = "did its worst"
#: How each ends: its status, and its result or a part of its error.
ENDS = [
    ("guilty", "cancels all", "FAILED", "cancelled itself"),
    ("guilty", "cancels others", "COMPLETED", SURVIVED),
    ("guilty", "cancels from a thread", "COMPLETED", SURVIVED),
    ("guilty", "stops the loop", "COMPLETED", SURVIVED),
    ("guilty", "shuts the loop down", "COMPLETED", SURVIVED),
    ("guilty", "closes the loop", "FAILED", "running"),
    ("guilty", "exits", "FAILED", "3"),
    ("guilty", "exits beside itself", "FAILED", "3"),
    ("guilty", "exits in a callback", "COMPLETED", SURVIVED),
    ("guilty", "interrupts in a callback", "COMPLETED", SURVIVED),
    ("guilty", "forks", "COMPLETED", SURVIVED),
    ("guilty-in-a-thread", "exits", "FAILED", "3"),
    ("guilty-in-a-thread", "forks", "COMPLETED", "3"),
    ("guilty-in-a-process", "forks", "COMPLETED", "3"),
    ("guilty-in-a-process", "exits", "FAILED", "3"),
    ("guilty-in-a-process", "ends its process", "DEAD_LETTER", "ended with exit code 3"),
    ("guilty-in-a-process", "crashes", "DEAD_LETTER", "was killed by SIGSEGV"),
]
#: Words of the one line that the process says, by what the task does.
TOLD = {
    "cancels all": "tried to cancel asyncio tasks that are not its own",
    "cancels others": "tried to cancel asyncio tasks that are not its own",
    "cancels from a thread": "tried to cancel asyncio tasks that are not its own",
    "stops the loop": "tried to stop the event loop of its worker",
    "shuts the loop down": "tried to shut down the event loop of its worker",
    "exits beside itself": "the event loop was stopped by SystemExit in task code",
    "exits in a callback": "the event loop was stopped by SystemExit in task code",
    "interrupts in a callback": "the event loop was stopped by KeyboardInterrupt in task code",
}


@pytest.fixture(params=["embedded", "servers"])
def where(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of the process. Its leases end soon if nobody renews them."""
    env = {"TASKFRAMEWORK_WORKER__LEASE": "6s"}
    if request.param == "servers":
        env["TASKFRAMEWORK_BROKER__URL"] = request.getfixturevalue("amqp_url")
        env["TASKFRAMEWORK_STORE__URL"] = request.getfixturevalue("mongo_url")
    return env


def test_no_task_takes_its_worker_or_its_neighbours_along(folder: Folder, where: dict[str, str]) -> None:
    (folder.path / "hostile.py").write_text(TASKS)
    dev = folder.start("dev", "--app", "hostile", "--port", "0", env=where)
    ready = dev.event("ready")
    url = f"http://{ready['host']}:{ready['port']}"
    tail = folder.start("events", "tail", "--json", "--url", url)
    tail.line("Listening")
    with httpx.Client(base_url=f"{url}/api/v1", trust_env=False, timeout=20) as client:
        submit, show = calls(client)
        innocents = [submit("innocent", str(folder.path / "gate")) for _ in range(3)]
        wait_until(lambda: all(show(task_id)["status"] == "RUNNING" for task_id in innocents), "they run", timeout=20)
        for task_type, deed, status, text in ENDS:
            task_id = submit(task_type, deed)
            wait_until(lambda: show(task_id)["finished_at"], f"the end of {deed}", timeout=20)  # noqa: B023
            task = show(task_id)
            assert task["status"] == status, (deed, task["error"])
            assert text in str(task["result"] or task["error"]["message"]), deed
        for task_id in innocents:  # what keeps leases lives
            before = lease_end(client, task_id)
            wait_until(lambda: lease_end(client, task_id) != before, "its lease is renewed", timeout=20)  # noqa: B023
        (folder.path / "gate").touch()
        last = submit("innocent", str(folder.path / "gate"))
        for task_id in (*innocents, last):
            wait_until(lambda: show(task_id)["finished_at"], "their end", timeout=20)  # noqa: B023
            task = show(task_id)
            assert (task["status"], task["result"]) == ("COMPLETED", 1), task["history"]
        tail.line(last)  # the bridge and the stream live as well
        assert client.get(f"{url}/readyz").status_code == 200
    assert "trying again" not in "".join(tail.err), "the stream was never cut"
    assert dev.end(signal.SIGTERM) == 0
    lines = [line["event"] for line in dev.log if line["level"] in ("warning", "error")]
    for words in set(TOLD.values()):
        count = sum(words in line for line in lines)
        assert count == list(TOLD.values()).count(words), (words, lines)


def lease_end(client: httpx.Client, task_id: str) -> str:
    """Until when the lease of a running task holds, as it is explained."""
    [end] = re.findall(r"lease is valid until (\S+);", client.get(f"/tasks/{task_id}/explain").json()["because"])
    return str(end)


def calls(client: httpx.Client) -> tuple[Callable[..., str], Callable[[str], dict[str, Any]]]:
    """Submit a task and look at one."""

    def submit(task_type: str, parameters: str) -> str:
        task_id: str = client.post("/tasks", json={"task_type": task_type, "parameters": parameters}).json()["task_id"]
        return task_id

    def show(task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = client.get(f"/tasks/{task_id}").json()
        return task

    return submit, show
