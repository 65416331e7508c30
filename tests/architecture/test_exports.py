"""The public names exist, and every module says what it is for. (Their order is ruff's business: RUF022.)"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import taskframework
from taskframework.cli.main import LazyCommand, build_command_line
from tests.architecture.sources import PACKAGE, ROOT, modules


def test_every_public_name_exists() -> None:
    assert taskframework.__all__
    assert [name for name in taskframework.__all__ if not hasattr(taskframework, name)] == []


def test_type_checkers_see_the_public_names_where_python_finds_them() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(alias.asname, f"{node.module}.{alias.name}") for node in imports for alias in node.names}
    assert seen == {(name, f"taskframework.{home}.{name}") for name, home in taskframework._HOMES.items()}


def test_every_public_class_and_function_has_a_docstring() -> None:
    public = {name: getattr(taskframework, name) for name in taskframework.__all__}
    assert [name for name, value in public.items() if callable(value) and not value.__doc__] == []


def test_every_module_has_a_docstring() -> None:
    silent = [path for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


#: What an import of a name or a line of help has no need of, and what takes long to import.
HEAVY = {
    *("aio_pika", "aiormq", "fastapi", "httpx", "motor", "opentelemetry", "prometheus_client", "pymongo", "starlette"),
    *("structlog", "tenacity", "uvicorn", "yaml", "sqlite3", "taskframework.runtime", "taskframework.settings"),
}


#: What a command that only opens the store has no need of.
OF_A_PROCESS = {
    *("aio_pika", "fastapi", "httpx", "prometheus_client", "starlette", "uvicorn", "motor", "sqlite3"),
    *(
        f"taskframework.{name}"
        for name in ("worker", "recovery", "aggregation", "events.bridge", "observability.metrics")
    ),
}


@pytest.mark.parametrize(
    ("program", "not_needed"),
    [
        ("import taskframework", {*HEAVY, "asyncio", "pydantic", "rich", "typer", "taskframework.errors"}),
        ("from taskframework import BackgroundTaskExecutable, TaskOptions, RetryableError", {*HEAVY, "rich", "typer"}),
        ("import sys; sys.argv[1:] = ['--help']; from taskframework.cli.main import main; main()", HEAVY),
        ("import taskframework.cli.submit, taskframework.cli.tasks, taskframework.cli.dlq", OF_A_PROCESS),
    ],
    ids=["package", "names", "help", "store only"],
)
def test_modules_that_are_not_needed_are_not_imported(program: str, not_needed: set[str]) -> None:
    script = f"import atexit, sys; atexit.register(lambda: print('\\n', *sys.modules)); {program}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert set(done.stdout.splitlines()[-1].split()) & not_needed == set()


def test_a_name_that_is_not_public_is_an_error_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'taskframework' has no attribute 'Nothing'"):
        taskframework.Nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing' from 'taskframework'"):
        exec("from taskframework import Nothing")
    assert set(taskframework.__all__) <= set(dir(taskframework))


def test_the_help_says_of_each_command_what_the_command_says_of_itself() -> None:
    for name, command in build_command_line().commands.items():
        assert isinstance(command, LazyCommand)
        purpose, said = str(command.help), command.load_command().help
        assert said.startswith(purpose.rstrip(".")), f"{name}: {purpose!r} is not the beginning of {said!r}"
