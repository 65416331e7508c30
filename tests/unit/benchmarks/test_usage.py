"""What /proc tells of processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.benchmarks.usage import cpu_seconds, memory, tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_children_belong_to_the_tree_and_their_time_is_not_lost_with_them() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    before = cpu_seconds([os.getpid()])
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_seconds([child.pid]) >= 0.18  # counted in ticks of 10 ms
        assert child.pid in list(tree(os.getpid()))
        child.communicate(b"\n")
    assert cpu_seconds([os.getpid()]) - before >= 0.18


def test_memory_is_counted_in_mebibytes() -> None:
    used = memory([os.getpid()])
    assert used["pss"] > 1
    assert 1 < used["rss"] < 10_000


def test_a_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert cpu_seconds([child.pid]) == 0
    assert memory([child.pid]) == {"pss": 0, "rss": 0}
