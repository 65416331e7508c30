"""The protocol as Spin models: every schedule of a small world is looked at, and each rule that is left out shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import _unavailable

_MODELS = Path(__file__).parent
_ASSERTION = "assertion violated"
_STUCK = "acceptance cycle"
#: `make chaos` runs these, which take longest. `make test` has every mutant and a run of each model that takes seconds:
#: no code of the framework is in a model, so only a change of a model can make one fail.
_LONG = [pytest.mark.chaos_long]

pytestmark = pytest.mark.timeout(900)  # a few seconds alone; millions of states take their time on a crowded machine


@dataclass(frozen=True)
class Run:
    """One verification: of the assertions, or of a liveness property under weak fairness."""

    model: str
    flags: str = ""
    liveness: str | None = None
    #: What Spin finds in a mutant; None where the protocol must hold.
    finds: str | None = None
    marks: list[pytest.MarkDecorator] = field(default_factory=list)

    def __str__(self) -> str:
        words = [self.model, *self.flags.replace("-D", "").split(), self.liveness or "safety"]
        return "-".join(words)


def _mutants(model: str, flags: list[str], *, liveness: str | None = None) -> list[Run]:
    finds = _ASSERTION if liveness is None else _STUCK
    return [Run(model, one, liveness, finds) for one in flags]


#: The cheap ones first.
RUNS = [
    *_mutants("fanin", ["-DINCREMENT", "-DUNGUARDED", "-DCOUNTSPLANNED"]),
    *_mutants("fanin", ["-DEVENTONLY", "-DCLEARFIRST"], liveness="finished"),
    *_mutants("parent_reports", ["-DREPLAYS=0 -DNOGUARD", "-DNOSERIAL"]),
    *_mutants("parent_reports", ["-DCRASHES=0 -DNONUMBER", "-DCRASHES=0 -DREPLAYS=0 -DCLEARALL"], liveness="ended"),
    *_mutants("parent_reports", ["-DREPLAYS=0 -DCLEARFIRST", "-DREPLAYS=0 -DEVENTONLY"], liveness="ended"),
    *_mutants("batch_seal", ["-DOWNBATCH", "-DNOANNOUNCE", "-DANNOUNCEANY", "-DSEALANY", "-DSEALOVER", "-DABANDONANY"]),
    *_mutants("batch_seal", ["-DFAULTS=0 -DCANCEL -DENDANY"]),
    *_mutants("batch_seal", ["-DNOABANDON", "-DFAULTS=0 -DKEEPSERIAL"], liveness="ended"),
    *_mutants("batch_seal", ["-DONELOOK", "-DNOALARM"], liveness="cleared"),
    *_mutants(
        "versions",
        [
            "-DAGAIN -DENDS=0 -DNOFINISH",
            "-DRECORDFIRST",
            "-DBLIND",
            "-DNOADMISSION",
            "-DNOADOPT",
            "-DTHREE -DCRASHES=0 -DONERUN",
        ],
    ),
    *_mutants("debounce", ["-DBLIND", "-DBLINDRECORD", "-DOVERWRITE", "-DREUSE", "-DGIVEUP", "-DOPENANY"]),
    *_mutants("slots", ["-DNOUNTIL", "-DNOGRACE", "-DNOLOOK", "-DRELEASEFIRST", "-DPULLBYTASK"]),
    *_mutants("slots", ["-DCRASHES=0 -DLOSSES=0 -DUNSURE=0 -DPULLANEW"]),
    *_mutants("slots", ["-DCRASHES=0 -DLOSSES=0 -DRENEWALS=0 -DGIVEBACKUNSURE"]),
    *_mutants("slots", ["-DLIVENESS -DUNSURE=0 -DNORECONCILE", "-DLIVENESS -DUNSURE=0 -DNODUE"], liveness="ended"),
    *_mutants("stream_turns", ["-DBLIND", "-DANYGENERATION", "-DLETANYGO", "-DDIRECT", "-DHALTS -DHALTANY"]),
    *_mutants("stream_turns", ["-DLIVENESS -DNOSWEEP"], liveness="ended"),
    *_mutants("outbox", ["-DNEWESTONLY", "-DPIPELINE", "-DMARKFIRST", "-DMARKBACK", "-DMARKDONE"]),
    *_mutants("outbox", ["-DMARKFIRST", "-DEVENTAFTER"], liveness="delivered"),
    *_mutants("task", ["-DNOFENCE", "-DNOEPOCH", "-DNODUE", "-DREAPERFORGETS"]),
    *_mutants("task", ["-DCANCEL -DRELEASE -DRELEASEFORGETS", "-DREPLAY -DRESETTOKEN"]),
    *_mutants("task", ["-DNAIVE", "-DNOSWEEP", "-DNOREAP", "-DLOSSES=0 -DBYREDELIVERY"], liveness="live"),
    Run("fanin"),
    Run("fanin", liveness="finished"),
    Run("parent_reports", "-DREPLAYS=0"),
    Run("parent_reports", "-DREPLAYS=0", "ended"),
    Run("parent_reports", "-DCRASHES=0 -DREPLAYS=0", "reported"),
    Run("batch_seal", "-DFAULTS=0", "ended"),
    Run("versions"),
    Run("versions", "-DAGAIN -DENDS=0"),
    Run("debounce"),
    Run("slots", "-DCRASHES=0 -DLOSSES=0 -DRENEWALS=0"),
    Run("slots", "-DLIVENESS -DCRASHES=0 -DLOSSES=0 -DRENEWALS=0", "ended"),
    Run("stream_turns", "-DREPLAYS=0"),
    Run("stream_turns", "-DLIVENESS -DCRASHES=0 -DREPLAYS=0", "ended"),
    Run("outbox"),
    Run("outbox", liveness="delivered"),
    Run("task", liveness="stable"),
    Run("task", "-DREPLAY -DFAULTS=0"),
    Run("task", "-DCANCEL -DRELEASE -DMAX_ATTEMPTS=1", "live"),
    Run("task", "-DREPLAY -DFAULTS=0 -DMAX_ATTEMPTS=1", "live"),
    Run("batch_seal", "-DFAULTS=0", "cleared", marks=_LONG),
    Run("versions", "-DREPLAY", marks=_LONG),
    Run("versions", liveness="settled", marks=_LONG),
    Run("debounce", "-DCRASHES=0", "begun", marks=_LONG),
    Run("batch_seal", marks=_LONG),
    Run("parent_reports", "-DCRASHES=0", marks=_LONG),
    Run("parent_reports", "-DCRASHES=0", "ended", marks=_LONG),
    Run("slots", "-DLOSSES=0 -DRENEWALS=0 -DUNSURE=0", marks=_LONG),
    Run("slots", "-DCRASHES=0 -DLOSSES=0 -DUNSURE=0", marks=_LONG),
    Run("task", "-DFAULTS=2", marks=_LONG),
    Run("task", "-DCANCEL -DRELEASE", marks=_LONG),
    Run("task", "-DMAX_ATTEMPTS=3", marks=_LONG),
    Run("task", liveness="live", marks=_LONG),
    Run("parent_reports", marks=_LONG),
    Run("parent_reports", "-DREPLAYS=0", "reported", marks=_LONG),
    Run("parent_reports", liveness="ended", marks=_LONG),
    Run("batch_seal", "-DCANCEL", marks=_LONG),
    Run("batch_seal", liveness="ended", marks=_LONG),
    Run("batch_seal", liveness="cleared", marks=_LONG),
    Run("versions", "-DTHREE", marks=_LONG),
    Run("versions", "-DHIGHER -DENDS=0", marks=_LONG),
    Run("slots", "-DRENEWALS=0 -DUNSURE=0", marks=_LONG),
    Run("slots", "-DCRASHES=0 -DUNSURE=0", marks=_LONG),
    Run("slots", "-DCRASHES=0 -DRENEWALS=0", marks=_LONG),
    Run("slots", "-DLIVENESS -DCRASHES=0 -DRENEWALS=0 -DUNSURE=0", "ended", marks=_LONG),
    Run("slots", "-DLIVENESS -DLOSSES=0 -DRENEWALS=0 -DUNSURE=0", "ended", marks=_LONG),
    Run("slots", "-DLIVENESS -DCRASHES=0 -DLOSSES=0 -DUNSURE=0", "ended", marks=_LONG),
    Run("stream_turns", "-DCRASHES=0", marks=_LONG),
    Run("stream_turns", "-DHALTS -DCRASHES=0", marks=_LONG),
    Run("task", "-DREPLAY", marks=_LONG),
    Run("task", "-DREPLAY -DFAULTS=0", "live", marks=_LONG),
    Run("task", "-DCANCEL -DRELEASE", "live", marks=_LONG),
    Run("task", "-DCANCEL -DRELEASE -DFAULTS=2", marks=_LONG),
    Run("task", "-DFAULTS=2", "live", marks=_LONG),
]


@pytest.fixture(scope="session")
def _spin() -> None:
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            _unavailable(f"{program} is not on this machine: install the packages spin and gcc (`make servers` does)")


@pytest.mark.usefixtures("_spin")
@pytest.mark.parametrize("run", [pytest.param(run, id=str(run), marks=run.marks) for run in RUNS])
def test_the_protocol_holds_and_no_mutant_does(run: Run, tmp_path: Path) -> None:
    report = _verify(run, tmp_path)
    [errors] = map(int, re.findall(r"errors: (\d+)", report))
    if run.finds is None:
        assert errors == 0, report
        assert "Search not completed" not in report
        assert "max search depth too small" not in report
    else:
        assert errors > 0, f"the mutant {run} goes unnoticed\n{report}"
        assert run.finds in report, report


def test_every_variant_of_a_model_is_run() -> None:
    models = (
        "task",
        "outbox",
        "fanin",
        "parent_reports",
        "batch_seal",
        "versions",
        "debounce",
        "slots",
        "stream_turns",
    )
    for model in models:
        variants = set(re.findall(r"#ifn?def (\w+)", (_MODELS / f"{model}.pml").read_text()))
        assert variants == {flag for run in RUNS if run.model == model for flag in re.findall(r"-D(\w+)", run.flags)}


def _verify(run: Run, folder: Path) -> str:
    """Make Spin's verifier of a model in an empty folder, run it, and return what it says."""
    _call(["spin", "-a", *run.flags.split(), str(_MODELS / f"{run.model}.pml")], folder)
    kind = ["-DSAFETY", "-DNOCLAIM"] if run.liveness is None else ["-DNFAIR=5"]  # room for the fairness of 38 processes
    effort = "-O0" if run.finds else "-O1"  # a mutant is found sooner than it is compiled
    _call(["gcc", effort, "-w", *kind, "-o", "pan", "pan.c"], folder)
    liveness = [] if run.liveness is None else ["-a", "-f", "-N", run.liveness]
    room = ["-w20"] if run.finds else []  # clearing the usual hash table takes longer than to find a mutant
    return _call(["./pan", "-E", "-n", "-m1000000", *room, *liveness], folder)


def _call(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    said = done.stdout + done.stderr
    # Spin tells of a syntax error by its text alone.
    assert done.returncode == 0 and "Error" not in said, f"{' '.join(command)}\n{said}"  # noqa: PT018
    return said
