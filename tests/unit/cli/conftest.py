"""The command line inside the test's own process: quick enough for every error there is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

# Adapters are imported when first needed, which is on the loop; reading a module blocks it, and here that counts.
import taskframework.brokers.embedded
import taskframework.wiring.process  # noqa: F401
from taskframework.cli import main as command_line
from taskframework.stores.sqlite import SqliteStore

PROGRAM = """
from taskframework import BackgroundTaskExecutable, TaskContext


class Greets(BackgroundTaskExecutable[str, str]):
    task_type = "{task_type}"

    async def execute(self, context: TaskContext[str]) -> str:
        return "hello " + context.parameters
"""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def empty_store(folder: Path) -> None:
    """The store of the working directory, with nothing in it."""

    async def make() -> None:
        store = SqliteStore(folder / "taskframework.db")
        await store.open()
        await store.close()

    asyncio.run(make())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a program `greeting` in it; what tests import from it is forgotten."""
    (tmp_path / "greeting.py").write_text(PROGRAM.format(task_type="greets"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command: `cli("tasks", "list")`."""

    def exit_process(code: int) -> NoReturn:  # the real one watches over the end of the process
        raise SystemExit(code)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["taskframework", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        said = capsys.readouterr()
        return Done(int(end.value.code or 0), said.out, said.err)

    monkeypatch.setattr(command_line, "exit_process", exit_process)
    monkeypatch.delenv("COLUMNS", raising=False)
    return run
