"""A concurrency limit over eight workers on RabbitMQ and MongoDB that are killed, as a witness outside sees it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from taskframework.model.status import TaskStatus
from tests.acceptance.test_worker_processes import Tasks
from tests.support.command import Folder, Started
from tests.support.headcount import PROGRAM, Headcount
from tests.support.process import wait_until

LEASE = 3
#: A slot is back by then, and a moment more for a machine that has other things to do.
_BACK_WITHIN = LEASE + 10
Start = Callable[[], Started]


@pytest.fixture
def headcount() -> Iterator[Headcount]:
    with Headcount() as counting:
        yield counting


@pytest.fixture
def start(tmp_path: Path, headcount: Headcount, amqp_url: str, mongo_url: str) -> Iterator[Start]:
    """Start a worker on real servers whose leases end soon."""
    folder = Folder(tmp_path)
    (tmp_path / "counted.py").write_text(PROGRAM)
    environment = {
        "TASKFRAMEWORK_BROKER__URL": amqp_url,
        "TASKFRAMEWORK_STORE__URL": mongo_url,
        "TASKFRAMEWORK_WORKER__LEASE": f"{LEASE}s",
        "TASKFRAMEWORK_WORKER__MAX_CRASHES": "50",
        "HEADCOUNT_PORT": str(headcount.port),
    }
    yield lambda: folder.start("--app", "counted", "worker", env=environment)
    folder.close()


@pytest.fixture
def tasks(mongo_url: str) -> Iterator[Tasks]:
    made = Tasks(mongo_url)
    yield made
    made.close()


def kill_busiest(headcount: Headcount) -> float:
    """Kill the process in which most run; the time at which it was dead."""
    wait_until(lambda: headcount.busiest is not None, "something runs", timeout=_BACK_WITHIN)
    pid = headcount.busiest
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@pytest.mark.parametrize("task_type", ["three", "three-of-key"])
def test_never_four_tasks_run_at_once_and_never_less_than_three_for_long(
    task_type: str, start: Start, headcount: Headcount, tasks: Tasks
) -> None:
    workers = [start() for _ in range(8)]
    tasks.submit(task_type, {"seconds": 0.3}, times=70)
    for worker in workers:
        worker.event("ready")
    kills = []
    for begun in (10, 25):
        wait_until(partial(headcount.have_begun, begun), f"{begun} have begun", timeout=60)
        kills.append(kill_busiest(headcount))
    wait_until(lambda: tasks.are(TaskStatus.COMPLETED, 70), "all are done", timeout=90)
    assert headcount.most() == 3
    assert headcount.longest_below(3, 70, kills) < _BACK_WITHIN


@pytest.mark.chaos_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task_type", ["three", "three-of-key"])
def test_a_limit_holds_while_a_worker_is_killed_every_few_seconds(
    task_type: str, start: Start, headcount: Headcount, tasks: Tasks
) -> None:
    for worker in [start() for _ in range(8)]:
        worker.event("ready")
    tasks.submit(task_type, {"seconds": 0.5}, times=400)
    kills = []
    for kill in range(20):
        wait_until(partial(headcount.have_begun, 15 * kill), f"{15 * kill} have begun", timeout=120)
        kills.append(kill_busiest(headcount))
        start()
    wait_until(lambda: tasks.are(TaskStatus.COMPLETED, 400), "all are done", timeout=300)
    assert headcount.most() == 3
    assert headcount.longest_below(3, 400, kills) < _BACK_WITHIN
