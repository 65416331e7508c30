"""Servers and worker processes for the benchmarks of single features."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskframework import Settings, TaskFramework
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import LIVE
from taskframework.submission.requests import SubmitRequest
from tests.benchmarks.stage import ROOT
from tests.support.command import COMMAND, environment_with
from tests.support.mongo import MongoServer
from tests.support.process import Process, free_ports
from tests.support.rabbit import RabbitServer

_LOOK_SECONDS = 0.02
#: How many requests are submitted together.
_GROUP = 500
#: Seconds after the last submission until the submitter is at rest: marks are written two seconds later.
_REST_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Place:
    """A virtual host and a database on running servers."""

    rabbit: RabbitServer
    mongo: MongoServer
    amqp_url: str
    mongo_url: str

    def settings(self, **sections: Any) -> Settings:
        """The settings of a process here, with further sections."""
        given = {"broker": {"url": self.amqp_url}, "store": {"url": self.mongo_url}}
        return Settings.model_validate({**given, **sections})

    def other(self, name: str) -> Place:
        """Another virtual host and database on the same servers."""
        return Place(self.rabbit, self.mongo, self.rabbit.url_of(self.rabbit.new_vhost()), self.mongo.url_of(name))


@contextlib.contextmanager
def servers() -> Iterator[Place]:
    """Start RabbitMQ and MongoDB."""
    with contextlib.closing(RabbitServer()) as rabbit, contextlib.closing(MongoServer()) as mongo:
        rabbit.start()
        mongo.start()
        yield Place(rabbit, mongo, rabbit.url_of(rabbit.new_vhost()), mongo.url_of("benchmark"))


@contextlib.contextmanager
def running_workers(
    apps: Sequence[str], count: int, folder: Path, place: Place, settings: Mapping[str, str] | None = None
) -> Iterator[list[Process]]:
    """Start workers with the types of these modules; `settings` are further environment variables, without prefix."""
    folder.mkdir(exist_ok=True)
    named = [argument for app in apps for argument in ("--app", app)]
    workers = []
    for number in range(count):
        [port] = free_ports(1)
        given = {"BROKER__URL": place.amqp_url, "STORE__URL": place.mongo_url, "WORKER__HTTP_PORT": str(port)}
        variables = {f"TASKFRAMEWORK_{name}": value for name, value in {**given, **(settings or {})}.items()}
        environment = environment_with({**variables, "PYTHONPATH": str(ROOT)})
        log = folder / f"{number}.log"
        workers.append(Process([*COMMAND, "worker", *named], log=log, environment=environment, folder=folder))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end(15, timeout=30)


async def submit_all(framework: TaskFramework, requests: Sequence[SubmitRequest]) -> None:
    """Submit these in large groups."""
    for at in range(0, len(requests), _GROUP):
        await framework.submit_many(requests[at : at + _GROUP])


async def submit_while_stopped(
    framework: TaskFramework, workers: Sequence[Process], requests: Sequence[SubmitRequest]
) -> None:
    """Submit these while the workers are stopped (SIGSTOP), then let the workers run."""
    for worker in workers:
        worker.pause()
    await submit_all(framework, requests)
    await asyncio.sleep(_REST_SECONDS)
    for worker in workers:
        worker.send(signal.SIGCONT)


async def until_over(framework: TaskFramework) -> None:
    """Wait until every task is final."""
    while await _has_live_task(framework):  # noqa: ASYNC110 - they end in other processes
        await asyncio.sleep(_LOOK_SECONDS)


async def _has_live_task(framework: TaskFramework) -> bool:
    # To count thousands of tasks again and again would be a good part of the load.
    store = framework.services.store
    pages = [await store.list_tasks(EVERYONE, TaskFilter(status=status), limit=1) for status in LIVE]
    return any(page.items for page in pages)
