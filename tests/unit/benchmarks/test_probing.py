"""The probes, on a contender that does everything at once."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.contender import BlockingContender, Contender, outcome
from tests.benchmarks.probing import pace, probe
from tests.benchmarks.results import Outcome, Results


class Memory:
    """Results of tasks that are done when they are submitted."""

    def __init__(self) -> None:
        self.done: dict[str, Outcome] = {}

    def count(self, limit: int) -> int:
        return len(self.done)

    def has_all(self, tasks: int) -> bool:
        return len(self.done) >= tasks

    is_settled = has_all

    def find(self, task_id: str) -> Outcome | None:
        return self.done.get(task_id)

    def all(self) -> Sequence[Outcome]:
        return list(self.done.values())


class Immediate(Contender):
    packages = ()
    settings = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.memory = Memory()

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        return []

    def results(self) -> Results:
        return self.memory

    async def submit(self, number: int) -> str:
        self.memory.done[str(number)] = outcome(number)
        return str(number)


class Blocking(BlockingContender, Immediate):
    def send(self, number: int) -> str:
        self.memory.done[str(number)] = outcome(number)
        return str(number)


async def test_a_probe_measures_each_task() -> None:
    latencies = await probe(Immediate(), range(3), seconds=60)
    assert len(latencies.start) == len(latencies.result) == 3
    assert all(0 <= start <= result for start, result in zip(latencies.start, latencies.result, strict=True))


async def test_a_probe_ends_with_its_time() -> None:
    contender = Immediate()
    await probe(contender, range(10**6), seconds=0.05)
    assert 0 < len(contender.memory.done) < 10**6


async def test_a_stream_submits_every_number_and_no_faster_than_asked() -> None:
    contender = Immediate()
    rate = await pace(contender, range(20), rate=200)
    assert sorted(result["i"] for result in contender.memory.all()) == list(range(20))
    assert rate <= 200 * 20 / 19


async def test_every_way_to_submit_submits_each_number_once() -> None:
    for contender in (Immediate(), Blocking()):
        ways = await contender.submit_single(range(11))
        assert sorted(result["i"] for result in contender.memory.all()) == list(range(11))
        assert all(seconds > 0 for seconds in ways.values())
