"""The watch on blocking calls sees what taskframework does, and only that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError

import taskframework


async def test_a_blocking_call_by_the_package_is_an_error() -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        _in_the_package("time.sleep(0)", time=time)()


async def test_a_blocking_call_by_a_test_is_no_error() -> None:
    _napping_in(Path(__file__))()


async def test_a_log_line_by_the_package_to_a_file_is_no_error(tmp_path: Path) -> None:
    logger, handler = logging.getLogger("test_blocking"), logging.FileHandler(tmp_path / "log")
    logger.addHandler(handler)
    try:
        _in_the_package("logger.warning('slow')", logger=logger)()
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "slow\n"


def _napping_in(file: Path) -> Callable[[], None]:
    return _function_in(file, "time.sleep(0)", time=time)


def _in_the_package(statement: str, **names: Any) -> Callable[[], None]:
    return _function_in(Path(str(taskframework.__file__)).with_name("planted.py"), statement, **names)


def _function_in(file: Path, statement: str, **names: Any) -> Callable[[], None]:
    exec(compile(f"def function():\n    {statement}\n", file, "exec"), names)
    function: Callable[[], None] = names["function"]
    return function
