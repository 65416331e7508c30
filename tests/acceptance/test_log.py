"""What a real `dev` process writes while tasks go every way they can: useful lines, each once, and no secret in any."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.support.command import Folder, Started
from tests.support.process import wait_until

SECRET = "hunter2-planted"
PROGRAM = '''
import asyncio
import gc
from datetime import timedelta
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ValidationError

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext, TaskOptions

known = set()


def new(value: str) -> str:
    """Right when it is submitted, wrong when it is executed."""
    if value.startswith("once-") and value in known:
        raise ValueError("it is known already")
    known.add(value)
    return value


class Order(BaseModel):
    does: Annotated[str, AfterValidator(new)]
    password: str


class Account(BaseModel):
    number: int


def act(context: TaskContext[Order]) -> Any:
    password = context.parameters.password
    connection = {"password": password}
    match context.parameters.does:
        case "fail":
            raise ValueError("the bank refused")
        case "retry":
            raise RetryableError("not yet", delay=0)
        case "log":
            try:
                raise KeyError("no such account")
            except KeyError:
                context.logger.exception("looked %s", "in vain", extra={"bank": "b7"})
        case "log what was refused":
            try:
                Account.model_validate({"number": password})
            except ValidationError:
                context.logger.exception("no account")
        case "log by structlog":
            try:
                raise KeyError("no such account")
            except KeyError:
                structlog.get_logger().exception("looked there too", bank="b7")
        case "validate":
            Account.model_validate({"number": password})
        case "return":
            return connection
    return 1


class InLoop(BackgroundTaskExecutable[Order, int]):
    task_type = "in-loop"
    options = TaskOptions(max_attempts=2)

    async def execute(self, context: TaskContext[Order]) -> int:
        return act(context)


class InThread(BackgroundTaskExecutable[Order, int]):
    task_type = "in-thread"
    options = TaskOptions(max_attempts=2)

    def execute(self, context: TaskContext[Order]) -> int:
        return act(context)


class InProcess(BackgroundTaskExecutable[Order, int]):
    task_type = "in-process"
    options = TaskOptions(max_attempts=2, run_in="process")

    def execute(self, context: TaskContext[Order]) -> int:
        return act(context)


class Forgets(BackgroundTaskExecutable[Order, None]):
    task_type = "forgets"

    async def execute(self, context: TaskContext[Order]) -> None:
        async def fail(password: str) -> None:
            raise ValueError("nobody waits for this")

        asyncio.create_task(fail(context.parameters.password))
        await asyncio.sleep(0)
        gc.collect()


class TooSlow(BackgroundTaskExecutable[Order, None]):
    task_type = "too-slow"
    options = TaskOptions(max_attempts=1, timeout=timedelta(milliseconds=50))

    async def execute(self, context: TaskContext[Order]) -> None:
        password = context.parameters.password
        await asyncio.sleep(60)


class Waits(BackgroundTaskExecutable[Order, None]):
    task_type = "waits"

    async def execute(self, context: TaskContext[Order]) -> None:
        await asyncio.sleep(60)
'''
KINDS = ("in-loop", "in-thread", "in-process")
LEVELS = ("debug", "info", "warning", "error")
TASK_LOG = "taskframework.observability.task_log"
#: What a task does, and the levels of the lines that tell of its attempts' ends.
ENDS = {
    "fail": ["error"],
    "retry": ["warning", "error"],
    "log": ["debug"],
    "log what was refused": ["debug"],
    "log by structlog": ["debug"],
    "validate": ["error"],
    "return": ["error"],
    "once-": ["error"],
}


@pytest.fixture(params=["json", "console"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dev(folder: Folder, form: str) -> Started:
    (folder.path / "bank.py").write_text(PROGRAM)
    observability = {"LOG_FORMAT": form, "LOG_LEVEL": "DEBUG"}
    env = {f"TASKFRAMEWORK_OBSERVABILITY__{name}": value for name, value in observability.items()}
    return folder.start("dev", "--app", "bank", "--port", "0", env=env)


@pytest.fixture
def tasks(dev: Started) -> dict[str, dict[str, Any]]:
    """Tasks that went every way, by their ids; the process has ended since."""
    port = re.search(r"port\W+(\d+)", dev.line("ready"))
    assert port is not None
    with httpx.Client(base_url=f"http://127.0.0.1:{port[1]}/api/v1", trust_env=False, timeout=20) as api:
        ended = walk(api)
    assert dev.end() == 0
    return ended


def walk(api: httpx.Client) -> dict[str, dict[str, Any]]:
    wanted = [(kind, f"{way}{kind}" if way == "once-" else way) for kind in KINDS for way in ENDS]
    wanted += [("forgets", ""), ("too-slow", ""), ("waits", "")]
    bodies = [{"task_type": kind, "parameters": {"does": does, "password": SECRET}} for kind, does in wanted]
    outcomes = api.post("/tasks/bulk", json={"tasks": bodies}).json()["items"]
    ids = [outcome["task"]["task_id"] for outcome in outcomes]

    def tasks() -> dict[str, dict[str, Any]]:
        return {task_id: api.get(f"/tasks/{task_id}").json() for task_id in ids}

    wait_until(lambda: bool(tasks()[ids[-1]]["status"] == "RUNNING"), "it waits", timeout=30)
    api.post(f"/tasks/{ids[-1]}/cancel", json={"reason": "enough"})
    wait_until(lambda: all(task["finished_at"] for task in tasks().values()), "all are at their end", timeout=40)
    refused = api.post("/tasks", json={"task_type": "in-loop", "parameters": {"does": 1, "password": [SECRET]}})
    assert refused.status_code == 422
    assert SECRET not in refused.text
    return tasks()


def test_no_secret_is_in_any_output_and_each_end_is_logged_once(
    dev: Started, tasks: dict[str, dict[str, Any]], form: str
) -> None:
    written = "".join([*dev.out, *dev.err])
    assert "looked in vain" in written
    assert sum("looked there too" in line for line in dev.err) == len(KINDS)
    assert "nobody waits for this" in written
    assert SECRET not in written
    assert "\x1b" not in written, "no colours where nobody sees them"
    for task_id, task in tasks.items():
        lines = [line for line in dev.err if f"task {task_id} (" in line]
        levels = [level for line in lines for level in LEVELS if re.search(rf"\W{level}\s*\W", line.lower())]
        assert levels == ends_of(task), f"{task['task_type']} {task['parameters']['does']}: {lines}"


def ends_of(task: dict[str, Any]) -> list[str]:
    match task["task_type"]:
        case "forgets":
            return ["debug"]
        case "too-slow":
            return ["error"]
        case "waits":
            return ["info"]
    return ENDS["once-" if "once-" in task["parameters"]["does"] else task["parameters"]["does"]]


@pytest.mark.parametrize("form", ["json"], indirect=True)
def test_a_line_names_its_task_and_attempt_and_says_everything_once(
    dev: Started, tasks: dict[str, dict[str, Any]]
) -> None:
    for task_id, task in tasks.items():
        does = task["parameters"]["does"]
        lines = [line for line in dev.log if line.get("task_id") == task_id]
        names = ("task_type", "user_id", "correlation_id")
        assert all({name: line[name] for name in names} == {name: task[name] for name in names} for line in lines)
        assert [line["attempt"] for line in lines][-1] == task["attempt"]
        assert all(line["duration"] >= 0 for line in lines if line["logger"] == TASK_LOG)
        assert all(
            line["event"].count("\n") == 0 and "message" not in line for line in lines if "in vain" in line["event"]
        )
        for line in lines:
            frames = re.findall(r'File "(.*?)"', line.get("exception", ""))
            assert {frame.rpartition("/")[2] for frame in frames} <= {"bank.py", "main.py"}, line["exception"]
            assert line.get("exception", "").count("Traceback") <= 1
        if does in ("fail", "retry", "validate", "log", "log by structlog"):
            (traceback,) = [line["exception"] for line in lines if "exception" in line]
            assert traceback.startswith("Traceback (most recent call last):\n")
            assert "in act" in traceback
