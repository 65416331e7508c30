"""Options of the command line as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskframework import ConfigurationError
from taskframework.cli.invocation import Invocation

BUILT = """
from taskframework import Settings, TaskFramework

framework = TaskFramework(Settings.model_validate({"retention": {"finished": None}, "api": {"port": 9}}))
"""


@pytest.fixture(autouse=True)
def built(folder: Path) -> None:
    (folder / "built.py").write_text(BUILT)


def test_flags_override_only_when_they_are_given(folder: Path) -> None:
    (folder / "application.yml").write_text("api: {host: 127.0.0.2, port: 5}\n")
    settings = Invocation().framework({"api.port": 6, "api.host": None}).settings
    assert (settings.api.host, settings.api.port) == ("127.0.0.2", 6)


def test_flags_override_the_settings_of_the_programs_own_framework() -> None:
    invocation = Invocation(apps=("built:framework",))
    assert invocation.framework({"api.port": None}).settings.api.port == 9
    settings = invocation.framework({"api.port": 6}).settings
    assert (settings.api.port, settings.retention.finished) == (6, None)
    with pytest.raises(ConfigurationError, match=r"api\.port \(command line\) is -1"):
        invocation.framework({"api.port": -1})
