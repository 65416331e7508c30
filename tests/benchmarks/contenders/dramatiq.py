"""Dramatiq on RabbitMQ with a result a task in MongoDB."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.results import ResultBackend
from dramatiq.results import Results as ResultsMiddleware
from pymongo import MongoClient

from tests.benchmarks import program
from tests.benchmarks.contender import BlockingContender, Places, module_command, outcome
from tests.benchmarks.results import MongoResults, Results

PLACES = Places.from_environment()
RESULTS = "results"


class MongoBackend(ResultBackend):
    """Dramatiq has backends for Redis and Memcached only; this is the same on MongoDB, keyed by message id."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._collection: Any = None
        self._connecting = threading.Lock()

    def build_message_key(self, message: Any) -> str:
        return str(message.message_id)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        with self._connecting:
            if self._collection is None:  # not before: the process that uses it is forked
                self._collection = MongoClient(self._url).get_default_database()[RESULTS]
        self._collection.insert_one({"_id": message_key, "result": self.unwrap_result(result)})


broker = RabbitmqBroker(url=PLACES.amqp_url, confirm_delivery=True)
broker.add_middleware(ResultsMiddleware(backend=MongoBackend(PLACES.mongo_url), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(i: int) -> dict[str, int]:
    return outcome(i)


class DramatiqContender(BlockingContender):
    packages = ("dramatiq", "pika", "pymongo")
    settings = {
        "queue": "classic, durable, persistent messages; quorum queues are not supported",
        "confirm_delivery": "True: off by default, without it a message may be lost",
        "ack": "after the run (default)",
        "results": "Results middleware with a backend on MongoDB that inserts one document a task, majority",
        "threads": "8 a process (default), prefetch 16 (default)",
    }
    weaker = (
        "stores nothing before it accepts: with the broker away the call fails",
        "a classic queue on one node is not replicated",
        "no claim and no fencing: after a redelivery two runs may both write a result",
        "no events",
    )

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        return [module_command("dramatiq", "tests.benchmarks.contenders.dramatiq", "-p", str(processes))]

    def results(self) -> Results:
        return MongoResults(PLACES.mongo_url, RESULTS)

    def send(self, number: int) -> str:
        return str(noop.send(number).message_id)


if __name__ == "__main__":
    program.run(DramatiqContender)
