"""The interface as a part of another application: its lifespan, its own log-in, its OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import from_thread
from fastapi import APIRouter, FastAPI, HTTPException, Request
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.embedded  # noqa: F401
from taskframework import (
    Caller,
    ConfigurationError,
    NotRunningError,
    Role,
    Settings,
    StoreOnlyError,
    TaskFramework,
    mount,
    task,
)
from taskframework.api.callers import is_caller_still_valid
from taskframework.model.scope import Scope
from taskframework.stores.sqlite import ExecutionLock

TASKS = "/jobs/api/v1/tasks"
Client = Callable[[Starlette], Any]
PEOPLE = {
    "ann": Caller("ann", (Role.SUBMITTER,)),
    "bob": Caller("bob", ["reader"]),
    "boss": Caller("boss", (Role.OPERATOR,)),
}


@task("double")
def double(parameters: int) -> int:
    return parameters * 2


@pytest.fixture
def framework(tmp_path: Path) -> TaskFramework:
    made = TaskFramework(Settings.model_validate({"store": {"url": f"sqlite:///{tmp_path / 'tasks.db'}"}}))
    made.register(double)
    return made


async def who_asks(request: Request) -> Caller | None:
    name = request.cookies.get("name")
    if name == "nobody":
        raise HTTPException(401, "Log in again.", headers={"WWW-Authenticate": "Cookie"})
    if name == "banned":
        raise HTTPException(403, "You have left.")
    return PEOPLE.get(name or "")


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app)
        yield await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://shop"))


def as_user(name: str) -> dict[str, str]:
    return {"Cookie": f"name={name}"}


async def test_the_framework_runs_inside_the_applications_own_lifespan(framework: TaskFramework) -> None:
    happened: list[object] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        happened.append(framework.is_running)
        yield {"shop": "open"}
        happened.append(framework.is_running)

    app = FastAPI(lifespan=lifespan)
    mount(app, framework, "/jobs")
    async with app.router.lifespan_context(app) as state:
        assert state == {"shop": "open"}
        assert framework.is_running
        assert framework.process.worker is not None
    assert happened == [False, False]


async def test_a_second_process_on_a_sqlite_file_is_refused_in_one_line(
    framework: TaskFramework, tmp_path: Path
) -> None:
    app, sent = FastAPI(), list[Any]()
    mount(app, framework, "/jobs")

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    first = ExecutionLock(tmp_path / "tasks.db")
    with first, pytest.raises(ConfigurationError) as refused:
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": str(refused.value)}], "what a server logs"


async def test_an_application_may_start_it_by_itself_and_be_no_fastapi(framework: TaskFramework) -> None:
    app = Starlette()
    mount(app, framework, "/jobs", starts=False)
    async with client_of(app) as client:
        assert (await client.get(TASKS)).json()["code"] == "not_running"
        async with framework.running(worker=False):
            assert (await client.get(TASKS)).json()["items"] == []
            assert "/jobs/docs lists all" in (await client.get("/jobs/nowhere/at/all")).json()["hint"]
            for body, said in {
                '{"what": 1}': " /jobs/docs describes the request.",
                '{"task_type": "double", "parameters": "x"}': "GET /jobs/api/v1/task-types has its schema.",
            }.items():
                refused = await client.post(TASKS, content=body, headers={"Content-Type": "application/json"})
                assert refused.json()["hint"].endswith(said)
            assert "<code>GET /jobs/api/v1/me</code>" in (await client.get("/jobs/docs")).text


async def test_a_process_that_only_opened_the_store_pauses_and_resumes_a_type(framework: TaskFramework) -> None:
    """It did, but answered 503, and the audit log said that both were refused."""
    app = FastAPI()
    mount(app, framework, "/jobs", worker=False)
    async with client_of(app) as client:
        with pytest.raises(StoreOnlyError):
            _ = framework.process
        await client.post(TASKS, json={"task_type": "double", "parameters": 2})
        queues = "/jobs/api/v1/admin/queues"
        for change, is_paused in (("pause", True), ("resume", False)):
            changed = await client.post(f"{queues}/double/{change}")
            assert changed.status_code == 200, changed.text
            assert (changed.json()["is_paused"], changed.json()["messages"]) == (is_paused, None)
            assert (await client.get(f"{queues}/double")).json() == changed.json()
            assert (await client.get(queues)).json()["items"] == [changed.json()]
        entries = (await client.get("/jobs/api/v1/admin/audit")).json()["items"]
        assert [(entry["action"], entry["refusal"]) for entry in entries] == [
            ("queue.resume", None),
            ("queue.pause", None),
        ]


async def test_the_application_decides_who_each_caller_is(framework: TaskFramework) -> None:
    app = FastAPI()
    mount(app, framework, "/jobs", caller=who_asks)
    async with client_of(app) as client:
        body = {"task_type": "double", "parameters": 2}
        accepted = await client.post(TASKS, json=body, headers=as_user("ann"))
        assert (accepted.status_code, accepted.json()["user_id"]) == (202, "ann")
        place = accepted.headers["location"]
        assert (await client.get(place, headers=as_user("ann"))).status_code == 200
        assert (await client.get(place, headers=as_user("bob"))).status_code == 404
        assert (await client.get(place, headers=as_user("boss"))).status_code == 200
        refused = await client.post(TASKS, json=body, headers=as_user("bob"))
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_an_unknown_caller_is_refused_although_there_are_no_keys(framework: TaskFramework) -> None:
    app = FastAPI()
    mount(app, framework, "/jobs", caller=lambda request: who_asks(request))
    async with client_of(app) as client:
        for name, status, said, challenge in [
            ("stranger", 401, "The request has no API key or token.", "Bearer"),
            ("nobody", 401, "Log in again.", "Cookie"),
            ("banned", 403, "You have left.", None),
        ]:
            answer = await client.get(TASKS, headers=as_user(name))
            assert (answer.status_code, answer.json()["detail"].startswith(said)) == (status, True), answer.text
            assert answer.headers.get("www-authenticate") == challenge
        assert (await client.get("/jobs/healthz")).status_code == 200
        key = await framework.services.keys.create("robot", [Role.SUBMITTER], by="test")
        answer = await client.get(TASKS, headers={"Authorization": f"Bearer {key[1]}"})
        assert answer.status_code == 200


async def test_a_function_that_tells_no_caller_is_a_bug_and_lets_nobody_in(framework: TaskFramework) -> None:
    app = FastAPI()
    mount(app, framework, "/jobs", caller=lambda request: "ann")  # type: ignore[arg-type,return-value]
    async with client_of(app) as client:
        assert (await client.get(TASKS)).status_code == 500


async def test_a_stream_goes_on_while_the_application_knows_its_caller(framework: TaskFramework) -> None:
    app = FastAPI()
    mount(app, framework, "/jobs", caller=who_asks)
    [api] = [route.app for route in app.routes if isinstance(route, Mount)]
    scope = {"type": "http", "app": api, "headers": [(b"cookie", b"name=ann")]}
    scope["taskframework.is_identified_by_program"] = True
    earlier = replace(PEOPLE["ann"], expires_at=datetime.now(UTC) + timedelta(hours=1))
    for caller, counts in ((PEOPLE["ann"], True), (earlier, True), (PEOPLE["boss"], False)):
        assert await is_caller_still_valid(Request({**scope, "taskframework.caller": caller})) is counts
    for caller in (PEOPLE["ann"], earlier):
        gone = Request({**scope, "headers": [(b"cookie", b"name=nobody")], "taskframework.caller": caller})
        assert not await is_caller_still_valid(gone)


async def test_a_stream_ends_with_the_log_in_though_the_application_failed_to_tell_once(
    framework: TaskFramework, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskframework.api.event_streams.REMEMBERED_SECONDS", 0.01)
    answers: list[Caller | ConnectionError] = [
        PEOPLE["boss"],
        ConnectionError("the sessions are away"),
        PEOPLE["boss"],
    ]

    def who_is_logged_in(request: Request) -> Caller | None:
        answer = answers.pop(0) if answers else None
        if isinstance(answer, ConnectionError):
            raise answer
        return answer

    app = FastAPI()
    mount(app, framework, "/jobs", caller=who_is_logged_in)
    async with client_of(app) as client, asyncio.timeout(5):
        assert (await client.get("/jobs/api/v1/events")).status_code == 200
    assert caplog.text.count("ConnectionError: the sessions are away") == 1


class TaskView(BaseModel):
    """A model of the application with a name that the interface has, too."""

    title: str


def document_of(framework: TaskFramework, *prefixes: str, **options: Any) -> dict[str, Any]:
    app = FastAPI()

    @app.get("/views")
    def views() -> TaskView:
        return TaskView(title="")

    app.openapi()  # asked for too early
    for prefix in prefixes:
        mount(app, framework, prefix, **options)
    assert app.openapi() is app.openapi()
    return app.openapi()


def test_the_applications_document_describes_the_interface(framework: TaskFramework) -> None:
    document = document_of(framework, "/jobs")
    assert list(document["components"]["schemas"]["TaskView"]["properties"]) == ["title"]
    submit = document["paths"][TASKS]["post"]
    assert submit["operationId"] == "jobs_submit_task"
    assert submit["security"] == [{"jobs_key": []}, {}]
    assert document["components"]["securitySchemes"]["jobs_key"]["scheme"] == "bearer"
    shown = submit["responses"]["202"]["content"]["application/json"]["schema"]["$ref"]
    assert shown == "#/components/schemas/jobs_TaskView"
    own = document["paths"]["/views"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert own == "#/components/schemas/TaskView"


def test_every_reference_leads_somewhere_and_every_name_is_used_once(framework: TaskFramework) -> None:
    document = document_of(framework, "/jobs", "/v2/jobs")
    references: set[str] = set()

    def look(part: Any) -> None:
        if isinstance(part, dict):
            references.update(value for name, value in part.items() if name == "$ref")
        for value in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            look(value)

    look(document)
    assert {reference.rpartition("/")[2] for reference in references} <= document["components"]["schemas"].keys()
    ids = [operation["operationId"] for ways in document["paths"].values() for operation in ways.values()]
    assert len(ids) == len(set(ids)) > 100


def test_with_a_login_of_the_application_the_document_names_no_api_keys(framework: TaskFramework) -> None:
    document = document_of(framework, "/jobs", caller=who_asks)
    assert "security" not in document["paths"][TASKS]["post"]
    assert "securitySchemes" not in document["components"]


def test_the_document_may_be_left_alone(framework: TaskFramework) -> None:
    assert list(document_of(framework, "/jobs", in_openapi=False)["paths"]) == ["/views"]


@pytest.mark.parametrize("prefix", ["", "/", "jobs", "jobs/", "/jobs/{n}"])
def test_a_prefix_that_is_none_is_refused(framework: TaskFramework, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a path"):
        mount(FastAPI(), framework, prefix)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((TaskFramework(), FastAPI()), "with a TaskFramework and a FastAPI"),
        ((APIRouter(), TaskFramework()), "with a APIRouter and a TaskFramework"),
        ((FastAPI(), TaskFramework), "with a FastAPI and TaskFramework"),
        ((FastAPI(), TaskFramework(), None), "The prefix is a NoneType"),
    ],
    ids=["in the wrong order", "a router", "the class", "no prefix"],
)
def test_mounting_wrong_arguments_is_refused_with_their_names(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        mount(*arguments)


@pytest.mark.parametrize("caller", [PEOPLE["ann"], lambda: None], ids=["caller", "without the request"])
def test_a_caller_that_cannot_be_asked_is_refused(framework: TaskFramework, caller: Any) -> None:
    with pytest.raises(ConfigurationError, match="does not say who makes a request"):
        mount(FastAPI(), framework, "/jobs", caller=caller)


async def test_a_plain_route_submits_on_the_event_loop_of_the_framework(framework: TaskFramework) -> None:
    app = FastAPI()

    @app.post("/plain/{number}")
    def plain(number: int) -> str:
        return from_thread.run(framework.submit, double, number).task_id

    @app.post("/wrong/{number}")
    def wrong(number: int) -> str:
        with pytest.raises(NotRunningError, match="another event loop"):
            asyncio.run(framework.submit(double, number))
        return "refused"

    mount(app, framework, "/jobs")
    async with client_of(app) as client:
        assert (await client.post("/wrong/2")).json() == "refused"
        task_id = (await client.post("/plain/2")).json()
        assert await framework.handle(task_id, double).result(timeout=60) == 4


def test_a_prefix_with_a_slash_at_its_end_is_refused_with_the_right_one(framework: TaskFramework) -> None:
    with pytest.raises(ConfigurationError, match="'/bg/tasks/' must not end with a slash") as refused:
        mount(FastAPI(), framework, "/bg/tasks/")
    assert refused.value.hint == 'Write "/bg/tasks".'


@pytest.mark.parametrize(("name", "error"), [(None, TypeError), (5, TypeError), ("", ValueError), ("Zoë", ValueError)])
def test_a_caller_without_a_usable_name_is_refused_at_once(name: Any, error: type[Exception]) -> None:
    """Without a name it saw the tasks of all users."""
    with pytest.raises(error, match=r"The principal of a taskframework\.Caller is "):
        Caller(name, ["reader"])
    if not isinstance(name, str):
        with pytest.raises(TypeError, match="use EVERYONE"):
            Scope.of(name)


@pytest.mark.parametrize("name", ["anonymous", "scheduler", "cli:root"])
async def test_a_log_in_with_the_name_of_a_caller_without_a_key_is_refused(framework: TaskFramework, name: str) -> None:
    app = FastAPI()
    mount(app, framework, "/jobs", caller=lambda request: Caller(name, ["operator"]))
    async with client_of(app) as client:
        answer = await client.get(TASKS)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "is reserved for callers without a key" in answer.json()["detail"]


def test_roles_are_given_by_name_and_others_are_refused_at_once() -> None:
    """They failed with the first request that needed one."""
    assert Caller("ann", ["operator", Role.READER]) == Caller("ann", (Role.READER, Role.OPERATOR))
    assert Caller("ann", ["operator"]).may(Role.SUBMITTER)
    wrong: Any
    for wrong in (["boss"], "submitter", None, [1]):
        with pytest.raises(TypeError, match=r"roles of a taskframework\.Caller are .* list of reader, submitter, "):
            Caller("ann", wrong)
