"""What every chaos scenario gets: a seed, private servers, and a place in the report at the end of the run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.chaos.scenario import Scenario
from tests.chaos.summary import SUMMARY
from tests.chaos.truth import MongoTruth, SqliteTruth
from tests.support.servers import MongoServer, RabbitServer

#: Short, so that a recovery does not take longer than a test.
LEASE = "2s"

MakeScenario = Callable[..., Scenario]


@pytest.fixture
def seed() -> int:
    """Where all chance comes from; set CHAOS_SEED to repeat a run."""
    return int(os.environ.get("CHAOS_SEED") or secrets.randbelow(2**32))


@pytest.fixture
def reported(request: pytest.FixtureRequest, seed: int) -> list[str]:
    """Lines that are shown at the end of the run, however the test ends."""
    lines = [f"seed: {seed}"]
    request.node.user_properties.append((SUMMARY, lines))
    return lines


@pytest.fixture
def on_servers(
    rabbit_server: RabbitServer,
    mongo_server: MongoServer,
    amqp_url: str,
    mongo_url: str,
    tmp_path: Path,
    seed: int,
    reported: list[str],
) -> MakeScenario:
    """Makes a scenario on RabbitMQ and MongoDB; keyword arguments are settings, such as `WORKER__LEASE="5s"`.

    CHAOS_FAST_PATH=off runs all of them with the plain driver.
    """
    usual = {"BROKER__URL": amqp_url, "BROKER__FAST_PATH": os.environ.get("CHAOS_FAST_PATH") or "auto"}

    def make(*, listens: bool = True, store_url: str = mongo_url, **settings: str) -> Scenario:
        chosen = {**usual, "STORE__URL": store_url, "WORKER__LEASE": LEASE, **settings}
        truth = MongoTruth(store_url)
        return _noted(Scenario(tmp_path, seed, truth, chosen, amqp_url=amqp_url, listens=listens), reported)

    return make


@pytest.fixture
def embedded(tmp_path: Path, seed: int, reported: list[str]) -> MakeScenario:
    """Makes a scenario of one process on the embedded broker and SQLite."""

    def make(**settings: str) -> Scenario:
        chosen: Mapping[str, str] = {"WORKER__LEASE": LEASE, **settings}
        return _noted(Scenario(tmp_path, seed, SqliteTruth(tmp_path / "taskframework.db"), chosen), reported)

    return make


def _noted(scenario: Scenario, lines: list[str]) -> Scenario:
    scenario.notes = lines
    return scenario
