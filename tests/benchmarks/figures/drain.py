"""Submit rate and drain rate: tasks are submitted while no worker runs, then workers start and do them all.

The drain is timed from the moment 10 % have a result, so that the start of the processes does not count, to the last
result. The CPU time counts on until nothing is left to do: where there are events, until every event is published and
marked as such.
"""

from __future__ import annotations

import time

from tests.benchmarks.figures import Samples
from tests.benchmarks.stage import Client, Program, Stage, Workers
from tests.benchmarks.usage import cpu_seconds, memory
from tests.support.process import ServerFailed

_SKIPPED = 0.1
_PATIENCE = 180.0
#: Connections, caches and lazily made objects of a client come into being with its first calls.
_WARM_UP = 200
_MICRO = 1e6


def drain(stage: Stage, program: Program, *, tasks: int, processes: int) -> Samples:
    """Submit tasks and have them done; with one process they are submitted one by one, with two in bulk.

    Args:
        stage: running servers.
        program: who.
        tasks: how many are submitted and counted.
        processes: workers.

    Returns:
        Rates in tasks a second, CPU in microseconds a task, memory in MiB.

    Raises:
        ServerFailed: A result is missing or there twice, or the contender's program died.
    """
    way = "bulk" if processes > 1 and program.description["bulk"] else "single"
    with stage.place() as place, program.client(stage, place) as client:
        client.ask("open")
        client.ask("submit", first=0, count=_WARM_UP, way="single")
        submitted = client.ask("submit", first=_WARM_UP, count=tasks, way=way)
        client.ask("close")
        whole = _WARM_UP + tasks
        with program.workers(stage, place, processes) as workers:
            drained = _timed(stage, program, client, workers, whole)
            used = memory(workers.pids)
        if sorted(client.ask("numbers")) != list(range(whole)):
            raise ServerFailed(f"{program.name}: not every task has exactly one result")
    samples = {f"{name}_{processes}": value for name, value in drained.items()}
    samples |= {f"submit_{way}": submitted["rate"], f"submit_{way}_cpu": submitted["cpu"] * _MICRO}
    if way == "bulk":
        samples["submit_bulk_accepted"] = submitted["ways"]["accepted"]
    samples |= {f"memory_{name}_{processes}": value for name, value in used.items()}
    return {name: [value] for name, value in samples.items()}


def _timed(stage: Stage, program: Program, client: Client, workers: Workers, tasks: int) -> dict[str, float]:
    servers = stage.server_pids(on_redis=program.on_redis)
    skipped = int(tasks * _SKIPPED)
    workers.wait(lambda: client.ask("count", limit=skipped) >= skipped, f"{program.name} begins", timeout=_PATIENCE)
    done, start = client.ask("count", limit=tasks), time.perf_counter()
    before, servers_before = cpu_seconds(workers.pids), {name: cpu_seconds([pid]) for name, pid in servers.items()}
    workers.wait(lambda: client.ask("has_all", tasks=tasks), f"{program.name} finishes", timeout=_PATIENCE)
    seconds, counted = time.perf_counter() - start, tasks - done
    workers.wait(lambda: client.ask("is_settled", tasks=tasks), f"{program.name} settles", timeout=_PATIENCE)
    return {
        "drain": counted / seconds,
        "cpu": (cpu_seconds(workers.pids) - before) / counted * _MICRO,
        **{
            f"cpu_{name}": (cpu_seconds([pid]) - servers_before[name]) / counted * _MICRO
            for name, pid in servers.items()
        },
    }
