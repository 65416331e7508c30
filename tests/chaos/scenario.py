"""One run: processes, load, a subscriber and faults; then everything is let come to rest, and judged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aio_pika

from taskframework.testing.eventually import eventually
from tests.chaos.checker import Report, check
from tests.chaos.cluster import Cluster, settings_of
from tests.chaos.history import Recorder, read
from tests.chaos.listener import QUEUE, Listener
from tests.chaos.load import Job, Load
from tests.chaos.story import FINAL_STATUSES
from tests.chaos.truth import Truth, TruthUnavailable

TASK_TYPES = ("async-work", "plain-work", "parent", "asks", "exits")
_LOOK_INTERVAL = 0.5

#: Settings under which a task that is interrupted again and again is no poison, but unlucky.
INNOCENT = {
    "WORKER__MAX_CRASHES": "50",
    "RETRY__MAX_ATTEMPTS": "60",
    "RETRY__INITIAL_DELAY": "1s",
    "RETRY__MAX_DELAY": "1s",
}


class Scenario:
    """A context manager around one run. `finish` ends it; leaving without it only cleans up."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        truth: Truth,
        settings: Mapping[str, str],
        *,
        amqp_url: str | None = None,
        listens: bool = True,
    ) -> None:
        """Prepare a run.

        Args:
            folder: for logs and the history.
            seed: what the faults and the load are derived from.
            truth: the store's documents.
            settings: of all processes, such as `{"WORKER__LEASE": "2s"}`.
            amqp_url: RabbitMQ, to listen to events and to look into queues; None where it is embedded.
            listens: whether somebody listens to events.
        """
        self.seed = seed
        self.recorder = Recorder(folder / "history.jsonl", "harness")
        self.cluster = Cluster(folder, self.recorder, settings_of(settings))
        self.listener = Listener(amqp_url, self.recorder) if listens and amqp_url else None
        self.notes: list[str] = []
        #: The documents at the end.
        self.found: list[dict[str, Any]] = []
        self._truth = truth
        self._amqp_url = amqp_url
        self._load = Load(self.recorder, lambda: [api.address for api in self.cluster.apis], seed)
        self._final: dict[str, int] = {}
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self.listener is not None:
            await self.listener.start()
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self.listener is not None:
            await self.listener.stop()
        await asyncio.to_thread(self.cluster.close)
        self._truth.close()
        self.recorder.close()

    async def submit(self, jobs: Sequence[Job]) -> None:
        """Submit by a schedule, until every submission has its answer."""
        await self._load.run(jobs)

    @contextlib.asynccontextmanager
    async def submitting(self, jobs: Sequence[Job]) -> AsyncIterator[asyncio.Task[None]]:
        """Submit while the block runs, and after it what is left."""
        submitting = asyncio.create_task(self.submit(jobs))
        try:
            yield submitting
            await submitting
        finally:
            submitting.cancel()

    @contextlib.asynccontextmanager
    async def unheard(self) -> AsyncIterator[None]:
        """Let the subscriber be away while the block runs."""
        if self.listener is None:
            raise ValueError("nobody listens in this scenario")
        await self.listener.stop()
        yield
        await self.listener.start()

    @contextlib.contextmanager
    def fault(self, name: str, target: str, *, pids: Sequence[int] | None = ()) -> Iterator[None]:
        """Write down that the block is a fault.

        Args:
            name: what is done.
            target: to whom.
            pids: processes whose late effects it excuses; None for all of them.
        """
        told = {"fault": name, "target": target, "pids": None if pids is None else list(pids)}
        self.recorder.record("fault.start", **told)
        try:
            yield
        finally:
            self.recorder.record("fault.stop", **told)

    def note(self, line: str) -> None:
        """Add a line to what is printed at the end."""
        self.notes.append(line)

    async def states(self) -> list[dict[str, Any]]:
        """All tasks as they are now, without their histories; waits for a database that is away."""
        return await self._ask(self._truth.states)

    async def running(self, count: int, *, worker_pid: int | None = None, timeout: float = 30) -> list[dict[str, Any]]:
        """Wait until so many tasks run (of one worker), and return them.

        Raises:
            AssertionError: if that takes too long.
        """
        end = time.monotonic() + timeout
        while True:
            running = [task for task in await self.states() if task["status"] == "RUNNING"]
            if worker_pid is not None:
                running = [task for task in running if f":{worker_pid}:" in task["lease"]["worker_id"]]
            if len(running) >= count:
                return running
            assert time.monotonic() < end, f"{len(running)} of {count} tasks run"
            await asyncio.sleep(0.1)

    async def begun(self, count: int, *, timeout: float = 30) -> None:
        """Wait until the code of so many attempts has begun. A task is RUNNING a little earlier, from its claim on."""

        async def seen() -> bool:
            # Only counted, not read: the last line may be half written.
            history = await asyncio.to_thread(self.recorder.path.read_text)
            return history.count('"execution.start"') >= count

        await eventually(seen, timeout=timeout)

    async def drained(self, timeout: float) -> float:
        """Wait until every task is final and its events were heard; return the seconds that took.

        What is not at rest by then is for the checker to tell.
        """
        began = time.monotonic()
        while time.monotonic() - began < timeout:
            if all(self._is_at_rest(document) for document in await self.states()):
                break
            await asyncio.sleep(_LOOK_INTERVAL)
        return time.monotonic() - began

    async def finish(self, *, timeout: float = 60, recovery_limit: float | None = None) -> Report:
        """Let everything come to rest, end the processes in order, and judge.

        Args:
            timeout: seconds that the tasks have to become final.
            recovery_limit: for the checker.
        """
        drained = await self.drained(timeout)
        refused = self.cluster.refused_writes()
        await self.cluster.stop()
        await self._record_queues()
        self.found = await self._ask(self._truth.documents)
        for document in self.found:
            self.recorder.record("document", document=document)
        self.cluster.record_errors()
        report = check(read(self.recorder.path), recovery_limit=recovery_limit)
        self.notes += report.lines()
        self.note(f"duplicates refused: {refused} outcomes of attempts that had lost their lease")
        self.note(f"at rest {drained:.1f} s after the last fault and submission")
        return report

    async def _ask(self, question: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        while True:
            with contextlib.suppress(TruthUnavailable):
                return await asyncio.to_thread(question)
            await asyncio.sleep(_LOOK_INTERVAL)

    def _is_at_rest(self, document: Mapping[str, Any]) -> bool:
        if document["status"] not in FINAL_STATUSES:
            return False
        if any(document.get(name) is not None for name in ("spawn_at", "cascade_at")):
            return False
        if document.get("publish_at") is not None or document["published_sequence"] < document["sequence"]:
            return False
        return self.listener is None or self.listener.heard(document["_id"]) >= document["sequence"]

    async def _watch(self) -> None:
        """Write down each end as soon as it is seen."""
        while True:
            for document in await self.states():
                task_id, generation = document["_id"], document["generation"]
                if document["status"] in FINAL_STATUSES and self._final.get(task_id) != generation:
                    self._final[task_id] = generation
                    seen = {name: document[name] for name in ("status", "generation", "sequence", "result")}
                    self.recorder.record("final", task=task_id, **seen)
            await asyncio.sleep(_LOOK_INTERVAL)

    async def _record_queues(self) -> None:
        """Count what is left in the queues, now that no worker holds anything."""
        if self._amqp_url is None:
            return
        names = [f"tasks.{task_type}.{lane}" for task_type in TASK_TYPES for lane in ("high", "normal", "low")]
        names += ["tasks.dlq", *([f"tasks.events.{QUEUE}"] if self.listener else [])]
        async with await aio_pika.connect(self._amqp_url) as connection:
            for name in names:
                # A missing queue closes the channel; the naive variant has fewer.
                with contextlib.suppress(aio_pika.exceptions.ChannelNotFoundEntity):
                    channel = await connection.channel()
                    queue = await channel.declare_queue(name, passive=True)
                    self.recorder.record("queue", name=name, messages=queue.declaration_result.message_count)
