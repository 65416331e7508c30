"""`--app`: which programs are found, and what is said about those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskframework.cli import serve
from tests.unit.cli.conftest import PROGRAM, Cli

FRAMEWORK = """
from taskframework import Settings, TaskFramework
from greeting import Greets

framework = TaskFramework(Settings.model_validate({"store": {"url": "sqlite:///own.db"}, "api": {"port": 9}}))
framework.register(Greets)
number = 1
"""

EXTENDED = """
from taskframework import TaskFramework, task

framework = TaskFramework()

@framework.use
async def around(context, call_next):
    return await call_next(context)

@task("inside")
def inside(parameters: str) -> int:
    return 1
"""

MISSPELT = """
from taskframework import BackgroundTaskExecutable, task

class Base(BackgroundTaskExecutable[str, int]):
    pass

class Counts(Base):
    task_type = "counts"

    async def excute(self, context):
        return 1

@task("fine")
def fine(parameters: str) -> int:
    return 1
"""


@pytest.fixture(autouse=True)
def programs(folder: Path) -> None:
    (folder / "application.yml").write_text("app: {modules: []}\n")
    (folder / "built.py").write_text(FRAMEWORK)
    (folder / "extended.py").write_text(EXTENDED)
    (folder / "hook.py").write_text(f"{EXTENDED}\n@framework.lifespan\nasync def opened():\n    yield 1\n")
    (folder / "second.py").write_text(PROGRAM.format(task_type="greets-too"))
    (folder / "same.py").write_text(PROGRAM.format(task_type="greets"))
    (folder / "broken.py").write_text("x = 1\nraise ZeroDivisionError('so it is')\n")
    (folder / "hasty.py").write_text("from taskframework import TaskOptions\n\noptions = TaskOptions(timeout=-5)\n")
    (folder / "unfinished.py").write_text("def (:\n")
    (folder / "needy.py").write_text("import no_such_package\n")
    (folder / "misspelt.py").write_text(MISSPELT)
    (folder / "again.py").write_text("from greeting import Greets\nfrom taskframework import *\n")
    (folder / "idle.py").write_text("from taskframework import TaskFramework\n\nframework = TaskFramework()\n")
    (folder / "quits.py").write_text("raise SystemExit(3)\n")


@pytest.mark.parametrize(
    ("app", "message", "hint"),
    [
        ("nowhere", "There is no module 'nowhere' in ", "holds nowhere.py or nowhere/"),
        ("greeting.tasks", "There is no module 'greeting.tasks'", "holds greeting/tasks.py"),
        ("no.where", "There is no module 'no.where': 'no' is not in ", "holds no/where.py"),
        ("greeting.py", "this is a file, not a module", "Write --app greeting,"),
        ("./sub/greeting.py:framework", "this is a file", "Write --app sub.greeting:framework,"),
        ("greeting:", "names no module", "package.module[:name]"),
        ("broken", "'broken' cannot be imported: ZeroDivisionError: so it is (broken.py, line 2)", "Fix it"),
        ("hasty", "'hasty' cannot be imported: The option timeout is -5 (hasty.py, line 3).", "seconds, above zero"),
        ("unfinished", "'unfinished' cannot be imported: SyntaxError", "Fix it"),
        ("needy", "'needy' cannot be imported: ModuleNotFoundError: No module named 'no_such_package'", "Fix it"),
        ("quits", "'quits' cannot be imported: SystemExit: 3", "Fix it"),
        ("misspelt", "misspelt.Counts (misspelt.py, line 7) is abstract: execute is missing.", "Implement it"),
        (
            "extended",
            "'extended' adds middleware or lifespan hooks to its framework, but",
            "Write --app extended:framework.",
        ),
        ("hook", "imported: hook.opened (hook.py, line 14) is not a lifespan hook.", "asynccontextmanager right above"),
        (
            "json",
            "defines no tasks: neither a BackgroundTaskExecutable with task_type and",
            "It is a module of Python itself (",
        ),
        ("built", "Module built defines no tasks", "write --app built:framework"),
        (
            "again",
            "and execute nor a @task function.",
            "It imports Greets, and imported tasks do not count: use --app gr",
        ),
        ("built:number", "it is of the type int in built", "Did you mean --app built:framework?"),
        ("built:nothing", "there is no such name in built", "Did you mean --app built:framework?"),
        ("greeting:Greets", "it is a class in greeting", "Write --app greeting to register"),
        ("greeting.Greets", "There is no module 'greeting.Greets'", "--app greeting."),
        ("greeting:nothing", "there is no such name in greeting", "Write --app greeting to register"),
    ],
)
def test_an_application_that_cannot_be_used_is_an_error_with_the_next_step(
    cli: Cli, app: str, message: str, hint: str
) -> None:
    done = cli("submit", "greets", '"you"', "--app", app)
    assert done.code == 1
    first, second = done.err.splitlines()[:2]
    assert message in first
    assert hint in second
    assert done.out == ""


@pytest.mark.parametrize("command", ["dev", "worker"])
@pytest.mark.parametrize(
    ("apps", "is_told"),
    [
        (["idle:framework"], True),
        (["idle:framework", "greeting"], True),
        (["built:framework", "second"], False),
        (["extended:framework", "extended"], False),
    ],
)
def test_a_framework_without_registered_tasks_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, apps: list[str], is_told: bool
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr(serve, "serve", lambda *_, **given: remarks.extend(given["remarks"]))
    done = cli(command, *(word for app in apps for word in ("--app", app)))
    assert done.code == (1 if (command, len(apps)) == ("worker", 1) else 0)
    told = "The framework idle:framework has no registered tasks of its own. To register one, call framework.register("
    assert (told in done.err + "".join(remarks)) is is_told


def test_two_programs_with_the_same_task_type_are_refused(cli: Cli) -> None:
    done = cli("submit", "greets", '"you"', "--app", "greeting", "--app", "same")
    assert done.code == 1
    assert "by greeting.Greets (greeting.py, line 5) and same.Greets (same.py, line 5)" in done.err


def test_programs_add_up_and_one_named_twice_is_one(cli: Cli, folder: Path) -> None:
    (folder / "application.yml").write_text("app: {modules: [greeting]}\n")
    assert cli("submit", "greets", '"you"').code == 0
    assert cli("--app", "greeting", "submit", "greets-too", '"you"', "--app", "second", "--app", "greeting").code == 0


def test_a_framework_of_the_program_brings_its_settings(cli: Cli, folder: Path) -> None:
    assert cli("submit", "greets", '"you"', "--app", "built:framework").code == 0
    assert (folder / "own.db").exists()
    assert "greets" in cli("--app", "built:framework", "tasks", "list").out
    assert not (folder / "taskframework.db").exists()


def test_a_framework_of_the_program_takes_other_modules_but_no_other_settings(cli: Cli, folder: Path) -> None:
    assert cli("submit", "greets-too", '"you"', "--app", "built:framework", "--app", "second").code == 0
    done = cli("submit", "greets", '"you"', "--app", "built:framework", "--config", "application.yml")
    assert (done.code, "Leave one of them out" in done.err) == (1, True)
    done = cli("submit", "greets", '"you"', "--app", "built:framework", "--app", "built:number")
    assert (done.code, "names two frameworks" in done.err) == (1, True)
