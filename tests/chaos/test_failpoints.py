"""Processes that die, fail, hang or lose a reply at every named point: nothing is lost, nothing is done twice.

Each scenario arms one point in one process of an installation of its own, passes it, shows that the fault happened,
starts what died anew, and judges the whole history. Many run at once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from taskframework.failpoint import POINTS
from tests.chaos.failpoint_processes import Fault
from tests.chaos.failpoint_scenarios import SCENARIOS, Scenario
from tests.chaos.failpoint_stage import Servers, Stage
from tests.support.external import ExternalMongo, ExternalRabbit
from tests.support.forks import Forks
from tests.support.process import ServerFailed

T = TypeVar("T")

#: A process takes most of a second of a processor to start and is idle afterwards; pytest may run three of its own.
_AT_ONCE = 2 * (os.cpu_count() or 2)
_PATIENCE = 300
#: Seconds for a case that is cancelled to end its processes and close its connections.
_CLEANING_UP = 30
_RABBITMQ_URL = os.environ.get("TASKFRAMEWORK_TEST_RABBITMQ_URL")
_MONGODB_URL = os.environ.get("TASKFRAMEWORK_TEST_MONGODB_URL")

pytestmark = pytest.mark.timeout(_PATIENCE)


@dataclass(frozen=True)
class Case:
    """One run of a scenario."""

    scenario: Scenario
    action: str
    driver: str = "motor"

    def __str__(self) -> str:
        driver = "" if self.driver == "motor" else f"-{self.driver}"
        return f"{self.scenario}-{self.action.partition(':')[0]}{driver}"


def _cases(where: str) -> Iterator[Any]:
    """A crash at every point, and every reply lost; the rest takes minutes."""
    for scenario in SCENARIOS:
        if scenario.where not in (where, "both"):
            continue
        usual = "drop" if scenario.point.endswith(".reply") else "kill"
        others = {"kill", "raise", "drop", "pause:3"} - {"raise" if usual == "drop" else "drop", usual}
        cases = [Case(scenario, action) for action in scenario.actions or (usual, *sorted(others))]
        if where == "servers":
            cases.append(Case(scenario, cases[0].action, "pymongo"))
        for case in cases:
            is_long = case.action != usual or case.driver == "pymongo"
            yield pytest.param(case, id=str(case), marks=[pytest.mark.chaos_long] if is_long else [])


@pytest.mark.rabbitmq
@pytest.mark.mongodb
@pytest.mark.parametrize("case", list(_cases("servers")))
def test_no_failpoint_loses_or_repeats_work_on_servers(case: Case, on_servers: Runs) -> None:
    on_servers.wait_for(case)


@pytest.mark.parametrize("case", list(_cases("embedded")))
def test_no_failpoint_loses_or_repeats_work_in_the_embedded_installation(case: Case, embedded: Runs) -> None:
    embedded.wait_for(case)


def test_every_point_has_a_scenario() -> None:
    assert POINTS.keys() == {scenario.point for scenario in SCENARIOS}


class Runs:
    """Runs of cases, one after the other as they are waited for, and the next few at the same time.

    With several processes of pytest each plays what its own tests wait for, and little else.
    """

    def __init__(self, cases: Sequence[Case], begin: Callable[[Case], Future[None]]) -> None:
        self._cases = cases
        self._begin = begin
        self._runs: dict[Case, Future[None]] = {}

    def wait_for(self, case: Case) -> None:
        """Wait until a case is played; what it found wrong is raised."""
        place = self._cases.index(case)
        for near in self._cases[place : place + _AT_ONCE]:
            if near not in self._runs:
                self._runs[near] = self._begin(near)
        self._runs[case].result(_PATIENCE)

    def cancel(self) -> None:
        for run in self._runs.values():
            run.cancel()


async def play(case: Case, folder: Path, forks: Forks, servers: Servers | None) -> None:
    """Play a scenario and judge it."""
    scenario = case.scenario
    fault = Fault(scenario.point, case.action, scenario.role, scenario.is_alone, scenario.also)
    async with Stage(folder, forks, fault, servers, {**scenario.settings, "STORE__DRIVER": case.driver}) as stage:
        story = scenario.story(stage)
        await anext(story)
        await stage.processes.happened()
        await stage.repair()
        async for _ in story:
            raise AssertionError("a story yields once")
        report = await stage.judged()
    assert not report.violations, "\n".join(str(violation)[:500] for violation in report.violations)
    assert set(report.statuses) == {stage.expected}
    assert stage.refused >= stage.refusals
    if fault.verb == "drop":  # what was written counts, though nobody was told
        assert (stage.repeated, stage.refused) == (stage.repeats, 0)
        # Only MongoDB tells then what it did; SQLite says that it does not know, and the repetition finds the task.
        assert report.answers[202] == report.submissions or servers is None


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Starts processes."""
    parent = Forks("tests.chaos.failpoint_tasks")
    yield parent
    parent.close()


@pytest.fixture(scope="module")
def embedded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[Runs]:
    """The chosen cases on the embedded broker and SQLite, under way."""
    folder = tmp_path_factory.mktemp("embedded")
    with _under_way(request, "embedded", lambda case: play(case, folder / str(case), forks, None)) as runs:
        yield runs


@pytest.fixture(scope="module")
def on_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> Iterator[Runs]:
    """The chosen cases on RabbitMQ and MongoDB, under way."""
    rabbit = ExternalRabbit(_RABBITMQ_URL) if _RABBITMQ_URL else request.getfixturevalue("rabbit_server")
    mongo = ExternalMongo(_MONGODB_URL) if _MONGODB_URL else request.getfixturevalue("mongo_server")
    rabbit.ensure_running()
    mongo.ensure_running()
    folder = tmp_path_factory.mktemp("servers")

    one_call = asyncio.Lock()

    async def play_there(case: Case) -> None:
        async with one_call:
            vhost = await _told(rabbit.new_vhost)
        database = f"test_{secrets.token_hex(6)}"
        try:
            await play(case, folder / str(case), forks, Servers(rabbit.url_of(vhost), mongo.url_of(database)))
        finally:
            async with one_call:
                await _told(lambda: rabbit.delete_vhost(vhost))
            await asyncio.to_thread(mongo.drop_database, database)

    with _under_way(request, "on_servers", play_there) as runs:
        yield runs


@contextmanager
def _under_way(
    request: pytest.FixtureRequest, name: str, play_case: Callable[[Case], Coroutine[Any, Any, None]]
) -> Iterator[Runs]:
    """Play the cases of the tests that were chosen, in the order of the tests."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    ours = [item for item in functions if item.module is request.module and name in item.fixturenames]
    cases = [cast(Case, item.callspec.params["case"]) for item in ours]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=f"failpoints {name}")
    thread.start()
    runs = Runs(cases, lambda case: asyncio.run_coroutine_threadsafe(play_case(case), loop))
    try:
        yield runs
    finally:
        runs.cancel()
        asyncio.run_coroutine_threadsafe(_ended(), loop).result(_PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _told(call: Callable[[], T]) -> T:
    """Tell RabbitMQ something. Its tool goes by one name, and is refused while another one is there or just left."""
    for _ in range(5):
        with suppress(ServerFailed):
            return await asyncio.to_thread(call)
        await asyncio.sleep(0.5)
    return await asyncio.to_thread(call)


async def _ended() -> None:
    """Wait until the cases that were cancelled have cleaned up.

    One that was cancelled in the middle of opening a connection leaves a task behind that would connect for ever.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, left = await asyncio.wait(others, timeout=_CLEANING_UP)
        for task in left:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
