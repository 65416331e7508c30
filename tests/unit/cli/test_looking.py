"""`tasks list`, `tasks explain` and `queues list` on tasks that wait in a file."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import taskframework.brokers.rabbitmq.broker
import taskframework.limits.redis
import taskframework.stores.mongo.store  # noqa: F401 - read before a loop runs
from taskframework.model.outcome import describe
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import HistoryEntry
from taskframework.model.workers import PRESENCE, Presence
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.factories import new_task
from tests.unit.cli.conftest import Cli

BUG = replace(describe(ValueError("a bug"), retryable=False), fingerprint="abc")


@pytest.fixture
def stored(empty_store: None, folder: Path) -> None:
    """An old task that failed, one that waits, and one that runs."""

    async def insert() -> None:
        store = SqliteStore(folder / "taskframework.db")
        await store.open()
        now = store.now()
        failed = new_task(
            now=now - timedelta(hours=3),
            task_id="failed",
            status=TaskStatus.FAILED,
            finished_at=now - timedelta(hours=2),
            error=BUG,
            user_id="ada",
            correlation_id="order-7",
            idempotency_key="once",
        )
        later = now + timedelta(hours=1)
        waiting = new_task(now=now, task_id="waiting", not_before=later, priority="high")
        running = new_task(now=now, task_id="running", status=TaskStatus.RUNNING, progress={"percent": 40})
        await store.insert([failed, waiting, running])
        await store.close()

    asyncio.run(insert())


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    "options",
    [
        ["--user", "ada"],
        ["--before", "1h"],
        ["--error", "A BUG"],
        ["--correlation-id", "order-7"],
        ["--idempotency-key", "once", "--status", "failed"],
        ["--fingerprint", "abc", "--after", "1d"],
        ["--finished-after", "150m", "--finished-before", "90m"],
    ],
    ids=lambda options: options[0],
)
def test_a_list_of_tasks_is_filtered_by_options(cli: Cli, options: list[str]) -> None:
    items = json.loads(cli("tasks", "list", *options, "--json").out)["items"]
    assert [task["task_id"] for task in items] == ["failed"]
    done = cli("tasks", "list", *options, "--after", "1m")
    assert (done.code, done.out, done.err.strip()) == (0, "", "No such tasks.")


@pytest.mark.usefixtures("stored")
def test_a_list_shows_progress_of_what_runs_and_the_error_of_what_failed(cli: Cli) -> None:
    lines = {line.split()[0]: line for line in cli("tasks", "list").out.splitlines()}
    assert lines["running"].endswith("40 %")
    assert lines["failed"].endswith("ValueError: a bug")


@pytest.mark.usefixtures("stored")
def test_showing_a_waiting_task_names_the_command_explain(cli: Cli) -> None:
    assert "taskframework tasks explain waiting" in cli("tasks", "show", "waiting").err
    for task_id in ("running", "failed"):
        assert "explain" not in cli("tasks", "show", task_id).err


@pytest.mark.usefixtures("stored")
def test_a_task_is_explained(cli: Cli) -> None:
    first, because, change = cli("tasks", "explain", "waiting").out.splitlines()
    assert first.split() == ["QUEUED", "not_before"]
    assert because.startswith("It must not start before 20")
    assert change
    told = json.loads(cli("tasks", "explain", "failed", "--json").out)
    assert (told["code"], told["details"]["error"]["message"]) == ("final", "a bug")
    assert cli("tasks", "explain", "nothing").code == 1


@pytest.mark.usefixtures("stored")
def test_queues_tell_what_waits_and_runs(cli: Cli) -> None:
    assert "No worker has declared a task type yet." in cli("queues", "list").err
    cells = cli("top").out.splitlines()[-1].split()
    assert cells == ["test-task", "0", "-", "1", "0", "0.033/s", "0/s", "0/s"]


def test_doctor_tells_that_redis_is_away(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "rate limits" not in cli("doctor").out
    monkeypatch.setenv("TASKFRAMEWORK_RATE_LIMITER__TYPE", "redis")
    monkeypatch.setenv("TASKFRAMEWORK_RATE_LIMITER__REDIS_URL", "redis://ada:secret@127.0.0.1:1")
    done = cli("doctor", "--json")
    [found] = [finding for finding in json.loads(done.out)["findings"] if finding["part"] == "rate limits"]
    assert (done.code, found["facts"]["url"]) == (1, "redis://ada:***@127.0.0.1:1")
    [problem] = found["problems"]
    assert problem.startswith("Redis does not answer: ")
    assert "rate_limiter.redis_url" in problem


def test_doctor_reads_the_keys_of_tokens_as_the_api_does(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "tokens" not in cli("doctor").out
    monkeypatch.setenv("TASKFRAMEWORK_SECURITY__JWT_ISSUER", "https://id.example")
    monkeypatch.setenv("TASKFRAMEWORK_SECURITY__JWT_AUDIENCE", "tasks")

    def checked(jwt_keys: str) -> dict[str, Any]:
        monkeypatch.setenv("TASKFRAMEWORK_SECURITY__JWT_KEYS", jwt_keys)
        done = cli("doctor", "--json")
        found: dict[str, Any]
        [found] = [finding for finding in json.loads(done.out)["findings"] if finding["part"] == "tokens"]
        assert done.code == (1 if found["problems"] else 0)
        return found

    [problem] = checked("https://ada:secret@127.0.0.1:1/keys")["problems"]
    assert problem.startswith("The keys for tokens at https://ada:***@127.0.0.1:1/keys cannot be read: ")
    assert "Check security.jwt_keys, and that the server in it answers." in problem
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    (folder / "issuer.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    facts = {"keys": "issuer.pem", "ids": "a key without an id"}
    assert checked("issuer.pem") == {"part": "tokens", "facts": facts, "problems": []}


def test_doctor_says_what_it_knows_without_a_settings_file_and_without_servers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKFRAMEWORK_STORE__URL", "sqlite:///own.db")
    facts = {found["part"]: found["facts"] for found in json.loads(cli("doctor", "--json").out)["findings"]}
    assert facts["settings"] == {"file": "none", "given by it or the environment": "store.url"}
    assert set(facts["broker"]) == {"url", "broker"}, "another process cannot count the messages of the embedded broker"


@pytest.mark.usefixtures("stored")
def test_doctor_names_what_cannot_be_read(cli: Cli, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "taskframework.db")) as raw, raw:
        raw.execute("UPDATE tasks SET document = json_set(document, '$.task_type', 7) WHERE task_id = 'waiting'")
        raw.execute("INSERT INTO records (id, kind, data, revision) VALUES ('worker/w', 'worker', '{}', 'r')")
    done = cli("doctor", "--json")
    assert done.code == 1
    problems = [problem for finding in json.loads(done.out)["findings"] for problem in finding["problems"]]
    assert any("1 task that cannot be read, so that lists leave them out: waiting" in problem for problem in problems)
    assert any("The record worker/w in the store cannot be read. It was changed by hand" in it for it in problems)


def test_doctor_names_tasks_whose_events_wait_although_a_worker_runs(cli: Cli, empty_store: None, folder: Path) -> None:
    def events_problems() -> list[str]:
        findings = json.loads(cli("doctor", "--json").out)["findings"]
        [workers] = [finding for finding in findings if finding["part"] == "workers"]
        return [problem for problem in workers["problems"] if "events of" in problem]

    async def insert(**changes: Any) -> None:
        store = SqliteStore(folder / "taskframework.db")
        await store.open()
        if changes:
            await store.insert([new_task(now=store.now() - timedelta(minutes=2), task_id="refused", **changes)])
        else:
            now = store.now()
            worker = Presence("worker-1", "attic", 7, "1.0", ("test-task",), 10, 0, now, now)
            await store.write_records([PRESENCE.new("worker-1", content=worker)])
        await store.close()

    submitted = HistoryEntry(1, "submitted", datetime.now(UTC) - timedelta(minutes=2), 0, None, None)
    asyncio.run(insert(sequence=1, history=(submitted,), publish_at=submitted.at))
    assert events_problems() == [], "no process runs, so they wait for that reason"
    asyncio.run(insert())
    [problem] = events_problems()
    assert problem.startswith("Workers run, but events of 1 task have waited for more than a minute: refused. ")


def test_doctor_tells_that_it_does_not_check_the_api_of_the_environment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "/readyz" not in cli("doctor").err
    monkeypatch.setenv("TASKFRAMEWORK_API", "https://user:secret@tasks.example/")
    told = cli("doctor").err
    assert "not the API in TASKFRAMEWORK_API" in told
    assert "@tasks.example/readyz, or run doctor on its machine." in told
    assert "secret" not in told


def test_doctor_goes_on_where_a_certificate_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BROKER__URL": "amqps://127.0.0.1:1/",
        "BROKER__CA_FILE": "gone.pem",
        "RATE_LIMITER__TYPE": "redis",
        "RATE_LIMITER__REDIS_URL": "rediss://127.0.0.1:1",
        "RATE_LIMITER__REDIS_CA_FILE": "gone.pem",
    }.items():
        monkeypatch.setenv(f"TASKFRAMEWORK_{name}", value)

    def told() -> dict[str, str]:
        findings = json.loads(cli("doctor", "--json").out)["findings"]
        return {it["part"]: it["problems"][0].partition(":")[0] for it in findings if it["problems"]}

    assert told() == {"broker": "broker.ca_file", "rate limits": "rate_limiter.redis_ca_file"}
    monkeypatch.setenv("TASKFRAMEWORK_STORE__URL", "mongodb://127.0.0.1:1/tasks")
    monkeypatch.setenv("TASKFRAMEWORK_STORE__CA_FILE", "gone.pem")
    assert told() == {"store": "store.ca_file", "broker": "broker.ca_file"}


def test_doctor_names_a_missing_extra_and_looks_no_further(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "motor", None)
    monkeypatch.setenv("TASKFRAMEWORK_STORE__URL", "mongodb://localhost/tasks")
    told = json.loads(cli("doctor", "--json").out)
    assert [finding["part"] for finding in told["findings"]] == ["versions", "settings", "packages"]
    assert "pip install 'taskframework[mongodb]'" in told["findings"][-1]["problems"][0]
