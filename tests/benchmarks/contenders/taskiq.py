"""TaskIQ on RabbitMQ (taskiq-aio-pika) with a result a task in MongoDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo import AsyncMongoClient
from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.serializers import ORJSONSerializer
from taskiq_aio_pika import AioPikaBroker

from tests.benchmarks import program
from tests.benchmarks.contender import Contender, Places, module_command, outcome
from tests.benchmarks.results import MongoResults, Results

PLACES = Places.from_environment()
RESULTS = "results"
PREFETCH = 100


class MongoBackend(AsyncResultBackend[Any]):
    """TaskIQ has no official backend for MongoDB; this inserts one document a task."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def startup(self) -> None:
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(self._url)
        self._collection = self._client.get_default_database()[RESULTS]

    async def shutdown(self) -> None:
        await self._client.close()

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        document = {"result": result.return_value, "is_err": result.is_err, "execution_time": result.execution_time}
        await self._collection.insert_one({"_id": task_id, **document})

    async def is_result_ready(self, task_id: str) -> bool:
        return await self._collection.find_one({"_id": task_id}, {"_id": 1}) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        document = await self._collection.find_one({"_id": task_id}) or {}
        return TaskiqResult(is_err=document["is_err"], return_value=document["result"], execution_time=0)


broker = AioPikaBroker(PLACES.amqp_url, result_backend=MongoBackend(PLACES.mongo_url), qos=PREFETCH)
broker = broker.with_serializer(ORJSONSerializer())


@broker.task(task_name="noop")
async def noop(i: int) -> dict[str, int]:
    return outcome(i)


class TaskiqContender(Contender):
    packages = ("taskiq", "taskiq-aio-pika", "aio-pika", "pymongo", "uvloop", "orjson")
    settings = {
        "queue": "quorum, persistent messages, publisher confirms (defaults)",
        "ack": "when_saved: after the result is stored (default)",
        "qos": f"{PREFETCH}: the default 10 would leave most of the worker's 100 slots (default) empty",
        "serializer": "orjson, the faster one of those it brings",
        "results": "a backend on MongoDB that inserts one document a task, majority",
        "event loop": "uvloop",
    }
    weaker = (
        "stores nothing before it accepts: with the broker away the call fails",
        "no claim and no fencing: after a redelivery two runs may both write a result",
        "no events, no status before the result",
    )

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        name = "tests.benchmarks.contenders.taskiq:broker"
        return [module_command("taskiq", "worker", name, "-w", str(processes), "--log-level", "WARNING")]

    def results(self) -> Results:
        return MongoResults(PLACES.mongo_url, RESULTS)

    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def submit(self, number: int) -> str:
        return str((await noop.kiq(number)).task_id)


if __name__ == "__main__":
    program.run(TaskiqContender)
