"""Ordered streams on both installations: tasks in order through failures, retries and replays, and results in order."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    ExternalEvent,
    Priority,
    RetryableError,
    StreamResult,
    SubmitRequest,
    Task,
    TaskContext,
    TaskFramework,
    TaskStatus,
    failpoint,
)
from taskframework.events.subscriber import EventSubscriber
from taskframework.model.message import TaskMessage
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

KEYS, EACH = 8, 12
#: A busy machine must end all that answer within this time of the first one.
GAP = "5s"


class Step(BaseModel):
    """One task of a key: how many of its attempts fail, and whether it fails for good."""

    key: str
    number: int
    fails: int = 0
    is_broken: bool = False


class Walks(BackgroundTaskExecutable[Step, int]):
    task_type = "walks"
    #: Which numbers ran, by key; a number stands there once an attempt.
    begun: ClassVar[defaultdict[str, list[int]]]
    inside: ClassVar[defaultdict[str, int]]
    most: ClassVar[int]

    async def execute(self, context: TaskContext[Step]) -> int:
        step = context.parameters
        self.begun[step.key].append(step.number)
        self.inside[step.key] += 1
        type(self).most = max(self.most, self.inside[step.key])
        await asyncio.sleep(0.001)
        self.inside[step.key] -= 1
        if step.is_broken:
            raise ValueError("broken")
        if context.attempt <= step.fails:
            raise RetryableError("again", delay=timedelta(milliseconds=20))
        return step.number


class Holds(BackgroundTaskExecutable[int, int]):
    """Ends when it may, by its number."""

    task_type = "holds"
    gates: ClassVar[defaultdict[int, asyncio.Event]]

    async def execute(self, context: TaskContext[int]) -> int:
        await self.gates[context.parameters].wait()
        return context.parameters


@pytest.fixture(autouse=True)
def _afresh() -> None:
    Walks.begun, Walks.inside, Walks.most = defaultdict(list), defaultdict(int), 0
    Holds.gates = defaultdict(asyncio.Event)


def request(step: Step, **stream: Any) -> SubmitRequest:
    place: Any = {"key": step.key, **stream}
    return SubmitRequest(task_type="walks", parameters=step, stream=place)


async def submitted(framework: TaskFramework, requests: Sequence[SubmitRequest]) -> list[str]:
    """The ids of the tasks."""
    outcomes = await framework.submit_many(requests)
    return [outcome.task_id for outcome in outcomes if not isinstance(outcome, Exception)]


def messages_of(framework: TaskFramework) -> list[str]:
    """The tasks whose messages are published from now on, a task once for each message."""
    broker, sent = framework.process.broker, list[str]()
    publish = broker.publish

    async def note(message: TaskMessage, *, delay: timedelta | None = None) -> None:
        sent.append(message.task_id)
        await publish(message, delay=delay)

    broker.publish = note  # type: ignore[method-assign]
    return sent


async def over(framework: TaskFramework, count: int) -> None:
    async def are() -> bool:
        found = await framework.services.store.count_by_status()
        return sum(number for status, number in found.items() if status.is_final) == count

    await eventually(are, timeout=60)


async def test_each_stream_keeps_its_order_through_failures_and_retries(run: Run) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    steps = [
        Step(key=f"key-{key}", number=number, fails=chance.choice([0, 0, 1, 2]), is_broken=chance.random() < 0.1)
        for number in range(EACH)
        for key in range(KEYS)
    ]
    async with run(extra=[Walks]) as framework:
        # Some in bulk and some alone, so that keys are submitted to while they run.
        half = len(steps) // 2
        await framework.submit_many([request(step) for step in steps[:half]])
        for step in steps[half:]:
            await framework.submit_many([request(step)])
        await over(framework, len(steps))
        assert await framework.services.store.undriven(10) == []
    assert Walks.most == 1, f"seed {seed}"
    for key, begun in Walks.begun.items():
        runs = [(number, len(list(attempts))) for number, attempts in itertools.groupby(begun)]
        expected = [(step.number, 1 if step.is_broken else 1 + step.fails) for step in steps if step.key == key]
        assert runs == expected, f"{key}, seed {seed}"


async def test_the_worker_that_passes_a_turn_on_starts_the_next_task_without_a_message(run: Run) -> None:
    async with run(extra=[Walks]) as framework:
        sent = messages_of(framework)
        steps = [Step(key="key", number=number) for number in range(EACH)]
        tasks = await submitted(framework, [request(step) for step in steps])
        await over(framework, EACH)
        assert sent == [tasks[0], tasks[10]], "one of ten is given to whichever worker"
        ended = await framework.services.store.get(tasks[1], EVERYONE)
        assert ended is not None
        assert [entry.type for entry in ended.history] == ["submitted", "unblocked", "started", "completed"]
    assert Walks.begun["key"] == list(range(EACH))


async def test_a_next_task_of_another_kind_goes_by_a_message(run: Run) -> None:
    async with run(extra=[Walks, Holds]) as framework:
        sent = messages_of(framework)
        Holds.gates[1].set()
        tasks = await submitted(
            framework,
            [
                request(Step(key="key", number=0)),
                SubmitRequest(task_type="holds", parameters=1, stream={"key": "key"}),
                SubmitRequest(task_type="holds", parameters=1, stream={"key": "key"}, priority="high"),
                SubmitRequest(
                    task_type="holds",
                    parameters=1,
                    stream={"key": "key"},
                    priority="high",
                    unique={"key": "v", "version": 1},
                ),
            ],
        )
        await over(framework, 4)
        assert sent == tasks


async def test_a_stream_goes_on_while_no_event_can_be_published(run: Run) -> None:
    async def fail() -> None:
        raise RuntimeError("nobody hears events")

    failpoint.arm("relay.before_publish", fail)
    try:
        async with run(extra=[Walks]) as framework:
            await framework.submit_many([request(Step(key="k", number=number)) for number in range(8)])
            # A repair would let one go after 5 seconds, 10, 20 and so on.
            await over(framework, 8)
            failpoint.disarm("relay.before_publish")
    finally:
        failpoint.disarm("relay.before_publish")
    assert Walks.begun["k"] == list(range(8))


async def test_a_halted_stream_waits_for_an_operator_and_a_replay_comes_first(run: Run) -> None:
    async with run(extra=[Walks]) as framework:
        broken, *others = [Step(key="k", number=number, is_broken=number == 0) for number in range(3)]
        handles = await framework.submit_many([request(broken, on_failure="halt"), *(request(step) for step in others)])
        stream = framework.stream("k")

        async def is_halted() -> bool:
            return (await stream.status()).stream.is_halted

        await eventually(is_halted, timeout=20)
        assert (await stream.status()).view()["waiting"] == 2
        await framework.services.counter.refresh()
        assert "halted" in {problem.code for problem in (await framework.services.overview.read()).problems()}
        assert "tasks_halted_streams 1.0" in framework.process.metrics.exposition().decode().splitlines()
        assert not isinstance(handles[0], Exception)
        await framework.services.tasks.retry(handles[0].task_id, EVERYONE, by="operator")
        await eventually(lambda: len(Walks.begun["k"]) == 2, timeout=20)
        await eventually(is_halted, timeout=20)
        await stream.go_on(position=0)
        await over(framework, 3)
    assert Walks.begun["k"] == [0, 0, 1, 2]


async def test_a_passed_deadline_lets_a_stream_continue_and_subscribers_hear_of_it(run: Run) -> None:
    heard: list[ExternalEvent] = []
    async with run(extra=[Walks, Holds]) as framework, EventSubscriber(framework.process.broker) as subscriber:
        subscriber.on()(heard.append)
        await subscriber.listening(20)
        first = await framework.submit("holds", 0, stream={"key": "k"})
        now = framework.services.store.now()
        late = await framework.submit(
            "walks", Step(key="k", number=1), stream={"key": "k"}, deadline=now + timedelta(seconds=1)
        )
        third = await framework.submit("walks", Step(key="k", number=2), stream={"key": "k"})

        def told() -> list[str]:
            return [event.type for event in heard if event.task_id == late.task_id]

        await eventually(lambda: "task.failed" in told(), timeout=20)
        assert told() == ["task.submitted", "task.skipped", "task.failed"]
        assert (await third.task()).status is TaskStatus.BLOCKED
        Holds.gates[0].set()
        assert await third.result(timeout=60) == 2
        assert await first.result(timeout=60) == 0
    assert Walks.begun["k"] == [2]


async def test_every_reader_gets_every_result_in_order_and_each_gap_once(run: Run) -> None:
    """Of 60 two never answer; readers begin at different times and places and see the same."""
    silent = {7, 31}
    async with run(extra=[Holds], streams={"gap": GAP}) as framework:
        requests = [
            SubmitRequest(task_type="holds", parameters=number, stream={"key": "o", "mode": "ordered_results"})
            for number in range(60)
        ]
        await framework.submit_many(requests)
        early = [asyncio.create_task(_results(framework, first)) for first in (0, 0, 20)]
        for number in random.sample(range(60), 60):
            if number not in silent:
                Holds.gates[number].set()
        seen = await asyncio.gather(*early, _results(framework, 0))
        for number in silent:
            Holds.gates[number].set()
        await over(framework, 60)
        again = await _results(framework, 0)
        histories = [task.history for task in await _tasks(framework)]
    expected = [(at, "SKIPPED" if at in silent else "COMPLETED", None if at in silent else at) for at in range(60)]
    for first, results in zip((0, 0, 20, 0, 0), (*seen, again), strict=True):
        assert [(result.position, result.status, result.result) for result in results] == expected[first:]
    assert [entry.type for history in histories for entry in history].count("skipped") == len(silent)


async def _results(framework: TaskFramework, first: int) -> list[StreamResult]:
    found = []
    async for result in framework.stream("o").results(first=first):
        found.append(result)
        if result.position == 59:
            break
    return found


async def _tasks(framework: TaskFramework) -> list[Task]:
    return list((await framework.services.store.list_tasks(EVERYONE, TaskFilter(stream="o"), limit=100)).items)


async def test_keys_at_rest_cost_a_record_and_nothing_else(run: Run) -> None:
    """What 500 keys leave behind: no queue, no live task, no timer that looks for them."""
    async with run(extra=[Walks]) as framework:
        await framework.submit_many([request(Step(key=f"key-{number}", number=0)) for number in range(500)])
        await over(framework, 500)
        store = framework.services.store
        assert len(await store.list_records("stream", limit=1_000)) == 500
        assert await store.expired_records(1_000) == []
        assert (await store.count_by_status())[TaskStatus.COMPLETED] == 500
        assert not await framework.process.broker.queue_depth("walks", Priority.NORMAL)
