"""The command line on RabbitMQ and MongoDB: `api` and `worker` as processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest

from taskframework.stores.mongo.store import MongoStore
from tests.acceptance.undriven import finding_of_undriven, plant_undriven
from tests.acceptance.wrong_parents import finding_of_wrong_parents, plant_wrong_parents
from tests.support.command import Folder, environment_with
from tests.support.process import free_ports, wait_until


@pytest.fixture
def servers(amqp_url: str, mongo_url: str) -> dict[str, str]:
    """The environment in which commands use real servers."""
    return {"TASKFRAMEWORK_BROKER__URL": amqp_url, "TASKFRAMEWORK_STORE__URL": mongo_url}


def test_api_and_workers_share_the_work(folder: Folder, servers: dict[str, str]) -> None:
    [health_port] = free_ports(1)
    api = folder.start("api", "--app", "program", "--port", "0", env=servers)
    first = folder.start(
        "worker", "--app", "program", env={**servers, "TASKFRAMEWORK_WORKER__HTTP_PORT": str(health_port)}
    )
    second = folder.start("--app", "program", "worker", "--concurrency", "7", env=servers)
    ready = [process.event("ready") for process in (api, first, second)]
    assert [line["role"] for line in ready] == ["api", "worker", "worker"]
    assert httpx.get(f"http://127.0.0.1:{health_port}/readyz", trust_env=False).status_code == 200

    task = {"task_type": "count-words", "parameters": {"text": "one two"}}
    tasks = {"tasks": [task] * 60}
    with httpx.Client(base_url=f"http://127.0.0.1:{ready[0]['port']}/api/v1", trust_env=False, timeout=20) as client:
        assert client.post("/tasks/bulk", json=tasks).status_code == 200

        def done() -> int:
            return len(client.get("/tasks", params={"status": "COMPLETED", "limit": 500}).json()["items"])

        wait_until(lambda: done() == 60, "all are done", timeout=30)
    page = folder.json("tasks", "list", "--limit", "100", env=servers)
    workers = {entry["worker_id"] for item in page["items"] for entry in item["history"] if entry["type"] == "started"}
    assert {item["result"] for item in page["items"]} == {2}
    assert workers == {line["worker_id"] for line in ready[1:]}
    assert [process.end() for process in (first, second, api)] == [0, 0, 0]


def test_an_api_without_a_program_takes_what_workers_have_declared(folder: Folder, servers: dict[str, str]) -> None:
    api = folder.start("api", "--port", "0", env=servers)
    url = f"http://127.0.0.1:{api.event('ready')['port']}/api/v1"
    task = {"task_type": "count-words", "parameters": {"text": "one two"}}
    with httpx.Client(base_url=url, trust_env=False, timeout=20) as client:
        assert client.post("/tasks", json=task).json()["code"] == "unknown_task_type"
        folder.start("worker", "--app", "program", env=servers).event("ready")
        (folder.path / "program.py").unlink()
        assert client.post("/tasks", json=task).status_code == 202
    done = folder.run("submit", "count-words", '{"text": "one two three"}', "--wait", env=servers)
    assert done.stdout.splitlines()[-1] == "3"
    script = [sys.executable, "-c", SUBMITS]
    done = subprocess.run(
        script, cwd=folder.path, env=environment_with(servers), capture_output=True, text=True, check=True
    )
    assert done.stdout == "4\n"


SUBMITS = """
import asyncio
from taskframework import TaskFramework

async def main():
    framework = TaskFramework()
    async with framework.running(worker=False):
        handle = await framework.submit("count-words", {"text": "one two three four"})
        print(await handle.result(timeout=60))

asyncio.run(main())
"""


def test_submit_tells_how_a_task_ends_on_real_servers(folder: Folder, servers: dict[str, str]) -> None:
    folder.start("worker", "--app", "program", env=servers).event("ready")
    tail = folder.start("events", "tail", "--json", env=servers)
    tail.line("Listening")
    done = folder.run("submit", "flaky", "--app", "program", "--wait", env=servers)
    assert done.stdout.splitlines()[-1] == "2"
    tail.line("task.completed")
    types = [json.loads(line)["type"] for line in tail.out]
    assert types == [
        f"task.{name}" for name in ("submitted", "started", "retrying", "started", "completed")
    ]  # fmt: skip
    assert tail.end(signal.SIGINT) == 130


def test_the_topology_is_shown_and_declared(folder: Folder, servers: dict[str, str]) -> None:
    shown = folder.run("topology", "show", "--app", "program", env=servers).stdout
    assert "queue tasks.count-words.high" in shown
    assert "x-queue-type=quorum" in shown
    assert folder.json("topology", "show", "--app", "program", env=servers)
    for _ in range(2):
        assert "count-words" in folder.run("topology", "apply", "--app", "program", env=servers).stdout


def test_doctor_finds_what_is_missing_and_then_nothing(folder: Folder, servers: dict[str, str]) -> None:
    found = folder.json("doctor", "--app", "program", code=1, env=servers)
    assert not found["ok"]
    problems = [problem for finding in found["findings"] for problem in finding["problems"]]
    missing = [problem for problem in problems if "topology apply" in problem]
    assert "tasks.count-words.high" in missing[0], problems
    worker = folder.start("worker", "--app", "program", env=servers)
    worker.event("ready")
    found = folder.json("doctor", "--app", "program", env=servers)
    assert found["ok"]
    facts = {finding["part"]: finding["facts"] for finding in found["findings"]}
    assert facts["store"]["server"].startswith("MongoDB ")
    assert "member" in facts["store"]["replica set"]
    assert facts["broker"]["server"].startswith("RabbitMQ")
    assert facts["broker"]["delays are held by"] in ("the store", "the delayed-message plugin")
    assert facts["broker"]["queue tasks.count-words.high"] == "0 ready"
    assert ":***@" in facts["broker"]["url"]


def test_doctor_finds_tasks_that_nothing_would_move_on(folder: Folder, servers: dict[str, str]) -> None:
    folder.run("topology", "apply", "--app", "program", env=servers)
    plant_undriven(MongoStore(servers["TASKFRAMEWORK_STORE__URL"]))
    finding_of_undriven(folder, servers)


def test_doctor_finds_parents_that_wait_in_vain(folder: Folder, servers: dict[str, str]) -> None:
    folder.run("topology", "apply", "--app", "program", env=servers)
    plant_wrong_parents(MongoStore(servers["TASKFRAMEWORK_STORE__URL"]))
    finding_of_wrong_parents(folder, servers)


def test_a_worker_is_ready_when_the_broker_is_there(folder: Folder, mongo_url: str) -> None:
    nowhere = f"amqp://127.0.0.1:{free_ports(1)[0]}/"
    worker = folder.start(
        "worker", "--app", "program", env={"TASKFRAMEWORK_BROKER__URL": nowhere, "TASKFRAMEWORK_STORE__URL": mongo_url}
    )
    worker.line("Trying again")
    assert worker.end() == 0
    assert "ready" not in [line["event"] for line in worker.log]
