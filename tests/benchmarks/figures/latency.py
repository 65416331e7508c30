"""Latency: from just before the call that submits to the first line of the task, and to its stored result.

Client and worker share the machine's clock. One worker process runs. First it is idle: one task after the other, some
to see when they start, some to see when the result is there. Then a second client submits at a steady rate, and the
probes go on beside it; a probe that waits does not slow that stream.
"""

from __future__ import annotations

from tests.benchmarks.figures import Samples
from tests.benchmarks.probing import UNDISTURBED
from tests.benchmarks.stage import Program, Stage

_WARM_UP = 200
_PATIENCE = 60.0
#: Seconds for which the steady stream runs before the first probe and after the last.
_MARGIN = 0.5
#: Numbers of the steady stream's tasks begin here, apart from those of the probes.
_STREAM = 1_000_000


def latency(stage: Stage, program: Program, *, probes: int, rate: float, seconds: float) -> Samples:
    """Probe an idle worker, then a loaded one.

    Args:
        stage: running servers.
        program: who.
        probes: how many tasks on the idle worker.
        rate: tasks a second of the load.
        seconds: how long it is probed under load.

    Returns:
        Milliseconds, one value for each probe; `load_rate` is the rate that the stream really had.
    """
    with stage.place() as place, program.client(stage, place) as client, program.client(stage, place) as stream:
        client.ask("open")
        stream.ask("open")
        with program.workers(stage, place, 1) as workers:
            client.ask("submit", first=0, count=_WARM_UP, way="single")
            workers.wait(lambda: client.ask("is_settled", tasks=_WARM_UP), f"{program.name} starts", timeout=_PATIENCE)
            started = client.ask("probe", first=_WARM_UP, count=probes, seconds=_PATIENCE, first_look=UNDISTURBED)
            ended = client.ask("probe", first=_WARM_UP + probes, count=probes, seconds=_PATIENCE)
            whole = int(rate * (seconds + 2 * _MARGIN))
            stream.begin("pace", first=_STREAM, count=whole, rate=rate)
            loaded = client.ask("probe", first=_WARM_UP + 2 * probes, count=whole, seconds=seconds, after=_MARGIN)
            kept = stream.answer()
    return {
        "idle_start": started["start"],
        "idle_result": ended["result"],
        "load_start": loaded["start"],
        "load_result": loaded["result"],
        "load_rate": [kept],
    }
