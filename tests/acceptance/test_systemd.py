"""What the units start, started as they do: it tells systemd when it serves, that it lives and when it stops."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command import Folder
from tests.support.pages import ROOT
from tests.support.process import wait_until
from tests.support.systemd import Ear


@pytest.mark.parametrize(("unit", "own"), [("api", {"TASKFRAMEWORK_API__PORT": "0"}), ("worker@", {})])
def test_a_service_tells_when_it_serves_that_it_lives_and_when_it_stops(
    folder: Folder, tmp_path: Path, unit: str, own: dict[str, str]
) -> None:
    text = (ROOT / "config" / "systemd" / f"taskframework-{unit}.service").read_text()
    [arguments] = re.findall(r"^ExecStart=\S+/taskframework (.*)$", text, re.MULTILINE)
    with closing(Ear(tmp_path)) as ear:
        watch = {"WATCHDOG_USEC": "300000", "TASKFRAMEWORK_APP__MODULES": "[program]"}
        started = folder.start(*arguments.split(), env={**own, **watch, **ear.environment})
        started.event("ready")
        wait_until(lambda: ear.words.count("WATCHDOG=1") >= 3, "it says that it lives", timeout=20)
        assert started.end() == 0
        assert ear.words[0] == "READY=1"
        assert [word for word in ear.words if word != "WATCHDOG=1"] == ["READY=1", "STOPPING=1"]
