"""Serial streams over several worker processes on RabbitMQ and MongoDB, some of them killed, as a witness sees them."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise

import pytest

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.stores.mongo.store  # noqa: F401
from taskframework import Settings, SubmitRequest, TaskFramework, TaskStatus
from tests.support.command import Folder, Started
from tests.support.process import wait_until
from tests.support.witness import Sighting, Witness

#: A module for the workers. Each attempt tells the witness when it begins and ends; some fail and are retried.
PROGRAM = """
import asyncio
import os
import socket
from datetime import timedelta

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext

WITNESS = ("127.0.0.1", int(os.environ["WITNESS_PORT"]))
teller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class Step(BaseModel):
    key: str
    number: int
    fails: int = 0


class Walks(BackgroundTaskExecutable[Step, int]):
    task_type = "walks"

    async def execute(self, context: TaskContext[Step]) -> int:
        step = context.parameters
        about = f"{step.key} {step.number}.{context.fencing_token}"
        teller.sendto(f"begins {about}".encode(), WITNESS)
        await asyncio.sleep(0.002)
        teller.sendto(f"ends {about}".encode(), WITNESS)
        if context.attempt <= step.fails:
            raise RetryableError("again", delay=timedelta(milliseconds=50))
        return step.number
"""
Start = Callable[[], Started]
#: A lease that ends soon, and that a busy machine can keep.
SOON = "6s"


@pytest.fixture
def witness() -> Iterator[Witness]:
    with Witness() as heard:
        yield heard


@pytest.fixture
def start(folder: Folder, witness: Witness, amqp_url: str, mongo_url: str) -> Start:
    """Start a worker on real servers whose leases end soon."""
    (folder.path / "walking.py").write_text(PROGRAM)
    environment = {
        "TASKFRAMEWORK_BROKER__URL": amqp_url,
        "TASKFRAMEWORK_STORE__URL": mongo_url,
        "TASKFRAMEWORK_WORKER__LEASE": SOON,
        # A task that is in a killed worker's hands three times by chance is no poison.
        "TASKFRAMEWORK_WORKER__MAX_CRASHES": "20",
        "WITNESS_PORT": str(witness.port),
    }

    def start() -> Started:
        worker = folder.start("--app", "walking", "worker", env=environment)
        worker.event("ready")
        return worker

    return start


@pytest.mark.parametrize(
    ("workers", "keys", "each", "kills"),
    [
        pytest.param(3, 20, 20, 3, id="short", marks=pytest.mark.timeout(240)),
        pytest.param(8, 1_000, 100, 8, id="long", marks=[pytest.mark.chaos_long, pytest.mark.timeout(3_000)]),
    ],
)
def test_tasks_of_each_stream_run_one_by_one_in_order_whoever_is_killed(
    start: Start, witness: Witness, amqp_url: str, mongo_url: str, workers: int, keys: int, each: int, kills: int
) -> None:
    running = [start() for _ in range(workers)]
    framework = TaskFramework(Settings.model_validate({"broker": {"url": amqp_url}, "store": {"url": mongo_url}}))
    with asyncio.Runner() as runner:
        runner.run(_submit(framework, keys, each))
        for kill in range(kills):
            done = keys * each * (kill + 1) // (kills + 2)
            wait_until(partial(_have_ended, witness, done), f"{done} have ended", timeout=1_500)
            running[kill % workers].kill()
            running[kill % workers] = start()
        wait_until(lambda: runner.run(_are_done(framework, keys * each)), "all are done", timeout=1_500)
    violations = list(broken(witness.seen, keys, each))
    assert violations == []


def test_the_judgement_finds_what_is_out_of_order_and_what_runs_twice() -> None:
    def seen(*told: str) -> list[str]:
        sightings = [Sighting(0, what, "key-0", attempt) for what, attempt in (one.split() for one in told)]
        return list(broken(sightings, 1, 2))

    assert seen("begins 0.1", "ends 0.1", "begins 1.1", "ends 1.1") == []
    assert seen("begins 0.1", "begins 0.2", "ends 0.2", "begins 1.1", "ends 1.1") == [], "the first was killed"
    assert seen("begins 1.1", "ends 1.1", "begins 0.1", "ends 0.1")
    assert seen("begins 0.1", "begins 1.1", "ends 0.1", "ends 1.1")
    assert seen("begins 0.1", "ends 0.1")


def broken(seen: Iterable[Sighting], keys: int, each: int) -> Iterator[str]:
    """What is wrong with the order of one key or another."""
    by_key: defaultdict[str, list[Sighting]] = defaultdict(list)
    for sighting in seen:
        by_key[sighting.key].append(sighting)
    if len(by_key) != keys:
        yield f"{len(by_key)} keys were seen"
    for key, sightings in by_key.items():
        numbers = [int(sighting.attempt.partition(".")[0]) for sighting in sightings]
        if sorted(set(numbers)) != list(range(each)) or numbers != sorted(numbers):
            yield f"{key} ran in the order {numbers}"
        for one, next_one in pairwise(sightings):
            # What began and did not end was killed; then only the same task may begin, once more.
            is_open = one.what == "begins" and one.attempt != next_one.attempt
            if is_open and one.attempt.partition(".")[0] != next_one.attempt.partition(".")[0]:
                yield f"{key}: {next_one.attempt} came into {one.attempt}"


def _have_ended(witness: Witness, count: int) -> bool:
    return sum(sighting.what == "ends" for sighting in list(witness.seen)) >= count


async def _submit(framework: TaskFramework, keys: int, each: int) -> None:
    """Submit to all keys by turns, from the first number of each to the last."""
    chance = random.Random(keys)
    async with framework.store_only():
        for number in range(each):
            requests = [
                SubmitRequest(
                    task_type="walks",
                    parameters={"key": f"key-{key}", "number": number, "fails": int(chance.random() < 0.05)},
                    stream={"key": f"key-{key}"},
                )
                for key in range(keys)
            ]
            outcomes = await framework.submit_many(requests)
            assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]


async def _are_done(framework: TaskFramework, count: int) -> bool:
    async with framework.store_only():
        counts = await framework.services.store.count_by_status()
        return {status: number for status, number in counts.items() if number} == {TaskStatus.COMPLETED: count}
