"""This project, with its default settings."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, Settings, SubmitRequest, TaskContext, TaskFramework
from tests.benchmarks import program
from tests.benchmarks.contender import Contender, Places, module_command, outcome
from tests.benchmarks.events import bind_subscriber
from tests.benchmarks.results import Results, task_results

TASK_TYPE = "noop"


class Number(BaseModel):
    i: int


class Noop(BackgroundTaskExecutable[Number, dict[str, int]]):
    task_type = TASK_TYPE

    async def execute(self, context: TaskContext[Number]) -> dict[str, int]:
        return outcome(context.parameters.i)


class Taskframework(Contender):
    packages = ("taskframework", "aio-pika", "motor", "pymongo", "uvloop")
    settings = {
        "everything": "defaults",
        "queue": "quorum, persistent messages, publisher confirms, manual ack after the final write",
        "store": "MongoDB document before the message, majority writes, fenced",
        "events": "published to the events exchange; one bound queue (at most 10,000 messages) takes them",
    }
    bulk = "submit_many, 1,000 a call"
    #: Changed settings of the broker.
    broker: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._places = Places.from_environment()
        self._stack = contextlib.AsyncExitStack()
        self._framework = TaskFramework(
            Settings.model_validate(
                {"broker": {"url": self._places.amqp_url, **self.broker}, "store": {"url": self._places.mongo_url}}
            )
        )
        self._framework.register(Noop)

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        name = "tests.benchmarks.contenders.taskframework"
        changes = [f"TASKFRAMEWORK_BROKER__{key.upper()}={value}" for key, value in self.broker.items()]
        return [
            ["env", *changes, *module_command("taskframework", "worker", "--processes", str(processes), "--app", name)]
        ]

    def results(self) -> Results:
        return task_results(self._places.mongo_url)

    async def open(self) -> None:
        await self._stack.enter_async_context(self._framework.running(worker=False))
        await bind_subscriber(self._places.amqp_url, "tasks.events")

    async def close(self) -> None:
        await self._stack.aclose()

    async def submit(self, number: int) -> str:
        return (await self._framework.submit(TASK_TYPE, {"i": number})).task_id

    async def submit_many(self, numbers: Sequence[int]) -> None:
        outcomes = await self._framework.submit_many(
            [SubmitRequest(task_type=TASK_TYPE, parameters={"i": number}) for number in numbers]
        )
        for refused in outcomes:
            if isinstance(refused, Exception):
                raise refused

    async def flush(self) -> None:
        await self._framework.services.bus.drain()
        await self._framework.process.producer.wait_until_sent()


if __name__ == "__main__":
    program.run(Taskframework)
