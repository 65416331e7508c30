"""The run: every contender's trials, interleaved round by round, so that a slow minute hits all of them."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from tests.benchmarks.figures import Samples
from tests.benchmarks.figures.database import two_writes
from tests.benchmarks.figures.drain import drain
from tests.benchmarks.figures.embedded import embedded
from tests.benchmarks.figures.latency import latency
from tests.benchmarks.figures.starting import starting
from tests.benchmarks.stage import ROOT, Program, Stage

FIGURES = ("drain", "latency", "embedded", "starting")
#: Under which name samples are kept that are nobody's: of the database alone, of the embedded default, of starts.
ALONE = "alone"
#: Load for latencies: half of the contender's own drain rate with one worker process, but no more than a client in
#: Python keeps up beside everything else on two cores; the second number is for a run that does not measure drains.
_MOST_LOAD = 1_000.0
_UNKNOWN_LOAD = 200.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done."""

    contenders: Sequence[str]
    figures: Sequence[str]
    rounds: int
    tasks: int
    probes: int
    load_seconds: float


@dataclass(slots=True)
class Collected:
    """Samples by contender and name, a list for each round; and what went wrong."""

    samples: dict[str, dict[str, list[Sequence[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    failures: list[str] = field(default_factory=list)

    def add(self, contender: str, samples: Samples) -> None:
        for name, values in samples.items():
            self.samples[contender][name].append(values)

    def fail(self, trial: str, error: Exception) -> None:
        """Note what failed; the last line says why, the others name places on this machine."""
        reason = (str(error).splitlines() or [type(error).__name__])[-1]
        self.failures.append(f"{trial}: {reason.replace(f'{ROOT}/', '')}")


@dataclass(frozen=True, slots=True)
class _Trial:
    contender: str
    what: str
    run: Callable[[], Samples]


def run(plan: Plan, stage: Stage, programs: Sequence[Program]) -> Collected:
    """Do what the plan says and tell about it on standard error. A trial that fails is reported and left out."""
    collected = Collected()
    trials_in_all = plan.rounds * len(list(_trials(plan, stage, programs, collected)))
    done, start = 0, time.monotonic()
    for number in range(1, plan.rounds + 1):
        at = number % len(programs)  # somebody else begins each time
        for trial in _trials(plan, stage, [*programs[at:], *programs[:at]], collected):
            done += 1
            before = time.monotonic()
            try:
                samples = trial.run()
                collected.add(trial.contender, samples)
                outcome = _told(samples)
            except Exception as error:  # whatever it is, the other trials are worth having
                collected.fail(f"round {number}, {trial.contender}, {trial.what}", error)
                outcome = f"failed: {error}"
            seconds = time.monotonic() - before
            place = f"[{done}/{trials_in_all}, {time.monotonic() - start:4.0f} s] round {number}"
            print(f"{place}  {trial.contender:14}{trial.what:9}{outcome}  ({seconds:.1f} s)", file=sys.stderr)
    return collected


def _trials(plan: Plan, stage: Stage, programs: Sequence[Program], collected: Collected) -> Iterator[_Trial]:
    """The trials of one round."""
    if "drain" in plan.figures:
        for processes, program in product((1, 2), programs):
            yield _Trial(program.name, f"drain {processes}", partial(_drain, plan, stage, program, processes))
    if "latency" in plan.figures:
        for program in programs:
            yield _Trial(program.name, "latency", partial(_latency, plan, stage, program, collected))
        yield _Trial(ALONE, "writes", partial(two_writes, stage, pairs=plan.probes))
    if "embedded" in plan.figures:
        yield _Trial(ALONE, "embedded", partial(embedded, tasks=plan.tasks))
    if "starting" in plan.figures:
        yield _Trial(ALONE, "starting", starting)


def _drain(plan: Plan, stage: Stage, program: Program, processes: int) -> Samples:
    return drain(stage, program, tasks=program.tasks(plan.tasks), processes=processes)


def _latency(plan: Plan, stage: Stage, program: Program, collected: Collected) -> Samples:
    drained = [rate for [rate] in collected.samples[program.name]["drain_1"]]
    rate = min(_MOST_LOAD, statistics.median(drained) / 2) if drained else _UNKNOWN_LOAD
    return latency(stage, program, probes=plan.probes, rate=rate, seconds=plan.load_seconds)


def _told(samples: Samples) -> str:
    """The few numbers of a trial that a waiting person wants to see."""
    shown = {
        "submit_single": "submit {:,.0f}/s",
        "submit_bulk": "submit {:,.0f}/s",
        "drain_1": "drain {:,.0f}/s",
        "drain_2": "drain {:,.0f}/s",
        "idle_start": "start {:.1f} ms",
        "idle_result": "result {:.1f} ms",
        "load_rate": "load {:,.0f}/s",
        "load_start": "start {:.1f} ms",
        "write_both": "insert and claim {:.1f} ms",
        "embedded": "{:,.0f}/s",
        "start_import": "import {:.0f} ms",
        "start_help": "help {:.0f} ms",
    }
    return "  ".join(form.format(statistics.median(samples[name])) for name, form in shown.items() if name in samples)
