"""The watch on blocking calls sees what taskframework does, and only that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError

import taskframework


async def test_a_blocking_call_by_the_package_is_an_error() -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        _napping_in(Path(str(taskframework.__file__)).with_name("planted.py"))()


async def test_a_blocking_call_by_a_test_is_not() -> None:
    _napping_in(Path(__file__))()


def _napping_in(file: Path) -> Callable[[], None]:
    names: dict[str, Any] = {"time": time}
    exec(compile("def nap():\n    time.sleep(0)\n", file, "exec"), names)
    nap: Callable[[], None] = names["nap"]
    return nap
