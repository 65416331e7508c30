"""The units: systemd takes them, they fit the settings, and they leave a service little to do harm with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskframework.settings import Settings
from tests.support.pages import ROOT

UNITS = ROOT / "config" / "systemd"
API, WORKER = UNITS / "taskframework-api.service", UNITS / "taskframework-worker@.service"
_MARGIN = 15
#: Of ten; a service without any protection has 9.6.
_MOST_EXPOSED = 2.0


def value_of(unit: Path, key: str) -> str:
    [value] = re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)
    return str(value)


@pytest.mark.parametrize("unit", [API, WORKER], ids=lambda unit: unit.stem)
def test_a_stop_gets_the_time_that_the_settings_promise(unit: Path) -> None:
    grace = Settings().shutdown.await_termination_timeout.total_seconds()
    assert int(value_of(unit, "TimeoutStopSec")) >= grace + _MARGIN
    assert value_of(unit, "ExecStart").split()[1] in ("api", "worker")
    assert value_of(unit, "Type") == "notify"


@pytest.mark.parametrize("unit", [API, WORKER], ids=lambda unit: unit.stem)
def test_systemd_accepts_the_units_and_finds_little_exposed(unit: Path, tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        reason = "systemd-analyze is not on this machine: run `make servers` (it is in the package systemd)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    # Where the program lies is all that is not as printed: systemd looks whether it is there.
    here = tmp_path / unit.name.replace("@", "@1")
    here.write_text(unit.read_text().replace("/opt/taskframework/bin/taskframework", sys.executable))
    for command in (["verify", "--man=no"], ["security", "--offline=true", f"--threshold={_MOST_EXPOSED * 10:g}"]):
        done = subprocess.run([analyze, *command, str(here)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-500:]
