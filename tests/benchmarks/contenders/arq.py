"""arq on Redis, which keeps its queue and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import default_queue_name, result_key_prefix
from arq.jobs import deserialize_result
from redis import Redis

from tests.benchmarks import program
from tests.benchmarks.contender import Contender, Places, module_command, outcome
from tests.benchmarks.results import Outcome, Results

PLACES = Places.from_environment()
REDIS = RedisSettings.from_dsn(PLACES.redis_url)
MAX_JOBS = 100
POLL_DELAY = 0.02


async def noop(_: dict[str, Any], i: int) -> dict[str, int]:
    return outcome(i)


class WorkerSettings:
    functions: ClassVar[Sequence[Any]] = [noop]
    redis_settings = REDIS
    max_jobs = MAX_JOBS
    poll_delay = POLL_DELAY
    log_results = False


class RedisResults:
    """A job stays in the queue's sorted set until its result is there."""

    def __init__(self, contender: ArqContender) -> None:
        self._contender = contender
        self._redis: Redis = Redis.from_url(PLACES.redis_url)

    def count(self, limit: int) -> int:
        return self._contender.submitted - self._redis.zcard(default_queue_name)

    def has_all(self, tasks: int) -> bool:
        return bool(self._redis.zcard(default_queue_name) == 0)

    is_settled = has_all

    def find(self, task_id: str) -> Outcome | None:
        stored = self._redis.get(result_key_prefix + task_id)
        return None if stored is None else _outcome(stored)

    def all(self) -> Sequence[Outcome]:
        keys = list(self._redis.scan_iter(f"{result_key_prefix}*", count=1_000))
        return [_outcome(stored) for stored in cast("list[Any]", self._redis.mget(keys))]


class ArqContender(Contender):
    packages = ("arq", "redis", "hiredis")
    settings = {
        "Redis": "append-only file, fsync every second (the default with appendonly yes)",
        "max_jobs": f"{MAX_JOBS}: the default 10 would leave the worker waiting",
        "poll_delay": f"{POLL_DELAY:g} s: with the default 0.5 s it polls more than it works, and a task waits for it",
        "results": "in Redis, kept an hour (default)",
    }
    weaker = (
        "a crash of the machine loses up to a second of accepted tasks and of results; no replication is awaited",
        "everything lives in the memory of one Redis",
        "no claim that is fenced: a job whose lock expired may run twice, and both write a result",
        "no events",
    )
    on_redis = True

    def __init__(self) -> None:
        self.submitted = 0

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        return [module_command("arq", "tests.benchmarks.contenders.arq.WorkerSettings")] * processes

    def results(self) -> Results:
        return RedisResults(self)

    async def open(self) -> None:
        self._pool = await create_pool(REDIS)

    async def close(self) -> None:
        await self._pool.aclose()

    async def submit(self, number: int) -> str:
        job = await self._pool.enqueue_job("noop", number)
        assert job is not None, "a job of this id is there already"
        self.submitted += 1
        return str(job.job_id)


def _outcome(stored: Any) -> Outcome:
    value: Outcome = deserialize_result(stored).result
    return value


if __name__ == "__main__":
    program.run(ArqContender)
