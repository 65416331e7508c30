"""Workers whose clock is wrong: only the store's clock decides leases and due times."""

from __future__ import annotations

import shutil
import subprocess
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import schedule
from tests.chaos.scenario import INNOCENT

HOUR = 3600


@pytest.mark.chaos_long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("offset", [HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
async def test_the_clock_of_a_worker_is_wrong(on_servers: MakeScenario, tmp_path: Path, seed: int, offset: int) -> None:
    library = wrong_clock(tmp_path, offset)
    async with on_servers(**INNOCENT) as scenario:
        scenario.cluster.add_api()
        wrong = scenario.cluster.add_worker(environment={"LD_PRELOAD": str(library)})
        right = scenario.cluster.add_worker()
        await scenario.cluster.ready()
        assert abs(await clock_of(wrong.address) - await clock_of(right.address) - offset) < 60
        async with scenario.submitting(schedule(seed, 300, 15)):
            for victim in (right, wrong, right):
                await scenario.running(2, worker_pid=victim.pid)
                victim.kill()
                victim.start()
                await victim.ready()
        report = await scenario.finish(recovery_limit=12)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 300}


def wrong_clock(folder: Path, offset: int) -> Path:
    """A library that makes the time of day wrong in a process that is started with it.

    (A name space of time would not do: it moves every clock but this one.)
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("without a C compiler no process can be given a wrong clock: install gcc")
    library = folder / "clock_offset.so"
    source = Path(__file__).with_name("clock_offset.c")
    command = [compiler, "-shared", "-fPIC", "-O1", f"-DOFFSET=({offset})", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library


async def clock_of(address: str) -> float:
    """What a process takes for the time of day, in seconds since 1970."""
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{address}/healthz")
    return parsedate_to_datetime(answer.headers["Date"]).timestamp()
