"""What is kept of a run."""

from __future__ import annotations

from tests.benchmarks.rounds import Collected
from tests.benchmarks.stage import ROOT
from tests.support.process import ServerFailed


def test_samples_are_kept_by_round() -> None:
    collected = Collected()
    collected.add("a", {"drain_1": [1.0]})
    collected.add("a", {"drain_1": [2.0], "drain_2": [3.0]})
    assert collected.samples["a"] == {"drain_1": [[1.0], [2.0]], "drain_2": [[3.0]]}


def test_a_failure_tells_its_reason_and_no_place_on_this_machine() -> None:
    collected = Collected()
    collected.fail("round 1, a, drain 1", ServerFailed(f"Traceback\n  File {ROOT}/x.py\nOSError: no {ROOT}/file"))
    collected.fail("round 1, b, drain 1", KeyError())
    assert collected.failures == ["round 1, a, drain 1: OSError: no file", "round 1, b, drain 1: KeyError"]
