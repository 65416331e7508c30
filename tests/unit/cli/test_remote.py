"""Commands on a store and on an API at an address: which can do both, and that both print the same."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

import taskframework.api.server
import taskframework.cli.remote.framework  # noqa: F401 - read before a loop runs
from taskframework import BackgroundTaskExecutable, NonRetryableError, Settings, TaskContext, TaskFramework, TaskOptions
from taskframework.api.server import serving
from taskframework.cli.main import build_command_line
from taskframework.cli.remote import admin_operations
from taskframework.cli.remote import operations as remote
from taskframework.cli.remote.views import task_of
from taskframework.client.connection import ApiConnection
from taskframework.client.requests import Call
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.keys import Role, new_key
from taskframework.model.query import DeadMessage
from taskframework.model.replays import BulkActionStatus
from taskframework.model.streams import StreamKey
from taskframework.model.task_fields import ParentLink
from taskframework.model.view import public_view
from taskframework.operations.audit import AuditLog
from taskframework.operations.batches import BatchOperations
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.explain import ExplainOperations
from taskframework.operations.keys import KeyNotFoundError, KeyOperations
from taskframework.operations.limits import LimitOperations
from taskframework.operations.mending import MessageMending
from taskframework.operations.overview import OverviewOperations
from taskframework.operations.queues import QueueOperations
from taskframework.operations.replay_carrier import ReplayCarrier
from taskframework.operations.replays import ReplayOperations
from taskframework.operations.schedules import ScheduleOperations
from taskframework.operations.streams import StreamOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.operations.workers import WorkerOperations
from taskframework.submission.service import TaskSubmissionService
from taskframework.submission.types import TaskTypes
from taskframework.testing.factories import new_task
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_examples import leaves

#: Commands that have no --api, since they run something here or look at what is here.
HERE = {
    *(
        "demo",
        "init",
        "dev",
        "api",
        "worker",
        "events tail",
        "doctor",
        "config show",
        "topology show",
        "topology plan",
        "topology apply",
        "topology migrate",
    ),
}
#: How each other command is tried. A word in capitals stands for one of a kind: each try has an own one.
TRIED = {
    "submit": "submit echo 1 --wait --timeout 20",
    "tasks list": "tasks list --status failed --user ada --after 1h --error NO",
    "tasks show": "tasks show FAILED",
    "tasks cancel": "tasks cancel WAITING --reason enough",
    "tasks subtasks": "tasks subtasks BATCH",
    "tasks signal": 'tasks signal WAITING go {"a":1} --key once',
    "tasks retry": "tasks retry FAILED",
    "tasks watch": "tasks watch DONE",
    "batch submit": "batch submit echo items.ndjson --watch",
    "batch list": "batch list --status completed",
    "batch show": "batch show BATCH",
    "batch watch": "batch watch BATCH",
    "batch results": "batch results BATCH",
    "batch cancel": "batch cancel OPEN",
    "batch retry-failed": "batch retry-failed BROKEN",
    "streams list": "streams list",
    "streams show": "streams show STREAM --user ada",
    "streams results": "streams results STREAM --user ada",
    "streams go-on": "streams go-on HALTED --user ada --position 0",
    "queues list": "queues list",
    "queues pause": "queues pause FREE --reason night",
    "queues resume": "queues resume PAUSED",
    "schedules list": "schedules list",
    "schedules show": "schedules show hourly",
    "schedules create": "schedules create NEW echo 1 --every 1h",
    "schedules update": "schedules update OWN --every 2h",
    "schedules delete": "schedules delete OWN",
    "schedules run": "schedules run hourly",
    "schedules pause": "schedules pause OWN",
    "schedules resume": "schedules resume OWN",
    "dlq list": "dlq list --after 1h --before 0s",
    "dlq show": "dlq show FAILED",
    "dlq replay": "dlq replay FAILED",
    "dlq groups": "dlq groups",
    "dlq edit": "dlq edit FAILED 2 --reason typo",
    "dlq discard": "dlq discard FAILED --reason old",
    "dlq repair": "dlq repair MESSAGE 1 --type echo",
    "replays list": "replays list",
    "replays show": "replays show REPLAY",
    "replays stop": "replays stop REPLAY",
    "audit list": "audit list --action replay",
    "tasks explain": "tasks explain FAILED",
    "top": "top --once",
    "workers": "workers",
    "limits": "limits",
    "keys create": "keys create eve --role reader --rate 5 --burst 7 --expires 1h",
    "keys list": "keys list --limit 1",
    "keys revoke": "keys revoke KEY",
}
#: What is told of these changes while it is told.
_GOES_ON = ("batch cancel", "batch retry-failed")
#: What only the store tells a person.
_STORE_KNOWS = ("Dispatches", "Next dispatch", "Fencing token", "Steps done", "Not before", "Crashes", "File", "Worker")


class Echo(BackgroundTaskExecutable[Any, Any]):
    task_type = "echo"

    async def execute(self, context: TaskContext[Any]) -> Any:
        await context.update_progress({"percent": 50})
        return context.parameters


class Fails(BackgroundTaskExecutable[Any, None]):
    task_type = "fails"
    options = TaskOptions(rate_limit="service")

    async def execute(self, context: TaskContext[Any]) -> None:
        raise NonRetryableError(f"no {context.parameters}")


class Idle(BackgroundTaskExecutable[Any, None]):
    task_type = "idle"

    async def execute(self, context: TaskContext[Any]) -> Any:
        return context.wait_for(signal="never")


@dataclass
class Installation:
    """An installation that serves, in a thread of its own; the commands are in this one."""

    framework: TaskFramework
    loop: asyncio.AbstractEventLoop
    url: str
    key: str

    def do(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(60)

    def made(self, word: str) -> str:
        """One of a kind, new."""
        return str(self.do(self._made(word)))

    async def _made(self, word: str) -> str:
        framework, name = self.framework, f"{word.lower()}-{id(object())}-{len(self._names)}"
        self._names.append(name)
        match word:
            case "FAILED":
                task = await framework.submit("fails", 1, user_id="ada")
            case "DONE":
                task = await framework.submit("echo", {"a": [1, None]}, user_id="ada")
            case "WAITING":
                return (await framework.submit("echo", 1, not_before=datetime.now(UTC) + timedelta(days=1))).task_id
            case "BATCH" | "BROKEN" | "OPEN":
                more: Any = {"not_before": datetime.now(UTC) + timedelta(days=1)} if word == "OPEN" else {}
                kind = "fails" if word == "BROKEN" else "echo"
                batch = await framework.submit_batch(kind, [1, 2], chunk_size=1, **more)
                if word != "OPEN":
                    await batch.finished(30)
                return batch.batch_id
            case "STREAM" | "HALTED":
                kind = "fails" if word == "HALTED" else "echo"
                stream: Any = {"key": name, "mode": "serial", "on_failure": "halt"}
                task = await framework.submit(kind, 1, user_id="ada", stream=stream)
            case "FREE" | "PAUSED":
                await framework.services.queues.resume("idle")
                if word == "PAUSED":
                    await framework.services.queues.pause("idle", by="test")
                return "idle"
            case "MESSAGE":
                now = framework.services.store.now()
                message = DeadMessage(name, b"{", {}, "tasks.echo.normal", "it is not JSON", now, None, None)
                await framework.services.store.keep_dead_message(message)
                return name
            case "REPLAY":
                replays, nothing = framework.services.replays, ActionFilter(task_type="none")
                while True:  # this process may be done with an action before it is stopped
                    begun = await replays.begin(Action.RETRY, nothing, by="test")
                    if (stopped := await replays.stop(begun.replay_id)).status is BulkActionStatus.STOPPED:
                        return stopped.replay_id
            case "KEY":
                key, _ = await framework.services.keys.create("eve", [Role.READER], by="test")
                return key.prefix
            case "OWN":
                from taskframework.submission.schedules import parse_definition

                definition = parse_definition({"task_type": "echo", "parameters": 1, "every": "1h"})
                await framework.services.schedules.create(name, definition)
                return name
            case _:
                return name
        await task.finished(30)
        return name if word in ("STREAM", "HALTED") else task.task_id

    def __post_init__(self) -> None:
        self._names: list[str] = []


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[str]:
    """The address of a server that gives these answers one after the other, and the last one again and again."""
    left = list(answers)

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        do_DELETE = do_GET  # noqa: N815 (the base class looks for this name)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def installation(folder: Path) -> Iterator[Installation]:
    (folder / "items.ndjson").write_text("1\n2\n")
    url = f"sqlite:///{folder / 'taskframework.db'}"
    limits = {"providers": {"service": {"rate": 1000, "burst_capacity": 1000}}}
    schedules = {"hourly": {"task_type": "echo", "parameters": 1, "cron": "0 * * * *"}}
    settings = {"store": {"url": url}, "api": {"port": 0}, "rate_limiter": limits, "schedules": schedules}
    (folder / "application.yml").write_text(json.dumps(settings))
    started: Future[Installation] = Future()
    over = asyncio.Event()

    async def serve() -> None:
        framework = TaskFramework(Settings.model_validate(settings))
        for executable in (Echo, Fails, Idle):
            framework.register(executable)
        async with framework.running(worker=True, api=False), serving(framework) as server:
            _, key = await framework.services.keys.create("root", [Role.ADMIN], by="test")
            framework.services.callers._has_keys = True  # a second later
            started.set_result(Installation(framework, asyncio.get_running_loop(), server.url, key))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    serving_now = started.result(30)
    try:
        yield serving_now
    finally:
        serving_now.loop.call_soon_threadsafe(over.set)
        thread.join(30)


@pytest.mark.parametrize(
    ("command", "answer", "said"),
    [
        ("tasks show x", b'{"status": "ok"}', "it has no 'parent_task_id'"),
        ("tasks list", b'{"items": [{"id": 1}], "next_cursor": null}', "it has no 'parent_task_id'"),
        ("top --once", b"[1, 2]", "it is not a JSON object"),
        ("batch show x", b'"hello"', "it is not a JSON object"),
    ],
)
def test_answers_of_another_program_are_refused_as_not_from_an_api(
    cli: Cli, command: str, answer: bytes, said: str
) -> None:
    with answering((200, answer)) as url:
        done = cli(*command.split(), "--api", url)
    assert done.code == 1
    assert "is not from a taskframework API" in done.err
    assert said in done.err


@pytest.mark.parametrize("name", [".", "..", "a/b"])
@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("tasks show", "task"),
        ("tasks cancel", "task"),
        ("tasks explain", "task"),
        ("batch show", "batch"),
        ("workers", "worker"),
        ("queues pause", "task type"),
        ("schedules show", "schedule"),
        ("schedules run", "schedule"),
        ("keys revoke", "API key"),
        ("replays stop", "action on many tasks"),
    ],
)
def test_a_name_that_cannot_be_part_of_an_address_is_not_found(cli: Cli, command: str, what: str, name: str) -> None:
    done = cli(*command.split(), name, "--api", "http://127.0.0.1:1")
    assert (done.code, f"There is no {what} {name!r}." in done.err) == (1, True), done.err


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_a_stream_whose_key_leads_elsewhere_is_not_found(cli: Cli, key: str) -> None:
    """The answer was that of another address: "Not Found", and how to read /docs."""
    for command in (("show",), ("results",), ("go-on",)):
        done = cli("streams", *command, key, "--api", "http://127.0.0.1:1")
        assert (done.code, f"There is no stream {key!r}." in done.err) == (1, True), done.err
        assert "`taskframework streams list` shows both" in done.err


@pytest.mark.parametrize("name", [".", "..", "a/b", ""])
def test_a_signal_whose_name_leads_elsewhere_is_refused(cli: Cli, name: str) -> None:
    """The answer was that of another address: "Method Not Allowed"."""
    done = cli("tasks", "signal", "some-id", name, "1", "--api", "http://127.0.0.1:1")
    assert (done.code, "name: " in done.err, "No answer" in done.err) == (1, True, False), done.err


def test_a_command_that_tries_again_says_why_it_takes_long(cli: Cli) -> None:
    empty = b'{"items": [], "next_cursor": null}'
    away = b'{"code": "store_unavailable", "detail": "The store is away.", "hint": "", "status": 503}'
    with answering((502, b"<html>"), (503, away), (503, away), (200, empty)) as url:
        done = cli("tasks", "list", "--json", "--api", url)
    assert (done.code, json.loads(done.out)) == (0, {"items": [], "next_cursor": None})
    assert done.err.splitlines() == [
        f"{url} cannot serve the request now (502); trying again for 30 s in all ...",
        f"{url} cannot serve the request now (503): The store is away; trying again for 30 s in all ...",
    ]


_GONE = b'{"code": "schedule_not_found", "detail": "There is no schedule nightly.", "hint": "", "status": 404}'
_BUSY = b'{"code": "too_many_requests", "detail": "Too many.", "hint": "", "status": 429}'


@pytest.mark.parametrize(
    ("answers", "code"),
    [([(502, b"<html>"), (404, _GONE)], 0), ([(404, _GONE)], 1), ([(429, _BUSY), (404, _GONE)], 1)],
    ids=["the first request may have deleted it", "it never existed", "the first request did nothing"],
)
def test_a_delete_whose_answer_was_lost_is_done(cli: Cli, answers: list[tuple[int, bytes]], code: int) -> None:
    with answering(*answers) as url:
        done = cli("schedules", "delete", "nightly", "--api", url)
    assert (done.code, "is deleted" in done.out) == (code, code == 0)


def test_a_command_that_needs_an_api_key_names_the_option(cli: Cli, installation: Installation) -> None:
    done = cli("tasks", "list", "--api", installation.url)
    assert (done.code, "--api-key or TASKFRAMEWORK_KEY" in done.err) == (1, True)


def test_every_command_is_tried_on_both_or_known_to_be_for_here() -> None:
    found = dict(leaves(build_command_line()))
    both = {name for name, command in found.items() if "api" in {option.name for option in command.params}}
    assert both == TRIED.keys(), "a command that asks a store can ask an API; try it here"
    assert found.keys() - both == HERE


def test_a_whole_key_is_not_sent_in_an_address(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def revoke(self: object, prefix: str, *, by: str) -> None:
        asked.append(prefix)
        raise KeyNotFoundError(prefix)

    monkeypatch.setattr(remote.RemoteKeys, "revoke", revoke)
    prefix, key = new_key()
    assert cli("keys", "revoke", key, "--api", "http://localhost:1").code == 1
    assert asked == [prefix]


def test_events_are_asked_for_where_the_environment_says(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering((404, b"")) as url:
        monkeypatch.setenv("TASKFRAMEWORK_API", url)
        assert f"No events at {url}" in cli("events", "tail").err
        monkeypatch.setenv("TASKFRAMEWORK_API", "{port: 1}")
        assert "No events at http://127.0.0.1:1:" in cli("events", "tail").err
        assert f"No events at {url}" in cli("events", "tail", "--api", url).err


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        (remote.RemoteSubmission, TaskSubmissionService),
        (remote.RemoteTasks, TaskOperations),
        (admin_operations.RemoteDeadLetters, DeadLetterOperations),
        (admin_operations.RemoteMending, MessageMending),
        (admin_operations.RemoteReplays, ReplayOperations),
        (admin_operations.RemoteCarrier, ReplayCarrier),
        (admin_operations.RemoteAudit, AuditLog),
        (remote.RemoteTypes, TaskTypes),
        (remote.RemoteQueues, QueueOperations),
        (remote.RemoteExplain, ExplainOperations),
        (remote.RemoteOverview, OverviewOperations),
        (remote.RemoteWorkers, WorkerOperations),
        (remote.RemoteLimits, LimitOperations),
        (remote.RemoteKeys, KeyOperations),
        (remote.RemoteSchedules, ScheduleOperations),
        (remote.RemoteStreams, StreamOperations),
        (remote.RemoteBatches, BatchOperations),
    ],
)
def test_calls_to_an_api_have_the_parameters_of_calls_to_a_store(asked: type, done: type) -> None:
    for name, method in inspect.getmembers(asked, inspect.isfunction):
        if not name.startswith("_") and getattr(method, "__wrapped__", None) is not getattr(done, name):
            there = {**inspect.signature(getattr(done, name)).parameters}
            for given in (
                "broker",
                "edited",
                "refusal",
                "replay_id",
                "revision",
            ):  # by processes of the installation alone
                if given in there and there[given].default is None:
                    there.pop(given)
            assert dict(inspect.signature(method).parameters) == there, f"{asked.__name__}.{name}"


def test_commands_print_the_same_from_a_store_and_an_api(installation: Installation, cli: Cli) -> None:
    there = ("--api", installation.url, "--api-key", installation.key)
    for word in ("FAILED", "DONE", "BATCH", "STREAM", "KEY"):
        installation.made(word)
    # Lists and the overview first: what is changed goes on changing.
    first = [line for name, line in TRIED.items() if name.endswith((" list", " groups")) or name == "top"]
    for line in sorted(TRIED.values(), key=lambda line: line not in first):
        for form in ((), ("--json",)):
            here, remotely = (cli(*_words(line, installation), *where, *form) for where in ((), there))
            assert (here.code, remotely.code) == (0, 0), f"{line}: {here} {remotely}"
            if not line.startswith(_GOES_ON):
                assert _comparable(remotely.out) == _comparable(here.out), (line, form)
            elif form:
                assert json.loads(remotely.out).keys() == json.loads(here.out).keys()
            else:
                assert _comparable(remotely.out)[0] == _comparable(here.out)[0]


def test_a_list_of_one_user_is_asked_for_as_such(installation: Installation, cli: Cli) -> None:
    installation.made("DONE")
    there = ("--api", installation.url, "--api-key", installation.key, "--json")
    assert json.loads(cli("tasks", "list", "--user", "ada", *there).out)["items"]
    assert json.loads(cli("tasks", "list", "--user", "nobody", *there).out)["items"] == []


def test_a_list_may_be_asked_for_until_any_time_on_both(installation: Installation, cli: Cli) -> None:
    """With --api, a time that is more than ten years ahead was refused."""
    installation.made("FAILED")
    there = ("--api", installation.url, "--api-key", installation.key)
    for name in ("tasks list --before", "dlq list --before"):
        line = (*name.split(), "2099-01-01T00:00:00Z", "--json")
        assert json.loads(cli(*line, *there).out)["items"], name
        assert json.loads(cli(*line).out)["items"], name
    for kind, chosen in (("tasks cancel", "created_before"), ("dlq replay", "finished_before")):
        line = (*kind.split(), "--where", f"{chosen}=2099-01-01T00:00:00Z", "--dry-run", "--json")
        assert json.loads(cli(*line, *there).out) == json.loads(cli(*line).out), kind


def test_the_next_page_of_a_list_is_asked_for_as_such(installation: Installation, cli: Cli) -> None:
    installation.made("KEY")
    there = ("--api", installation.url, "--api-key", installation.key)
    first = json.loads(cli("keys", "list", "--limit", "1", "--json", *there).out)
    rest = ("keys", "list", "--cursor", first["next_cursor"], "--json")
    assert first["items"][0] not in json.loads(cli(*rest, *there).out)["items"]
    assert cli(*rest, *there).out == cli(*rest).out


def _words(line: str, installation: Installation) -> list[str]:
    return [installation.made(word) if re.fullmatch("[A-Z]{3,}", word) else word for word in line.split()]


_ID = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|tf_[0-9a-f]{10}(_[\w-]+)?|(own|new|stream|halted|message)-\d+-\d+"
)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|Z)?")
_LENGTH = re.compile(r"(in |\+ *)?\d[\d.,]* (ms|s|min|h|d)\b( ago)?|(just )?now")
#: How old the numbers by status are, shown only if they are not new; each of the two asks at another time.
_AGE = re.compile(r" +as of \d.* ago$")
_SPEED = re.compile(r'("(rate|\w+_per_second)": )[\d.]+|[\d.,]+( per second|/s\b)')
#: Who acted: here the user of the machine, there the key's.
_WHO = re.compile(r"cli:\w+|cli\b|\broot\b|anonymous")


def _comparable(text: str) -> list[str]:
    text = re.sub(r'\n *File ".*\n.*', "", text)  # the traceback of an error, which a caller does not see
    lines = [line for line in text.splitlines() if not line.strip().startswith(_STORE_KNOWS)]
    known = ((_AGE, ""), (_ID, "ID"), (_MOMENT, "TIME"), (_LENGTH, "LENGTH"), (_SPEED, "SPEED"), (_WHO, "WHO"))
    for pattern, replaced in (*known, (re.compile(" +"), " ")):
        lines = [pattern.sub(replaced, line) for line in lines]
    return [line.strip() for line in lines if line.strip()]


def test_refusals_read_the_same(installation: Installation, cli: Cli) -> None:
    there = ("--api", installation.url, "--key", installation.key)
    for line in ("tasks show nobody", "dlq show nobody", "keys revoke tf_0", "batch show nobody", "submit unknown 1"):
        here, remotely = cli(*line.split()), cli(*line.split(), *there)
        assert (here.code, remotely.code) == (1, 1)
        assert remotely.err.split(".")[0] == here.err.split(".")[0], line
    refused = cli("tasks", "list", "--api", installation.url, "--key", "tf_0000000000_x")
    assert (refused.code, "is not valid" in refused.err) == (1, True)
    nobody = cli("tasks", "list", "--api", "x")
    assert (nobody.code, "not the address of an API" in nobody.err) == (1, True)


def test_an_empty_key_is_refused_on_both(installation: Installation, cli: Cli) -> None:
    """As that of a variable without a value: with another key, a repetition would be another signal."""
    for where in ((), ("--api", installation.url, "--api-key", installation.key)):
        refused = cli("tasks", "signal", installation.made("WAITING"), "go", "--key", "", *where)
        assert (refused.code, "must be 1 to 200 printable ASCII characters" in refused.err) == (1, True)


def test_an_empty_reason_is_none_on_both(installation: Installation, cli: Cli) -> None:
    """With --api, another pause and another action were told of, which there were not."""
    for where in (("--api", installation.url, "--api-key", installation.key), ()):
        paused = cli("queues", "pause", installation.made("FREE"), "--reason", "", "--json", *where)
        assert (paused.code, paused.err, json.loads(paused.out)["paused"]["reason"]) == (0, "", None)
        cancel = ("tasks", "cancel", "--where", "parent=nobody", "--background", "--reason", "")
        assert "is running" not in cli(*cancel, *where).err
        [newest, *_] = json.loads(cli("audit", "list", "--json").out)["items"]
        assert (newest["action"], newest["reason"]) == ("task.cancel", None)


def test_a_batch_that_was_submitted_before_is_told_as_such_on_both(installation: Installation, cli: Cli) -> None:
    there = ("--api", installation.url, "--api-key", installation.key)
    line = ("batch", "submit", "echo", "items.ndjson", "--user", "ada", "--idempotency-key", "once")
    told = [cli(*line, *where).out for where in (there, there, ())]
    assert [text.startswith("Submitted before") for text in told] == [False, True, True], told


def test_a_wrong_option_has_the_same_hint_on_both(installation: Installation, cli: Cli) -> None:
    for option in (("--debounce", '{"key": "z"}'), ("--stream", '{"key": ""}')):
        line = ("submit", "echo", "1", *option)
        here, remotely = cli(*line), cli(*line, "--api", installation.url, "--api-key", installation.key)
        assert (here.code, remotely.code) == (1, 1)
        assert remotely.err.splitlines()[-1] == here.err.splitlines()[-1], option


def test_an_unknown_task_type_is_named_where_nothing_is_found(installation: Installation, cli: Cli) -> None:
    lines = (
        "tasks list --type fial",
        "tasks cancel --where type=fial --dry-run",
        "tasks retry --where type=fial",
        "batch list --type fial",
        "dlq list --type fial --json",
        "dlq groups --type fial",
        "dlq replay --where type=fial --dry-run",
        "dlq discard --where type=fial --reason old --background",
    )
    for where in ((), ("--api", installation.url, "--key", installation.key)):
        for line in lines:
            done = cli(*line.split(), *where)
            assert (done.code, "There is no task type 'fial'. Did you mean 'fails'?" in done.err) == (0, True), (
                line,
                where,
                done,
            )
        assert "no task type" not in cli("tasks", "list", "--type", "fails", *where).err


def test_the_environment_gives_the_address_of_the_api(
    installation: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = installation.made("DONE")
    monkeypatch.setenv("TASKFRAMEWORK_STORE__URL", "sqlite:///nowhere.db")
    assert cli("tasks", "show", task_id).code == 1
    monkeypatch.setenv("TASKFRAMEWORK_API", installation.url)
    monkeypatch.setenv("TASKFRAMEWORK_KEY", installation.key)
    assert task_id in cli("tasks", "show", task_id).out
    monkeypatch.setenv("TASKFRAMEWORK_API", "{port: 8001}")  # the section of the settings, as ever
    assert cli("tasks", "show", task_id).code == 1
    assert "8001" in cli("config", "show").out


def test_results_of_a_stream_are_followed_on_both(
    installation: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = installation.made("STREAM")
    told: list[Any] = []

    def print_one(value: object) -> None:
        told.append(value)
        raise KeyboardInterrupt

    monkeypatch.setattr("taskframework.cli.streams.print_json_line", print_one)
    for where in ((), ("--api", installation.url, "--key", installation.key)):
        assert cli("streams", "results", key, "--user", "ada", "--follow", *where).code == 130
    here, there = told
    assert here == there
    assert (here["position"], here["status"], here["result"]) == (0, "COMPLETED", 1)


def _unreachable(asked: list[Call]) -> ApiConnection:
    """An API that notes what it is asked, and does not answer."""

    class Asked:
        async def ask(self, call: Call) -> Any:
            asked.append(call)
            raise ConnectionError

    return cast(ApiConnection, Asked())


async def test_a_stream_is_continued_by_one_request_whatever_is_in_its_key() -> None:
    asked = list[Call]()
    with pytest.raises(ConnectionError):
        await remote.RemoteStreams(_unreachable(asked)).go_on(StreamKey("ada", "a/../b"), position=4)
    [call] = asked
    assert not call.is_repeatable, "it could pass the turn of the next task"
    assert call.path == "/streams/a%2F..%2Fb/go-on"
    assert call.query == {"user_id": "ada", "position": 4}


async def test_a_list_sends_by_as_a_condition_and_a_change_does_not_send_its_actor() -> None:
    asked = list[Call]()
    api = _unreachable(asked)
    with pytest.raises(ConnectionError):
        await admin_operations.RemoteAudit(api).list_entries(limit=1, by="ada", action="replay")
    with pytest.raises(ConnectionError):
        await remote.RemoteKeys(api).revoke("tfk_1", by="ada")
    assert [call.query for call in asked] == [{"limit": 1, "by": "ada", "action": "replay"}, {}]


def test_a_sub_task_keeps_its_slot_on_its_way_over_http() -> None:
    sub_task = new_task(parent=ParentLink("parent", 0, 7))
    assert task_of(public_view(sub_task)).parent == sub_task.parent
    earlier_release = {name: value for name, value in public_view(sub_task).items() if name != "slot"}
    assert task_of(earlier_release).parent == ParentLink("parent", 0, 0)
