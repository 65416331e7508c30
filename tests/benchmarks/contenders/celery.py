"""Celery on RabbitMQ with its MongoDB result backend."""

from __future__ import annotations

import json
from collections.abc import Sequence

from celery import Celery

from tests.benchmarks import program
from tests.benchmarks.contender import BlockingContender, Places, module_command, outcome
from tests.benchmarks.results import MongoResults, Results

PLACES = Places.from_environment()

app = Celery("bench", broker=PLACES.amqp_url, backend=PLACES.mongo_url)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_default_queue_type="quorum",
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(i: int) -> dict[str, int]:
    return outcome(i)


class CeleryContender(BlockingContender):
    packages = ("celery", "kombu", "amqp", "pymongo")
    settings = {
        "queue": "quorum, persistent messages (default)",
        "broker_transport_options": "confirm_publish=True: off by default, without it a message may be lost",
        "task_acks_late": "True, with task_reject_on_worker_lost=True: off by default, a crash would lose the task",
        "result_backend": "MongoDB, majority write (the server's default)",
        "worker_prefetch_multiplier": "64: what its guide names for many short tasks; the default is 4",
        "pool": "threads, 8 a process: faster here than the default, one child process with one task at a time",
        "gossip, mingle, heartbeat": "off, as its guide names for speed",
    }
    weaker = (
        "stores nothing before it accepts: with the broker away the call fails",
        "no claim and no fencing: after a redelivery two runs may both write a result",
        "no events that outlive a listener",
    )
    share = 0.5

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")
        worker = ("-A", "tests.benchmarks.contenders.celery", "worker", "--pool", "threads", "-c", "8", *quiet)
        return [module_command("celery", *worker, "-n", f"bench-{at}@%h") for at in range(processes)]

    def results(self) -> Results:
        return MongoResults(PLACES.mongo_url, "celery_taskmeta", lambda document: json.loads(document["result"]))

    def send(self, number: int) -> str:
        return str(noop.delay(number).id)


if __name__ == "__main__":
    program.run(CeleryContender)
