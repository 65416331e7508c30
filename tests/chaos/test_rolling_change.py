"""A rolling change on a database of an earlier release, under load: nothing is lost, no key is accepted twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskframework.testing.eventually import eventually
from tests.chaos.cluster import Api, Cluster, settings_of
from tests.chaos.history import Recorder
from tests.chaos.truth import MongoTruth
from tests.support.earlier_release import INDEX
from tests.support.process import Process, ServerFailed

_ROOT = Path(__file__).parents[2]
KEYS = 120
WORK: dict[str, Any] = {"task_type": "async-work", "parameters": {"seconds": 0.01}}
#: As long as processes take to start on a crowded machine.
PATIENCE = 60.0


class Answers:
    """Which task each key stood for, by whoever was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of_new: dict[str, set[str]] = defaultdict(set)
        self.rounds = 0

    def of_old(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for file in self._folder.glob("old-*.txt"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    key, task_id = line.split()
                    found[key].add(task_id)
        return found

    def all(self) -> dict[str, set[str]]:
        old = self.of_old()
        return {key: self.of_new[key] | old[key] for key in (f"key-{n}" for n in range(KEYS))}


class OldProcess:
    """A process of the earlier release that submits keys."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self.file = folder / f"old-{name}.txt"
        self.file.touch()
        arguments = [url, str(self.file), str(KEYS), WORK["task_type"], json.dumps(WORK["parameters"])]
        command = [sys.executable, "-m", "tests.support.earlier_release", *arguments]
        self._process = Process(command, log=folder / f"old-{name}.log", folder=_ROOT)

    async def answers(self, more: int) -> None:
        """Wait until it has submitted so many more keys."""
        enough = await asyncio.to_thread(self._count) + more

        async def are_enough() -> bool:
            if not self._process.is_alive:
                log = await asyncio.to_thread(self._process.log_tail)
                raise ServerFailed(f"the earlier release has ended:\n{log}")
            return await asyncio.to_thread(self._count) >= enough

        await eventually(are_enough, timeout=PATIENCE)

    def _count(self) -> int:
        return len(self.file.read_text().splitlines())

    def stop(self) -> None:
        self._process.end(15, timeout=20)

    def close(self) -> None:
        self._process.end(9, timeout=10)


@asynccontextmanager
async def submitting(apis: list[Api], answers: Answers) -> AsyncIterator[None]:
    """Submit all keys again and again, each time to another of the APIs that are there."""

    async def submit(client: httpx.AsyncClient, n: int, turn: int) -> None:
        api = apis[(n + turn) % len(apis)]
        headers = {"Idempotency-Key": f"key-{n}"}
        answer = await client.post(f"{api.address}/api/v1/tasks", json=WORK, headers=headers)
        assert answer.status_code in (200, 202), answer.text
        answers.of_new[f"key-{n}"].add(answer.json()["task_id"])

    async def rounds() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            while not stopping.is_set():
                for at in range(0, KEYS, 10):
                    await asyncio.gather(*(submit(client, n, answers.rounds) for n in range(at, at + 10)))
                answers.rounds += 1

    stopping = asyncio.Event()
    running = asyncio.create_task(rounds())
    try:
        yield
    finally:
        stopping.set()
        await running


@pytest.mark.timeout(300)
async def test_two_apis_and_four_workers_take_over_from_an_earlier_release(
    amqp_url: str, mongo_url: str, tmp_path: Path
) -> None:
    settings = settings_of({"BROKER__URL": amqp_url, "STORE__URL": mongo_url, "WORKER__LEASE": "5s"})
    answers = Answers(tmp_path)
    with (
        closing(Recorder(tmp_path / "history.jsonl", "harness")) as recorder,
        closing(Cluster(tmp_path, recorder, settings)) as cluster,
        closing(MongoTruth(mongo_url)) as truth,
        closing(OldProcess(tmp_path, mongo_url, "1")) as first,
        closing(OldProcess(tmp_path, mongo_url, "2")) as second,
    ):
        await first.answers(KEYS // 2)  # the other half of the keys is new to both releases
        workers = [cluster.add_worker() for _ in range(4)]
        apis = [cluster.add_api()]
        await cluster.ready()
        async with submitting(apis, answers):
            await second.answers(KEYS)
            assert not await is_gone(truth), "the earlier release is still there"
            await asyncio.to_thread(first.stop)
            api = cluster.add_api()
            await api.ready()
            apis.append(api)
            await second.answers(KEYS)
            await asyncio.to_thread(second.stop)
            workers[0].kill()
            workers[0].start()  # each start looks whether the earlier release is gone; each process does once a minute
            await eventually(lambda: is_gone(truth), timeout=90)
            last = answers.rounds + 2
            await eventually(lambda: answers.rounds >= last, timeout=PATIENCE)
        await eventually(lambda: are_completed(truth), timeout=PATIENCE)
        await cluster.stop()

        assert {key: ids for key, ids in answers.all().items() if len(ids) != 1} == {}
        documents = truth.documents()
        assert len(documents) == KEYS
        assert {document["_id"] for document in documents} == set().union(*answers.all().values())


async def is_gone(truth: MongoTruth) -> bool:
    """Whether the index of the earlier release is."""
    return INDEX not in await asyncio.to_thread(truth._tasks.index_information)


async def are_completed(truth: MongoTruth) -> bool:
    return {state["status"] for state in await asyncio.to_thread(truth.states)} == {"COMPLETED"}
