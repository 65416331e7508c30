"""The parent of several worker processes, with small programs in their place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskframework.cli import process, supervision
from taskframework.cli.supervision import Ending, Supervisor, pause_before_restart, usable_cpus
from taskframework.cli.tether import Failure
from taskframework.errors import TaskframeworkError
from taskframework.settings import Settings
from taskframework.testing.eventually import eventually
from tests.unit.cli.conftest import Cli

#: A worker process in small: it holds its end of the tether, counts its lives, and stops when the other end is closed.
_START = """
import os, signal, socket, sys, time
tether = socket.socket(fileno=int(sys.argv[-1]))
with open("lives", "a") as lives:
    lives.write("x")
def lived():
    return len(open("lives").read())
def say(text):
    tether.sendall(text.encode() + b"\\n")
def stay():
    while tether.recv(1000):
        pass
"""
_READY = "say('{\"ready\": true}')\n"
_FAILED = 'say(\'{"message": "It is wrong.", "hint": "Correct it.", "may_pass": %s}\')\nsys.exit(1)\n'


@pytest.mark.parametrize(
    ("deaths", "luck", "seconds"),
    [(1, 0, 0.25), (1, 1, 0.5), (2, 1, 1), (3, 0, 1), (7, 1, 30), (1000, 1, 30), (1000, 0, 15)],
)
def test_the_pauses_double_up_to_half_a_minute_and_are_spread(deaths: int, luck: float, seconds: float) -> None:
    assert pause_before_restart(deaths, luck) == seconds


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), (None, None)]
)
def test_a_container_with_a_quota_has_fewer_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, cpus: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(supervision, "_CPU_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert usable_cpus() == (cpus or 8)


@pytest.mark.parametrize("wanted", ["2", "many"])
def test_an_embedded_installation_has_one_process(cli: Cli, wanted: str) -> None:
    done = cli("worker", "--app", "greeting", "--processes", wanted)
    said = " ".join(done.err.replace("│", " ").split())
    if wanted == "2":
        assert done.code == 1
        assert "2 worker processes cannot share an embedded broker and store" in said
        assert "Set broker.url to RabbitMQ and store.url to MongoDB" in said
    else:
        assert (done.code, "'many' is neither auto nor a whole number of at least 0" in said) == (2, True)


def test_the_number_of_processes_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "usable_cpus", lambda: 8)
    servers = {"broker": {"url": "amqp://localhost"}, "store": {"url": "mongodb://localhost/tasks"}}

    def count(processes: object, **sections: object) -> int:
        return supervision.process_count(Settings.model_validate({"worker": {"processes": processes}, **sections}))

    assert [count(wanted, **servers) for wanted in (1, 3, 0, "auto", "2")] == [1, 3, 8, 8, 2]
    assert [count(wanted) for wanted in (1, 0, "auto")] == [1, 1, 1]


class Parent:
    """A supervisor that runs beside the test."""

    def __init__(self, program: str, count: int) -> None:
        settings = Settings.model_validate({"shutdown": {"await_termination_timeout": "0s"}})
        command = [sys.executable, "-I", "-S", "-c", _START + program]
        self.supervisor = Supervisor(settings, command, count)
        self.running = asyncio.create_task(self.supervisor.run())

    @property
    def pids(self) -> list[int | None]:
        return [process.pid for process in self.supervisor.processes]

    async def ready(self) -> None:
        processes = self.supervisor.processes
        await eventually(lambda: all(process.is_ready for process in processes), what="all are ready")

    async def ends(self) -> bool:
        """Whether it ends in order."""
        async with asyncio.timeout(60):
            return await self.running


@pytest.fixture
async def parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[list[Parent]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervision, "_FIRST_PAUSE_SECONDS", 0.02)
    caplog.set_level("INFO", "taskframework.cli")
    made: list[Parent] = []
    yield made
    for parent in made:
        if not parent.running.done():
            parent.supervisor._stop.request(cause="the test")
        await asyncio.gather(parent.running, return_exceptions=True)


async def test_the_parent_is_ready_once_when_all_processes_are_ready(
    parents: list[Parent], caplog: pytest.LogCaptureFixture
) -> None:
    parents.append(parent := Parent(_READY + "stay()", 3))
    await parent.ready()
    pid = parent.pids[1]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: parent.supervisor.processes[1].restarts == 1)
    await parent.ready()
    assert pid not in parent.pids
    os.kill(os.getpid(), signal.SIGTERM)
    assert await parent.ends()
    assert parent.pids == [None] * 3
    assert caplog.messages.count("ready") == 1


async def test_a_process_that_dies_at_once_is_started_again_and_again(
    parents: list[Parent], caplog: pytest.LogCaptureFixture
) -> None:
    parents.append(parent := Parent("if lived() < 4: sys.exit(7)\n" + _READY + "stay()", 1))
    await parent.ready()
    assert parent.supervisor.processes[0].restarts == 3
    endings = [record for record in caplog.records if "restarting it" in record.message]
    assert [vars(record)["code"] for record in endings] == [7, 7, 7]


async def test_a_process_that_cannot_start_stops_the_others_with_one_error(parents: list[Parent]) -> None:
    parents.append(
        parent := Parent("if lived() == 2:\n    " + _FAILED.replace("\n", "\n    ") % "true" + "\nstay()", 2)
    )
    with pytest.raises(TaskframeworkError, match=r"^It is wrong. Correct it.$"):
        await parent.ends()
    assert [process.restarts for process in parent.supervisor.processes] == [0, 0]
    assert Path("lives").read_text() == "xx"


@pytest.mark.parametrize("may_pass", ["true", "false"])
async def test_a_server_may_be_away_for_a_while_after_all_processes_were_ready(
    parents: list[Parent], may_pass: str
) -> None:
    again = "if lived() in (2, 3):\n    " + _FAILED.replace("\n", "\n    ") % may_pass
    parents.append(parent := Parent(f"{again}\n{_READY}stay()", 1))
    await parent.ready()
    parent.supervisor.processes[0].kill()
    if may_pass == "true":
        await eventually(lambda: parent.supervisor.processes[0].restarts == 3)
        await parent.ready()
    else:
        with pytest.raises(TaskframeworkError, match="It is wrong"):
            await parent.ends()


async def test_a_process_that_does_not_stop_is_killed_and_that_is_no_success(
    parents: list[Parent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_STOP_MARGIN_SECONDS", 0.3)
    parents.append(parent := Parent(_READY + "stay()\ntime.sleep(60)", 2))
    await parent.ready()
    os.kill(os.getpid(), signal.SIGINT)
    assert not await parent.ends()
    assert parent.pids == [None, None]


async def test_a_stop_does_not_wait_for_a_restart(parents: list[Parent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_FIRST_PAUSE_SECONDS", 30.0)
    parents.append(parent := Parent("sys.exit(1)", 1))
    await eventually(lambda: parent.supervisor.processes[0].restarts == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await parent.ends()


async def test_a_second_signal_ends_all_at_once(parents: list[Parent], monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with: list[int] = []
    monkeypatch.setattr(process, "exit_now", ended_with.append)
    monkeypatch.setattr(supervision, "_STOP_MARGIN_SECONDS", 60.0)
    parents.append(parent := Parent(_READY + "stay()\ntime.sleep(60)", 2))
    await parent.ready()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: parent.supervisor._stop.requested.is_set())
    assert not await parent.ends()
    assert ended_with == [128 + signal.SIGTERM]


async def test_a_signal_after_another_wish_to_stop_is_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with: list[int] = []
    monkeypatch.setattr(process, "exit_now", ended_with.append)
    stop = process.StopRequest()
    stop.is_opening = False
    stop.request(cause="the parent")
    stop._handle_signal(signal.SIGTERM)
    assert stop.requested.is_set()
    assert ended_with == []
    stop._handle_signal(signal.SIGTERM)
    assert ended_with == [128 + signal.SIGTERM]


@pytest.mark.parametrize(
    ("ending", "is_clean"),
    [
        (Ending(0, was_ready=True), True),
        (Ending(-signal.SIGTERM, was_ready=True), False),
        (Ending(-signal.SIGTERM), True),  # while it was still starting
        (Ending(1, failure=Failure("away", "", may_pass=True)), True),
        (Ending(-signal.SIGKILL), False),  # perhaps some queues were consumed
    ],
)
def test_a_process_may_end_in_any_way_before_it_was_ready(ending: Ending, is_clean: bool) -> None:
    assert ending.is_clean is is_clean


async def test_a_system_that_starts_no_process_is_tried_again(
    parents: list[Parent], monkeypatch: pytest.MonkeyPatch
) -> None:
    parents.append(parent := Parent(_READY + "stay()", 1))
    await parent.ready()
    [only] = parent.supervisor.processes
    interpreter = only._command
    monkeypatch.setattr(only, "_command", ["/no/such/interpreter"])
    only.kill()
    await eventually(lambda: only.restarts == 2)
    monkeypatch.setattr(only, "_command", interpreter)
    await parent.ready()
