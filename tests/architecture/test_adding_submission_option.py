"""A submission option is added in two places: see docs/adding/submission-option.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "adding" / "submission-option.md").read_text()
#: The places that the page names, with the line that is added below another one.
PLACES = {
    "submission/options.py": (
        "    correlation_id: Annotated[",
        '    cost_center: Annotated[Name | None, Field(description="Who pays for it")]\n',
    ),
    "model/task.py": ("    deadline: datetime | None = None\n", "    cost_center: Rare[str | None] = None\n"),
}
_PROGRAM = """
import asyncio, json
import httpx
from taskframework import BackgroundTaskExecutable, InvalidRequestError, SubmitRequest, TaskContext, TaskFramework
from taskframework.api.app import create_app

class Greets(BackgroundTaskExecutable[None, None]):
    task_type = "greets"
    def execute(self, context: TaskContext[None]) -> None: ...

async def main() -> None:
    framework = TaskFramework()
    framework.register(Greets)
    app = create_app(framework)
    async with framework.running(worker=False), httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api"
    ) as client:
        one = await framework.submit("greets", cost_center="python")
        [many] = await framework.submit_many([SubmitRequest(task_type="greets", cost_center="many")])
        body = {"task_type": "greets", "cost_center": "http"}
        posted = (await client.post("/api/v1/tasks", json=body)).json()
        bulk = (await client.post("/api/v1/tasks/bulk", json={"tasks": [body]})).json()["items"][0]["task"]
        ids = [one.task_id, many.task_id, posted["task_id"], bulk["task_id"]]
        stored = [(await framework.get(task_id)).cost_center for task_id in ids]
        refused = (await client.post("/api/v1/tasks", json={**body, "cost_center": ""})).json()
        try:
            await framework.submit("greets", cost_center="")
        except InvalidRequestError as error:
            schema = app.openapi()["components"]["schemas"]["SubmitTask"]
            print(json.dumps([stored, refused["errors"], str(error), schema]))

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a copy of the package in which the places that the page names are changed, and no other."""
    shutil.copytree(PACKAGE, tmp_path / "taskframework", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (above, line) in PLACES.items():
        assert f"`{name}`" in PAGE
        file = tmp_path / "taskframework" / name
        before, found, after = file.read_text().partition(above)
        assert found
        rest_of_line, _, after = after.partition("\n") if not above.endswith("\n") else ("", "", after)
        file.write_text(before + above + (f"{rest_of_line}\n" if rest_of_line else "") + line + after)
    return tmp_path


def _run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_option_travels_from_every_door_to_the_document(folder: Path) -> None:
    (folder / "program.py").write_text(_PROGRAM)
    stored, refused, error, schema = json.loads(_run(folder, "program.py"))
    assert stored == ["python", "many", "http", "http"]
    assert refused[0]["field"] == "cost_center"
    assert error.startswith("cost_center: must be 1 to 200 printable ASCII characters")
    assert error.endswith("Who pays for it.")
    assert schema["properties"]["cost_center"]["description"] == "Who pays for it"


def test_the_command_line_has_its_flag(folder: Path) -> None:
    (folder / "greeting.py").write_text(_PROGRAM.partition("async def main")[0])
    submit = ["-m", "taskframework", "submit", "greets", "--app", "greeting"]
    task_id = json.loads(_run(folder, *submit, "--cost-center", "shell", "--json"))["task_id"]
    look = (
        "import asyncio, sys; from taskframework import TaskFramework\n"
        "async def main():\n"
        "    async with TaskFramework().running(worker=False) as framework:\n"
        "        print((await framework.get(sys.argv[1])).cost_center)\n"
        "asyncio.run(main())"
    )
    assert _run(folder, "-c", look, task_id) == "shell\n"
    assert "Who pays for it." in _run(folder, *submit, "--help")
