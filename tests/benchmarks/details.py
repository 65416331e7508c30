"""The service level of the example that generates details: twenty batches of fifty at once, over HTTP.

    .venv/bin/python -m tests.benchmarks.details [--servers] [--times N]

Beside it the same work is done by a plain asyncio loop without a framework, against the same stand-in endpoint with the
same luck: what that takes the endpoint itself asks for. Writes nothing; exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from taskframework import EventSubscriber, RetryableError, event_subscriber
from tests.benchmarks.metrics import quantile
from tests.benchmarks.stage import ROOT, Stage
from tests.support.command import COMMAND, Started, environment_with, start_program
from tests.support.process import free_ports

EXAMPLE = ROOT / "docs" / "examples" / "detail_generation"
BATCHES, ITEMS = 20, 50
#: Calls at a time, as many as a worker makes by default.
_AT_ONCE = 100
_LONGEST = 120.0
_ENDS = ("task.completed", "task.completed_with_errors", "task.failed", "task.dead_letter", "task.cancelled")
#: Seconds, and share of the calls and batches that succeed.
_FIRST, _BEYOND, _SUCCESS = 2.0, 5.0, 0.99


@dataclass(slots=True)
class Times:
    """Of one way: seconds until the first items and until the end of each batch, and how many there were."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    full: int = 0
    calls: int = 0
    failed: int = 0

    def said(self, name: str) -> str:
        """One line of the table."""
        shown = [f"{quantile(values, share):6.2f}" for values in (self.first, self.whole) for share in (0.5, 0.95, 1)]
        counted = f"{self.full} of {len(self.whole)} full, {self.failed} of {self.calls} calls failed"
        return f"{name:<16}{' '.join(shown)}   {counted}"


def main() -> int:
    """Run it and compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--servers", action="store_true", help="on RabbitMQ and MongoDB instead of the embedded default"
    )
    parser.add_argument("--times", type=int, default=5, help="how often, for quantiles that mean something")
    options = parser.parse_args()
    plain, ours = Times(), Times()
    with (
        tempfile.TemporaryDirectory(prefix="taskframework-details-") as name,
        _place(options.servers) as place,
        _endpoint(folder := Path(name)) as url,
        _installation(folder, place | {"OPENAI_BASE_URL": url}) as api,
    ):
        for _ in range(options.times):
            asyncio.run(_measure_plain(url, plain))
            asyncio.run(_measure_ours(api, ours))
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{'seconds':<16}{'first items':^20} {'everything':^20}   {load}")
    print(f"{'':<16}{'   P50    P95    max' * 2}")
    print(plain.said("a plain loop"))
    print(ours.said("taskframework"))
    return 0 if _is_met(plain, ours) else 1


def _is_met(plain: Times, ours: Times) -> bool:
    first = quantile(ours.first, 0.95)
    beyond = quantile(ours.whole, 0.95) - quantile(plain.whole, 0.95)
    success = min(1 - ours.failed / ours.calls, ours.full / len(ours.whole))
    print(f"first items, P95: {first:.2f} s, at most {_FIRST:.0f}")
    print(f"everything, P95: {beyond:+.2f} s beyond the plain loop, at most {_BEYOND:.0f}")
    print(f"success: {success:.2%}, more than {_SUCCESS:.0%}")
    return first <= _FIRST and beyond <= _BEYOND and success > _SUCCESS


@contextlib.contextmanager
def _place(on_servers: bool) -> Iterator[dict[str, str]]:
    if not on_servers:
        yield {}
        return
    stage = Stage(with_redis=False)
    with contextlib.closing(stage):
        stage.start()
        with stage.place() as place:
            yield place


@contextlib.contextmanager
def _running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Started]:
    started = start_program(command, folder, environment_with(environment))
    try:
        yield started
    finally:
        started.kill()


@contextlib.contextmanager
def _endpoint(folder: Path) -> Iterator[str]:
    [port] = free_ports(1)
    with _running([sys.executable, str(EXAMPLE / "endpoint.py"), "--port", str(port)], folder, {}) as started:
        started.line("Listening on")
        yield f"http://localhost:{port}/v1"


@contextlib.contextmanager
def _installation(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """`dev`: API and worker in one process."""
    [port] = free_ports(1)
    command = [*COMMAND, "dev", "--app", "details", "--port", str(port)]
    with _running(command, folder, environment | {"PYTHONPATH": str(EXAMPLE)}) as started:
        started.event("ready")
        yield f"http://localhost:{port}"


async def _measure_ours(api: str, times: Times) -> None:
    """Submit the batches at once and hear what becomes of them."""
    async with event_subscriber(api) as events, httpx.AsyncClient(base_url=f"{api}/api/v1") as client:
        await events.listening()
        first: dict[str, float] = {}
        listening = asyncio.create_task(_hear(events, first, times))
        async with asyncio.timeout(_LONGEST):
            ids = await asyncio.gather(*(_submit(client) for _ in range(BATCHES)))
            await listening
        for batch_id in ids:
            batch = (await client.get(f"/tasks/{batch_id}")).json()
            times.full += len((batch["result"] or {"items": []})["items"]) == ITEMS
            times.first.append(first.get(batch_id, _LONGEST))


async def _submit(client: httpx.AsyncClient) -> str:
    wanted = {"kind": "place", "count": ITEMS, "style": "a cold coast"}
    answer = await client.post("/tasks", json={"task_type": "detail-batch", "parameters": wanted})
    answer.raise_for_status()
    return str(answer.json()["task_id"])


async def _hear(events: EventSubscriber, first: dict[str, float], times: Times) -> None:
    """Until all batches are over."""
    begin, left = time.monotonic(), BATCHES
    async for event in events:
        if event.type not in _ENDS:
            continue
        at = time.monotonic() - begin
        if parent := event.data["parent_task_id"]:
            times.calls += 1
            times.failed += event.type != "task.completed"
            if event.type == "task.completed":
                first.setdefault(parent, at)
        else:
            times.whole.append(at)
            left -= 1
            if left == 0:
                return


async def _measure_plain(url: str, times: Times) -> None:
    """The same calls, retries and rounds by coroutines in one process that keeps nothing."""
    os.environ["OPENAI_BASE_URL"] = url
    sys.path.insert(0, str(EXAMPLE))
    details = importlib.reload(importlib.import_module("details"))
    call, slots = details.InventGroup(), asyncio.Semaphore(_AT_ONCE)
    begin = time.monotonic()

    async def ask(group: Any) -> list[Any]:
        for attempt in range(call.options.max_attempts):
            try:
                async with slots:
                    return list(await call.execute(SimpleNamespace(parameters=group)))
            except (RetryableError, httpx.TransportError) as error:
                delay = getattr(error, "delay", None)
                await asyncio.sleep(delay.total_seconds() if delay else 0.2 * 2**attempt)
        return []

    async def batch() -> None:
        wanted, kept, first = details.Wanted(kind="place", count=ITEMS, style="a cold coast"), list[Any](), 0.0
        for _ in range(details.MAX_ROUNDS):
            groups = list(details.groups(wanted, kept))
            for answer in asyncio.as_completed([ask(group) for group in groups]):
                items = await answer
                times.calls += 1
                times.failed += not items
                first = first or time.monotonic() - begin
                kept += items
            kept = details.deduplicate(kept, key=lambda item: item.name, threshold=wanted.threshold).kept[:ITEMS]
            if len(kept) == ITEMS:
                break
        times.first.append(first)
        times.whole.append(time.monotonic() - begin)
        times.full += len(kept) == ITEMS

    await asyncio.gather(*(batch() for _ in range(BATCHES)))


if __name__ == "__main__":
    sys.exit(main())
