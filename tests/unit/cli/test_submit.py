"""`submit`: by name where the store knows the type, and without a trace where the request is refused."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from pathlib import Path

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest

import taskframework.wiring.process  # noqa: F401 - as before
from taskframework import Settings, TaskFramework
from taskframework.cli.applications import register_modules
from tests.unit.cli.conftest import Cli

#: Whoever imports it, knows.
LOUD = """
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions

Path("imported").touch()


class Adds(BackgroundTaskExecutable[list[int], int]):
    task_type = "adds"
    options = TaskOptions(max_attempts=2)

    async def execute(self, context: TaskContext[list[int]]) -> int:
        return sum(context.parameters)
"""


@pytest.fixture
def imported(folder: Path) -> Path:
    """There as soon as somebody has imported the module `loud`."""
    (folder / "loud.py").write_text(LOUD)
    return folder / "imported"


@pytest.fixture
def declared(imported: Path) -> None:
    """The store after a worker with the module `loud` has run."""

    async def work() -> None:
        async with framework.running(worker=True):
            pass

    framework = TaskFramework(Settings())
    register_modules(framework, ["loud"])
    asyncio.run(work())
    del sys.modules["loud"]
    imported.unlink()


@pytest.mark.usefixtures("declared")
def test_a_type_that_the_store_knows_is_submitted_without_its_module(cli: Cli, folder: Path, imported: Path) -> None:
    (folder / "application.yml").write_text("app: {modules: [loud]}\n")
    task = json.loads(cli("submit", "adds", "[1, 2]", "--json").out)
    assert (task["task_type"], task["parameters"], task["max_attempts"]) == ("adds", [1, 2], 2)
    done = cli("submit", "adds", '["x"]')
    assert done.code == 1
    assert '0: Input is not of type "integer"' in done.err
    assert not imported.exists()


@pytest.mark.usefixtures("declared")
def test_a_module_that_is_named_is_imported(cli: Cli, imported: Path) -> None:
    assert cli("submit", "adds", "[1]", "--app", "loud").code == 0
    assert imported.exists()


@pytest.mark.usefixtures("empty_store")
def test_a_type_that_the_store_does_not_know_is_looked_for_in_the_modules_of_the_settings(
    cli: Cli, folder: Path, imported: Path
) -> None:
    (folder / "application.yml").write_text("app: {modules: [loud]}\n")
    assert cli("submit", "adds", "[1]").code == 0
    assert imported.exists()
    done = cli("submit", "add", "[1]")
    assert done.code == 1
    assert "Did you mean 'adds'?" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("greets", '"you"'), "There is no store here yet: taskframework.db does not exist."),
        (("greet", '"you"', "--app", "greeting"), "There is no task type 'greet'"),
        (("greets", "1", "--app", "greeting"), "Input should be a valid string"),
        (("greets", '"you"', "--app", "greeting", "--deadline", "1s", "--not-before", "1m"), "deadline"),
    ],
)
def test_a_refused_submission_creates_no_store(cli: Cli, folder: Path, arguments: tuple[str, ...], said: str) -> None:
    before = set(folder.glob("taskframework*"))
    done = cli("submit", *arguments)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert set(folder.glob("taskframework*")) == before


def test_an_accepted_submission_creates_the_store(cli: Cli, folder: Path) -> None:
    assert cli("submit", "greets", '"you"', "--app", "greeting").code == 0
    assert (folder / "taskframework.db").exists()
    assert "greets" in cli("tasks", "list").out


def test_parameters_that_name_a_file_have_another_hint_than_wrong_json(cli: Cli, folder: Path) -> None:
    (folder / "you.json").write_text('"you"')
    submit = ("submit", "greets", "--app", "greeting")
    assert "To read the file, write @you.json." in " ".join(cli(*submit, "you.json").err.replace("│", " ").split())
    assert "Quote it for the shell" in " ".join(cli(*submit, "me.json").err.replace("│", " ").split())
    assert cli(*submit, "@you.json").code == 0


def test_standard_input_may_begin_with_the_mark_of_utf_8(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ("submit", "greets", "-", "--app", "greeting")
    monkeypatch.setattr("sys.stdin", io.StringIO('\ufeff"you"'))
    assert cli(*submit).code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("{not json"))
    done = cli(*submit)
    assert (done.code, "not JSON" in done.err, "Quote it for the shell" in done.err) == (2, True, False)


def test_parameters_that_are_not_utf_8_are_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ("submit", "greets", "--app", "greeting")
    wrong = b'"gr\xfc"'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(wrong), encoding="utf-8"))
    for parameters in (wrong.decode(errors="surrogateescape"), "-"):
        done = cli(*submit, parameters)
        assert done.code == 2
        assert "cannot be read" in done.err


@pytest.mark.parametrize("number", [2**64, 10**30, -(2**64)])
def test_a_whole_number_that_no_store_keeps_is_refused_and_not_rounded(cli: Cli, folder: Path, number: int) -> None:
    (folder / "keeping.py").write_text(
        "from typing import Any\nfrom taskframework import task\n\n"
        "@task('keeps')\ndef keeps(parameters: Any) -> Any:\n    return parameters\n"
    )
    done = cli("submit", "keeps", f'{{"a": [{number}]}}', "--app", "keeping")
    assert (done.code, done.out) == (1, "")
    assert "more than 64" in done.err


def test_submissions_of_a_key_share_a_task(cli: Cli) -> None:
    submit = ("submit", "greets", "--app", "greeting", "--json", "--debounce", '{"key": "k", "wait": "1h"}')
    first, second = (json.loads(cli(*submit, f'"{name}"').out) for name in ("ann", "bob"))
    assert second["task_id"] == first["task_id"]
    assert (first["parameters"], second["parameters"]) == ("ann", "bob")
    done = cli("submit", "greets", '"ann"', "--app", "greeting", "--throttle", '{"key": "k"}')
    assert done.code == 1
    assert "throttle.every" in done.err


@pytest.mark.parametrize("flag", ["--unique", "--debounce", "--throttle", "--stream"])
def test_the_help_shows_an_example_of_an_object_that_is_accepted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    [line] = [line for line in cli("submit", "--help").out.splitlines() if flag in line]
    found = re.search(r"\(example: '(\{.*\})'\)", line)
    assert found is not None
    assert cli("submit", "greets", '"you"', flag, found[1], "--app", "greeting").code == 0
