"""Many clients submit the versions of a key in any order while their processes and the workers are killed."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskframework.model.status import TaskStatus
from tests.chaos.truth import MongoTruth
from tests.support.command import Folder, Started, environment_with, start_program
from tests.support.process import wait_until
from tests.support.witness import Sighting, Witness

VERSIONS = 20
#: How many clients a process has.
CLIENTS = 10
#: A task as it is in the store.
Document = dict[str, Any]
#: A module for the workers. Each attempt tells the witness when its code begins and ends, and in which process.
RENDERING = """
import asyncio
import os
import socket

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, TaskContext

WITNESS = ("127.0.0.1", int(os.environ["WITNESS_PORT"]))
teller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class Edit(BaseModel):
    key: str
    version: int


class Renders(BackgroundTaskExecutable[Edit, int]):
    task_type = "renders"

    async def execute(self, context: TaskContext[Edit]) -> int:
        about = f"{os.getpid()} {context.task_id}.{context.attempt}"
        teller.sendto(f"begins {about}".encode(), WITNESS)
        await asyncio.sleep(0.2)
        teller.sendto(f"ends {about}".encode(), WITNESS)
        return context.parameters.version
"""
#: Clients that submit all versions of each key, each in an order of its own, and print what was accepted, and when.
SUBMITTING = f"""
import asyncio
import random
import sys
import time

from rendering import Renders
from taskframework import NewerVersionError, TaskFramework

framework = TaskFramework()
framework.register(Renders)


async def client(first: int, end: int) -> None:
    for key in range(first, end):
        for version in random.sample(range(1, {VERSIONS + 1}), {VERSIONS}):
            edit, unique = {{"key": f"key-{{key}}", "version": version}}, {{"key": f"key-{{key}}", "version": version}}
            try:
                await framework.submit(Renders, edit, unique=unique)
            except NewerVersionError as error:
                print("refused", f"key-{{key}}", version, error.newest, flush=True)
            else:
                print("accepted", f"key-{{key}}", version, time.time(), flush=True)


async def main() -> None:
    clients, first, end = map(int, sys.argv[1:])
    async with framework.running(worker=False):
        await asyncio.gather(*(client(first, end) for _ in range(clients)))
    print("over", flush=True)


asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A version that a client was told to be accepted, and when."""

    key: str
    version: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Stage:
    """Starts workers, and processes of clients for the keys from one number to another."""

    worker: Callable[[], Started]
    clients: Callable[[int, int], Started]


@pytest.fixture
def witness() -> Iterator[Witness]:
    with Witness() as heard:
        yield heard


@pytest.fixture
def stage(tmp_path: Path, witness: Witness, amqp_url: str, mongo_url: str) -> Iterator[Stage]:
    folder = Folder(tmp_path)
    (tmp_path / "rendering.py").write_text(RENDERING)
    (tmp_path / "submitting.py").write_text(SUBMITTING)
    environment = {
        "TASKFRAMEWORK_BROKER__URL": amqp_url,
        "TASKFRAMEWORK_STORE__URL": mongo_url,
        "TASKFRAMEWORK_WORKER__LEASE": "3s",
        "TASKFRAMEWORK_WORKER__MAX_CRASHES": "50",
        "WITNESS_PORT": str(witness.port),
    }
    started: list[Started] = []

    def clients(first: int, end: int) -> Started:
        command = [sys.executable, "submitting.py", str(CLIENTS), str(first), str(end)]
        started.append(start_program(command, tmp_path, environment_with(environment)))
        return started[-1]

    yield Stage(lambda: folder.start("--app", "rendering", "worker", env=environment), clients)
    folder.close()
    for process in started:
        process.kill()


@pytest.mark.parametrize(
    ("processes", "keys", "kills"),
    [
        pytest.param(2, 8, 4, id="short", marks=pytest.mark.timeout(240)),
        pytest.param(5, 100, 60, id="long", marks=[pytest.mark.chaos_long, pytest.mark.timeout(1_200)]),
    ],
)
def test_the_newest_runs_and_nothing_older_begins_once_it_is_accepted(
    stage: Stage, witness: Witness, mongo_url: str, seed: int, processes: int, keys: int, kills: int
) -> None:
    chance = random.Random(seed)
    workers = [stage.worker() for _ in range(3)]
    for worker in workers:
        worker.event("ready")
    submitting = [stage.clients(0, keys) for _ in range(processes)]
    everyone = list(submitting)
    for kill in range(kills):
        key = keys * kill // kills
        wait_until(partial(_is_at, submitting, key), f"the clients submit to key {key}", timeout=120)
        if kill % 2:
            place = chance.randrange(processes)
            submitting[place].kill()
            submitting[place] = stage.clients(key, keys)
            everyone.append(submitting[place])
        else:
            busy = _next_to_begin(witness, workers)
            workers[busy].kill()
            workers[busy] = stage.worker()
    for process in submitting:
        assert process.wait(timeout=300) == 0
    with closing(MongoTruth(mongo_url)) as truth:
        wait_until(lambda: _are_over(truth.states()), "all have ended", timeout=120)
        tasks = truth.documents()
    accepted = [answer for process in everyone for answer in _accepted(process.out)]
    assert list(broken(tasks, accepted, witness.seen, keys)) == []


def test_the_judgement_finds_what_is_too_old_too_late_and_done_twice() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def task(version: int, status: TaskStatus = TaskStatus.COMPLETED, begun: int | None = 0) -> Document:
        started_at = None if begun is None else noon + timedelta(seconds=begun)
        return {"parameters": {"key": "key-0", "version": version}, "status": status, "started_at": started_at}

    def judged(*tasks: Document, attempts: Sequence[str] = (), accepted: int = 10) -> list[str]:
        answer = Accepted("key-0", VERSIONS, noon + timedelta(seconds=accepted))
        return list(broken(tasks, [answer], [Sighting(0, "begins", "pid", attempt) for attempt in attempts], 1))

    newest = task(VERSIONS, begun=11)
    assert judged(newest, task(1), task(2, TaskStatus.CANCELLED, None), attempts=["a.1", "a.2"]) == []
    assert judged(newest, task(1, begun=12)), "older, and begun after the newest was accepted"
    assert judged(task(1)), "the newest was not executed"
    assert judged(newest, newest)
    assert judged(newest, task(1), task(1))
    assert judged(newest, task(1, TaskStatus.DEAD_LETTER))
    assert judged(newest, attempts=["a.1", "a.1"])
    assert judged()


def broken(
    tasks: Sequence[Document], accepted: Iterable[Accepted], seen: Iterable[Sighting], keys: int
) -> Iterator[str]:
    """What breaks a promise: the newest runs, nothing older begins once it is accepted, and nothing runs twice."""
    by_key: defaultdict[str, list[Document]] = defaultdict(list)
    for task in tasks:
        by_key[task["parameters"]["key"]].append(task)
    if len(by_key) != keys:
        yield f"{len(by_key)} keys have tasks"
    for key, its_tasks in by_key.items():
        done = Counter(task["parameters"]["version"] for task in its_tasks if task["status"] == TaskStatus.COMPLETED)
        if not done[VERSIONS] or max(done.values()) > 1:
            yield f"{key}: these versions were executed to the end: {done}"
        if unexpected := {task["status"] for task in its_tasks} - {TaskStatus.COMPLETED, TaskStatus.CANCELLED}:
            yield f"{key}: tasks ended {unexpected}"
    accepted_at = _first_acceptances(accepted)
    for task in tasks:
        key, version = task["parameters"]["key"], task["parameters"]["version"]
        newer = [at for (of, number), at in accepted_at.items() if of == key and number > version]
        if task["started_at"] is not None and newer and task["started_at"] > min(newer):
            yield f"{key}: {version} was begun at {task['started_at']}, but a newer one was accepted at {min(newer)}"
    begun = Counter(sighting.attempt for sighting in seen if sighting.what == "begins")
    yield from (f"attempt {attempt} began twice" for attempt, count in begun.items() if count > 1)


def _first_acceptances(accepted: Iterable[Accepted]) -> Mapping[tuple[str, int], datetime]:
    times: dict[tuple[str, int], datetime] = {}
    for answer in accepted:
        at = (answer.key, answer.version)
        times[at] = min(answer.at, times.get(at, answer.at))
    return times


def _accepted(lines: Sequence[str]) -> Iterator[Accepted]:
    for line in lines:
        match line.split():
            case ["accepted", key, version, at]:
                yield Accepted(key, int(version), datetime.fromtimestamp(float(at), UTC))


def _are_over(tasks: Iterable[Document]) -> bool:
    return all(TaskStatus(task["status"]).is_final for task in tasks)


def _is_at(processes: Sequence[Started], key: int) -> bool:
    """Whether one of them has had an answer for this key or a later one."""
    answers = (line.split() for process in processes for line in process.out[-1:])
    return any(answer[0] == "over" or int(answer[1].removeprefix("key-")) >= key for answer in answers)


def _next_to_begin(witness: Witness, workers: Sequence[Started]) -> int:
    """Wait until a worker begins another task; which one it is."""
    heard = len(witness.seen)
    pids = [str(worker.pid) for worker in workers]

    def begun() -> list[int]:
        return [pids.index(it.key) for it in witness.seen[heard:] if it.what == "begins" and it.key in pids]

    wait_until(lambda: bool(begun()), "a worker begins a task", timeout=60)
    return begun()[0]
