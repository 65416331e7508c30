"""`worker --processes N` on RabbitMQ and MongoDB: several real processes that behave as one command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from taskframework.model.status import TaskStatus
from taskframework.model.workers import LOST_AFTER, PRESENCE
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.support.command import Folder, Started
from tests.support.process import free_ports, wait_until
from tests.support.systemd import Ear

#: A lease that ends soon, and that a busy machine can keep.
SOON = "6s"
#: A module whose tasks end once they may.
GATED = """
import asyncio
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext


class Gated(BackgroundTaskExecutable[None, None]):
    task_type = "gated"

    async def execute(self, context: TaskContext[None]) -> None:
        while not Path("gate").exists():
            await asyncio.sleep(0.05)
"""


@pytest.fixture
def servers(amqp_url: str, mongo_url: str) -> dict[str, str]:
    """The environment in which commands use real servers, with leases that end soon."""
    return {
        "TASKFRAMEWORK_BROKER__URL": amqp_url,
        "TASKFRAMEWORK_STORE__URL": mongo_url,
        "TASKFRAMEWORK_WORKER__LEASE": SOON,
    }


class Tasks:
    """The tasks of a test, in the store."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._store = MongoStore(url)
        self._runner.run(self._store.open())

    def submit(self, task_type: str, parameters: Any, *, times: int) -> None:
        """Store them as due, so that a worker's sweeper dispatches them at once."""
        for _ in range(times):
            task = new_task(
                now=self._store.now(), dispatch_after=timedelta(0), task_type=task_type, parameters=parameters
            )
            self._runner.run(insert_one(self._store, task))

    def are(self, status: TaskStatus, count: int) -> bool:
        """Whether so many tasks have this status and none another."""
        counts = self._runner.run(self._store.count_by_status())
        return {found: number for found, number in counts.items() if number} == {status: count}

    def wait_half_a_minute(self, pid: int) -> None:
        """Let so much time have passed since a worker told of itself."""
        [record] = (
            record
            for record in self._runner.run(self._store.list_records(PRESENCE.name, limit=10))
            if PRESENCE.content(record).pid == pid
        )
        presence = PRESENCE.content(record)
        earlier = replace(presence, seen_at=presence.seen_at - LOST_AFTER)
        self._runner.run(self._store.write_records([PRESENCE.changed(record, earlier, expires_at=record.expires_at)]))

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


@pytest.fixture
def tasks(mongo_url: str) -> Iterator[Tasks]:
    made = Tasks(mongo_url)
    yield made
    made.close()


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    with closing(Ear(tmp_path)) as heard:
        yield heard


def test_the_processes_share_the_work_and_answer_as_one(
    folder: Folder, servers: dict[str, str], tasks: Tasks, ear: Ear
) -> None:
    [port] = free_ports(1)
    servers |= ear.environment
    settings = {"TASKFRAMEWORK_WORKER__HTTP_PORT": str(port), "TASKFRAMEWORK_WORKER__PROCESSES": "2"}
    parent = folder.start("--app", "program", "worker", "--concurrency", "7", env={**servers, **settings})
    pids = parent.event("ready")["pids"]
    assert len(set(pids)) == 2
    assert sorted(line["pid"] for line in parent.log if line["event"] == "serving") == sorted(pids)

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client:
        assert client.get("/healthz").json() == {"status": "ok"}

        def counts() -> list[float]:
            families = text_string_to_metric_families(client.get("/metrics").text)
            samples = [sample for family in families for sample in family.samples]
            done = [sample for sample in samples if sample.name == "tasks_execution_seconds_count"]
            return [sum(one.value for one in done if one.labels["process"] == number) for number in ("1", "2")]

        def both_work() -> bool:
            tasks.submit("count-words", {"text": "one two"}, times=10)  # one may be slow to begin
            return all(counts())

        wait_until(both_work, "both do something", timeout=60)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]) == (200, {"process 1": "ok", "process 2": "ok"})
    os.killpg(parent.pid, signal.SIGTERM)  # as systemd does: the parent's word must not count as the second signal
    assert parent.wait() == 0
    assert [line["event"] for line in parent.log].count("ready") == 1
    assert ear.words == ["READY=1", "STOPPING=1"], "the parent alone tells systemd"
    assert "exiting at once" not in [line["event"] for line in parent.log]


def test_a_worker_process_that_dies_is_started_again_and_its_tasks_end(
    folder: Folder, servers: dict[str, str], tasks: Tasks
) -> None:
    (folder.path / "gated.py").write_text(GATED)
    parent = folder.start("worker", "--app", "gated", "--processes", "2", env=servers)
    pids = parent.event("ready")["pids"]
    tasks.submit("gated", None, times=6)
    wait_until(lambda: tasks.are(TaskStatus.RUNNING, 6), "they run", timeout=40)
    assert {worker["pid"]: worker["is_lost"] for worker in workers(folder, servers)} == dict.fromkeys(pids, False)
    os.kill(pids[0], signal.SIGKILL)
    ended = parent.event("a process ended; restarting it")
    assert (ended["number"], ended["child_pid"], ended["signal"]) == (1, pids[0], "SIGKILL")
    wait_until(lambda: len(serving(parent)) == 3, "it is back", timeout=40)
    (folder.path / "gate").touch()
    wait_until(lambda: tasks.are(TaskStatus.COMPLETED, 6), "all are done", timeout=60)
    wait_until(lambda: len(workers(folder, servers)) == 3, "the new one is listed beside the dead one", timeout=20)
    tasks.wait_half_a_minute(pids[0])
    lost = [worker for worker in workers(folder, servers) if worker["is_lost"]]
    assert [worker["pid"] for worker in lost] == [pids[0]]
    assert folder.json("workers", lost[0]["worker_id"], env=servers)["items"] == [], "others have taken its tasks"
    assert "lost" in folder.run("workers", env=servers).stdout
    assert parent.end() == 0
    assert workers(folder, servers) == [], "who stops in order is gone at once, with the dead one that it replaced"
    assert [line["event"] for line in parent.log].count("ready") == 1


def test_a_stop_hands_back_what_is_unfinished(folder: Folder, servers: dict[str, str], tasks: Tasks) -> None:
    grace = {"TASKFRAMEWORK_SHUTDOWN__AWAIT_TERMINATION_TIMEOUT": "100ms", "TASKFRAMEWORK_WORKER__LEASE": "30s"}
    parent = folder.start("worker", "--app", "program", "--processes", "2", env={**servers, **grace})
    parent.event("ready")
    tasks.submit("waits", 60, times=4)
    wait_until(lambda: tasks.are(TaskStatus.RUNNING, 4), "all run", timeout=20)
    assert parent.end(signal.SIGINT) == 0
    assert tasks.are(TaskStatus.QUEUED, 4)


def test_without_their_parent_the_processes_stop_in_order(folder: Folder, servers: dict[str, str]) -> None:
    parent = folder.start("worker", "--app", "program", "--processes", "2", env=servers)
    pids = parent.event("ready")["pids"]
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.wait() == -signal.SIGKILL
    try:
        wait_until(lambda: not any(map(is_alive, pids)), "they are gone", timeout=20)
    finally:
        for pid in filter(is_alive, pids):  # nobody else would
            os.kill(pid, signal.SIGKILL)
    stopped = [line for line in parent.log if line["event"] == "stopped"]
    assert sorted(line["pid"] for line in stopped) == sorted(pids)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("broken", "error: Module 'broken' cannot be imported: ValueError: a bug (broken.py, line 1)."),
        ("empty", "error: Module empty defines no tasks"),
        ("program", "error: MongoDB:"),
    ],
)
def test_a_worker_that_cannot_start_has_one_error(folder: Folder, module: str, said: str) -> None:
    (folder.path / "broken.py").write_text("raise ValueError('a bug')\n")
    (folder.path / "empty.py").write_text("")
    nowhere = free_ports(2)
    env = {
        "TASKFRAMEWORK_BROKER__URL": f"amqp://127.0.0.1:{nowhere[0]}/",
        "TASKFRAMEWORK_STORE__URL": f"mongodb://127.0.0.1:{nowhere[1]}/tasks",
        "TASKFRAMEWORK_STORE__TIMEOUT": "300ms",
    }
    done = folder.run("worker", "--app", module, "--processes", "2", env=env, code=1)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith(said)
    assert '"ready"' not in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    critical = [line for line in lines if line["level"] == "critical"]
    # A program that collects the log reads only these lines.
    assert all(line["event"].startswith("MongoDB: ") and line["hint"] for line in critical)
    assert bool(critical) is (module == "program")


def workers(folder: Folder, servers: dict[str, str]) -> list[dict[str, Any]]:
    """The worker processes as an operator sees them."""
    listed: list[dict[str, Any]] = folder.json("workers", env=servers)["items"]
    return listed


def serving(parent: Started) -> list[int]:
    return [line["pid"] for line in parent.log if line["event"] == "serving"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
