"""Submissions over HTTP by a seeded schedule, each repeated with its idempotency key until it is answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.chaos.history import Recorder

#: Requests under way at once.
_CLIENTS = 50
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """One submission to make: when, and what."""

    at: float
    task_type: str
    parameters: dict[str, Any] | None = field(default_factory=dict)
    #: Seconds between the submission and the earliest start.
    wait: float | None = None


def schedule(seed: int, count: int, seconds: float, *, longest: float = 1.0) -> list[Job]:
    """Jobs at random times: quick and slow, async and plain, some that fail at first, some that have to wait.

    Args:
        seed: the same seed gives the same schedule.
        count: how many.
        seconds: how long the submitting goes on.
        longest: seconds that the longest task runs.
    """
    chance = random.Random(seed)
    jobs = []
    for _ in range(count):
        parameters: dict[str, Any] = {"seconds": round(longest * chance.random() ** 2, 3)}
        if chance.random() < 0.15:
            parameters |= {"fails": 1, "delay": round(chance.uniform(0.1, 1), 3)}
        jobs.append(
            Job(
                at=chance.uniform(0, seconds),
                task_type=chance.choice(("async-work", "async-work", "plain-work")),
                parameters=parameters,
                wait=round(chance.uniform(0.5, 3), 3) if chance.random() < 0.1 else None,
            )
        )
    return sorted(jobs, key=lambda job: job.at)


class Load:
    """Submits jobs and writes down every answer."""

    def __init__(
        self, recorder: Recorder, addresses: Callable[[], Sequence[str]], seed: int, *, patience: float = 90.0
    ) -> None:
        """Prepare to submit.

        Args:
            recorder: told of every try.
            addresses: where APIs are now; each try goes to another one.
            seed: part of the submissions' names.
            patience: seconds after which a submission that is never answered is given up.
        """
        self._recorder = recorder
        self._addresses = addresses
        self._name = f"{seed:x}"
        self._patience = patience
        self._tries = 0
        self._submitted = 0

    async def run(self, jobs: Sequence[Job]) -> None:
        """Submit each job at its time, as far as the clients keep up."""
        began = time.monotonic()
        limit = asyncio.Semaphore(_CLIENTS)
        async with (
            httpx.AsyncClient(trust_env=False, timeout=20) as client,
            asyncio.TaskGroup() as submissions,
        ):
            for job in jobs:
                await asyncio.sleep(max(0.0, began + job.at - time.monotonic()))
                await limit.acquire()
                self._submitted += 1
                name = f"{self._name}-{self._submitted}"
                submission = submissions.create_task(self._submit(client, name, job))
                submission.add_done_callback(lambda _: limit.release())

    async def _submit(self, client: httpx.AsyncClient, name: str, job: Job) -> None:
        body = {"task_type": job.task_type, "parameters": job.parameters, "correlation_id": name}
        not_before = None
        if job.wait is not None:
            # Whole milliseconds, as the store keeps them.
            due = datetime.now(UTC) + timedelta(seconds=job.wait)
            not_before = int(due.timestamp() * 1000) / 1000
            body["not_before"] = due.isoformat(timespec="milliseconds")
        self._recorder.record("submit.invoke", submission=name, task_type=job.task_type, not_before=not_before)
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            if await self._answered(client, name, body):
                return
            await asyncio.sleep(random.uniform(0.5, 1) * _LONGEST_PAUSE)

    async def _answered(self, client: httpx.AsyncClient, name: str, body: dict[str, Any]) -> bool:
        """Try once; return whether there is nothing more to ask."""
        self._tries += 1
        addresses = self._addresses()
        address = addresses[self._tries % len(addresses)]
        try:
            answer = await client.post(f"{address}/api/v1/tasks", json=body, headers={"Idempotency-Key": name})
        except httpx.ConnectError as error:
            self._recorder.record("submit.fail", submission=name, status=None, reason=repr(error))
            return False
        except httpx.TransportError as error:
            self._recorder.record("submit.unknown", submission=name, status=None, retry_after=None, reason=repr(error))
            return False
        if answer.status_code in (200, 202):
            self._recorder.record(
                "submit.ok", submission=name, status=answer.status_code, task=answer.json()["task_id"]
            )
        elif answer.status_code < 500:
            self._recorder.record("submit.fail", submission=name, status=answer.status_code, reason=answer.text)
        else:
            self._recorder.record(
                "submit.unknown",
                submission=name,
                status=answer.status_code,
                retry_after=answer.headers.get("Retry-After"),
                reason=answer.text,
            )
            return False
        return True
