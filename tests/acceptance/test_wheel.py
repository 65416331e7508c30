"""The wheel in an environment with nothing else: small without extras, whole with them, on each version of Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import Folder, Started, start_program
from tests.support.installed import (
    OWN_VERSION,
    Environment,
    IndexUnavailable,
    build_wheel,
    interpreter,
    oldest_versions,
    versions_of_the_lock,
)

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: What only an extra brings.
_OF_EXTRAS = {"aio-pika", "fastapi", "jsonschema-rs", "motor", "opentelemetry-sdk", "redis", "uvicorn", "uvloop"}
#: The client of a program that has nothing else, and a task on the embedded default.
_BARE = """
import asyncio, sys
from taskframework import Settings, SyncTaskClient, TaskFramework, task

with SyncTaskClient(sys.argv[1]) as client:
    task_id = client.submit("count-words", {"text": "one two three"}).task_id
    assert client.wait(task_id, timeout=60) == 3

@task("doubles")
def doubles(number: int) -> int:
    return 2 * number

async def main():
    framework = TaskFramework(Settings())
    framework.register(doubles)
    async with framework.running(worker=True):
        handle = await framework.submit(doubles, 21)
        assert await handle.result(timeout=60) == 42

asyncio.run(main())
"""
_IMPORTS_ALL = """
import importlib, pkgutil, taskframework

for module in pkgutil.walk_packages(taskframework.__path__, "taskframework."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def _parameter(version: str) -> object:
    return pytest.param(version, marks=[] if version == OWN_VERSION else [pytest.mark.wheels])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(params=[_parameter(version) for version in VERSIONS])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Environment:
    if (python := interpreter(request.param)) is None:
        pytest.skip(f"there is no Python {request.param} here")
    return Environment(python, tmp_path / "clean", versions_of_the_lock())


@pytest.fixture
def api(folder: Folder) -> str:
    """The address of an installation, which runs elsewhere."""
    ready = folder.start("dev", "--app", "program", "--port", "0").event("ready")
    return f"http://{ready['host']}:{ready['port']}"


@pytest.fixture
def started() -> Iterator[list[Started]]:
    started: list[Started] = []
    yield started
    for each in started:
        each.kill()


@pytest.mark.timeout(900)  # pip, on a crowded machine
def test_the_installed_wheel_works_without_other_packages(
    wheel: Path, environment: Environment, api: str, started: list[Started]
) -> None:
    with _skipped_without_an_index():
        environment.install(str(wheel))
        assert not environment.packages() & _OF_EXTRAS
        environment.run("python", "-c", _BARE, api)
        assert "completed, 0 failed" in environment.run("taskframework", "demo")
        assert "pip install 'taskframework[api]'" in environment.run("taskframework", "dev", code=1)

        environment.install(f"{wheel}[all]", "pytest", "pytest-asyncio")
    assert environment.packages() >= _OF_EXTRAS
    _use_a_new_project(environment, started)


@pytest.mark.timeout(900)
def test_the_wheel_works_with_the_oldest_versions_that_it_allows(
    wheel: Path, tmp_path: Path, started: list[Started]
) -> None:
    if (python := interpreter(VERSIONS[0])) is None:  # many of those versions cannot be had for later ones
        pytest.skip(f"there is no Python {VERSIONS[0]} here")
    environment = Environment(python, tmp_path / "clean", oldest_versions())
    with _skipped_without_an_index():
        environment.install(f"{wheel}[all]", "pytest", "pytest-asyncio")
    environment.run("python", "-c", _IMPORTS_ALL)
    assert "completed, 0 failed" in environment.run("taskframework", "demo")
    _use_a_new_project(environment, started)


@contextmanager
def _skipped_without_an_index() -> Iterator[None]:
    try:
        yield
    except IndexUnavailable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def _use_a_new_project(environment: Environment, started: list[Started]) -> None:
    """Make a project, run its tests, and submit a task to it over HTTP."""
    environment.run("taskframework", "init", "orders")
    project = environment.folder / "orders"
    assert "4 passed" in environment.run("python", "-m", "pytest", "-q", folder=project)
    program = str(environment.folder.parent / "environment/bin/taskframework")
    started.append(start_program([program, "dev", "--port", "0"], project, environment.variables))
    started[0].event("ready")
    submitted = environment.run("taskframework", "submit", "count-words", '"one two"', "--wait", folder=project)
    assert submitted.splitlines()[-1] == "2"
    assert started[0].end() == 0
