"""`taskframework dev --reload`: files change, processes come and go, tasks stay."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import httpx
import pytest

from taskframework import TaskframeworkError
from taskframework.cli.reload import run_reloading
from tests.support.command import PROGRAM, Folder, Started
from tests.support.process import free_ports, wait_until

#: The task that waited, as its author has improved it.
IMPROVED = PROGRAM.replace("await asyncio.sleep(context.parameters)", "await context.update_progress('improved')")


def _starts(started: Started) -> int:
    return sum(line["event"] == "ready" for line in started.log)


def test_a_task_that_runs_goes_on_with_the_next_code_that_can_be_imported(folder: Folder) -> None:
    [port] = free_ports(1)
    dev = folder.start("dev", "--reload", "--app", "program", "--port", str(port))
    dev.event("ready")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=20) as api:
        task_id = api.post("/tasks", json={"task_type": "waits", "parameters": 3600}).json()["task_id"]
        wait_until(lambda: api.get(f"/tasks/{task_id}").json()["status"] == "RUNNING", "it runs", timeout=20)

    (folder.path / "program.py").write_text(PROGRAM + "\nthis is no Python\n")
    dev.line("program.py changed: restarting")
    dev.line("Module 'program' cannot be imported: SyntaxError: invalid syntax (program.py, line ")
    dev.line("Waiting for the next change.")
    assert not any(line.startswith("Traceback") for line in dev.err)
    assert folder.json("tasks", "show", task_id)["status"] == "QUEUED"

    (folder.path / "notes.txt").write_text("no code")
    (folder.path / "program.py").write_text(IMPROVED)
    wait_until(lambda: _starts(dev) == 2, "it is ready again", timeout=30)
    folder.run("tasks", "watch", task_id)
    task = folder.json("tasks", "show", task_id)
    assert (task["status"], task["progress"], task["attempt"]) == ("COMPLETED", "improved", 1)
    assert not any("notes.txt" in line for line in dev.err)
    assert dev.end(signal.SIGINT) == 0


def test_a_process_that_ends_by_itself_is_started_again_at_the_next_change(folder: Folder) -> None:
    (folder.path / "program.py").write_text(PROGRAM + "\nimport os; os._exit(3)\n")
    dev = folder.start("dev", "--reload", "--app", "program", "--port", "0")
    dev.line("The process ended: code 3")
    (folder.path / "application.yml").write_text("app: {source: orders}\n")
    dev.line("application.yml changed: restarting")
    (folder.path / "program.py").write_text(PROGRAM)
    dev.event("ready")

    dev.send(signal.SIGKILL)
    wait_until(lambda: dev.log[-1]["event"] == "stopped", "it stops when its parent is gone", timeout=20)


def test_a_folder_that_cannot_be_watched_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(TaskframeworkError, match=r"gone cannot be watched: .* Set WATCHFILES_FORCE_POLLING"):
        run_reloading([sys.executable, "-c", ""], tmp_path / "gone")
