"""Ctrl-C before a command has begun."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from taskframework.__main__ import main


class Interrupted(ModuleType):
    """A module whose reading is interrupted."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_the_code_is_read_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "taskframework.cli.main", Interrupted("taskframework.cli.main"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
