"""Every error is a problem document that says what to do and gives nothing away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from taskframework import Settings, TaskFramework
from taskframework.api.codes import CODES
from taskframework.api.openapi import DocumentedApi
from taskframework.errors import (
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    SubmissionError,
    TaskframeworkError,
)
from taskframework.stores.mongo.faults import IndexMissingError
from taskframework.testing.eventually import eventually
from tests.unit.api.conftest import COUNT_WORDS, DEAD_LETTERS, TASKS, Api, problem_of

SECRET = "mongodb://user:secret@host/db"

Kind = TypeVar("Kind")


@pytest.mark.parametrize("path", ["/api", "/api/v1/", "/api/v1/tasks/", "/api/v2/tasks", "/healthz/", "/x%00"])
async def test_an_unknown_address_is_not_found(api: Api, path: str) -> None:
    problem = problem_of(await api.get(path), 404, "not_found")
    assert problem["instance"] == path


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (f"{TASKS}/", TASKS),
        ("/tasks/x/cancel", f"{TASKS}/x/cancel"),
        ("/admin/keys/", "/api/v1/admin/keys"),
        ("/healthz/", "/healthz"),
    ],
)
async def test_a_misspelt_address_is_answered_with_the_nearest_one(api: Api, path: str, meant: str) -> None:
    assert problem_of(await api.get(path), 404, "not_found")["hint"] == f"Did you mean {meant}?"
    assert "/docs" in problem_of(await api.get(f"{path}/y/z"), 404, "not_found")["hint"]


async def test_a_misspelt_field_is_named_before_a_missing_field(api: Api) -> None:
    problem = problem_of(
        await api.post(TASKS, json={"parameters": {}, "task_typ": "count-words"}), 422, "invalid_request"
    )
    assert problem["detail"].startswith("task_typ: ")
    assert problem["hint"].startswith("Did you mean 'task_type'?")
    assert [error["field"] for error in problem["errors"]] == ["task_type", "task_typ"]


@pytest.mark.parametrize(
    ("path", "times"), [("/api/v2", 0), (f"{TASKS}?state=FAILED", 0), ("/docs", 1), ("/openapi.json", 1)]
)
async def test_the_document_is_made_for_those_who_ask_for_it_and_not_in_the_event_loop(
    api: Api, path: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in: list[threading.Thread] = []
    make = DocumentedApi.openapi

    def openapi(app: DocumentedApi) -> dict[str, Any]:
        if app.openapi_schema is None:
            made_in.append(threading.current_thread())
        return make(app)

    monkeypatch.setattr(DocumentedApi, "openapi", openapi)
    assert (await api.get(path)).status_code in (200, 404, 422)
    assert len(made_in) == times
    assert threading.main_thread() not in made_in


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", TASKS, "GET, POST"),
        ("DELETE", f"{TASKS}/x", "GET"),
        ("OPTIONS", TASKS, "GET, POST"),
        ("GET", f"{TASKS}/x/cancel", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("GET", f"{TASKS}/bulk", "POST"),
        ("PUT", f"{TASKS}/bulk", "POST"),
        ("GET", f"{DEAD_LETTERS}/replay", "POST"),
        ("DELETE", f"{DEAD_LETTERS}/replay", "POST"),
        ("POST", "/docs", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
        ("XYZZY", DEAD_LETTERS, "GET"),
    ],
)
async def test_an_unknown_method_is_refused_with_the_allowed_ones(
    api: Api, method: str, path: str, allowed: str
) -> None:
    answer = await api.request(method, path)
    problem_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


async def test_a_request_of_another_origin_gets_no_cors_headers(api: Api) -> None:
    answer = await api.get(TASKS, headers={"Origin": "https://example.org"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_store_away_is_503_with_a_time_to_come_back(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError(SECRET)

    for name in ("insert", "get", "list_tasks", "apply"):
        monkeypatch.setattr(api.framework.services.store, name, away)
    for answer in [
        await api.post(TASKS, json=COUNT_WORDS),
        await api.get(f"{TASKS}/x"),
        await api.get(f"{TASKS}/x/events"),
        await api.get(TASKS),
        await api.post(f"{TASKS}/x/cancel"),
        await api.post(f"{TASKS}/x/retry"),
        await api.get(DEAD_LETTERS),
        await api.get(f"{DEAD_LETTERS}/x"),
        await api.post(f"{DEAD_LETTERS}/replay", json={"ids": ["x"]}),
    ]:
        problem_of(answer, 503, "store_unavailable")
        assert answer.headers["retry-after"] == "5"
        assert SECRET not in answer.text


async def test_only_the_error_of_a_change_says_that_it_may_have_happened(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    for name in ("insert", "list_tasks"):
        monkeypatch.setattr(api.framework.services.store, name, away)
    change = problem_of(await api.post(TASKS, json=COUNT_WORDS), 503, "store_unavailable")
    read = problem_of(await api.get(TASKS), 503, "store_unavailable")
    assert "not known whether" in change["detail"]
    assert "idempotency key" in change["hint"]
    assert read["detail"] == "The store is away, full or too slow, so the request cannot be answered now."
    assert read["hint"] == "Repeat it in 5 seconds."


async def test_a_store_that_refuses_access_is_an_error_with_the_next_step(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise StoreMisconfiguredError(f"MongoDB refused access: {SECRET}")

    for name in ("insert", "list_tasks", "read_records"):
        monkeypatch.setattr(api.framework.services.store, name, refuse)
    for answer in (await api.post(TASKS, json=COUNT_WORDS), await api.get(TASKS)):
        told = problem_of(answer, 503, "store_unavailable")
        assert "the role readWrite" in told["hint"]
        assert SECRET not in answer.text
    assert SECRET in caplog.text
    assert (await api.get("/readyz")).json()["checks"]["store"] == f"MongoDB refused access: {SECRET}"


async def test_a_list_whose_index_is_being_built_can_be_asked_for_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def no_index(*_: object, **__: object) -> None:
        raise IndexMissingError

    monkeypatch.setattr(api.framework.services.store, "list_tasks", no_index)
    answer = await api.get(TASKS)
    told = problem_of(answer, 503, "store_unavailable")
    assert told["detail"].startswith("MongoDB: an index is missing. It is created again")
    assert told["hint"].startswith("Repeat it later: ")
    assert answer.headers["retry-after"] == "5"
    assert "a request was refused: MongoDB: an index is missing" in caplog.text
    assert not api.framework.process.breaker.is_open, "the store is not away"


async def test_a_failed_request_opens_the_breaker(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests alone find out that the store is away, even in a process in which nothing else asks it."""

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    breaker = api.framework.process.breaker
    with monkeypatch.context() as patch:
        patch.setattr(breaker, "_ping", away)
        patch.setattr(api.framework.services.store, "list_tasks", away)
        problem_of(await api.get(TASKS), 503, "store_unavailable")
        await eventually(lambda: breaker.is_silent)
    await eventually(lambda: not breaker.is_open)


async def test_a_store_that_is_known_to_be_silent_is_not_asked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not answered waits for as long as the driver does, which is longer than most clients wait."""

    async def away() -> None:
        raise StoreUnavailableError

    async def silent(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    breaker, store = api.framework.process.breaker, api.framework.services.store
    with monkeypatch.context() as patch:
        patch.setattr(breaker, "_ping", away)
        for name in ("insert", "get", "list_tasks", "read_records"):
            patch.setattr(store, name, silent)
        assert await breaker.is_away(StoreUnavailableError("gone"))
        async with asyncio.timeout(20):
            for answer in [await api.get(TASKS), await api.post(TASKS, json=COUNT_WORDS), await api.get("/api/v1/me")]:
                told = problem_of(answer, 503, "store_unavailable")
                assert told["detail"] == "The store is away, so the request was not tried."
                assert answer.headers["retry-after"] == "5"
            assert (await api.get("/healthz")).status_code == 200
    await eventually(lambda: not breaker.is_open)
    assert (await api.get(TASKS)).status_code == 200


@pytest.mark.parametrize("error", [RuntimeError(SECRET), StoreError(SECRET), RecursionError(), KeyError("x")])
async def test_an_error_of_ours_gives_nothing_away(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api.framework.services.tasks, "list_tasks", broken)
    answer: httpx.Response = await api.get(f"{TASKS}?error={SECRET}")
    problem_of(answer, 500, "internal_error")
    assert f"a request failed: GET '{TASKS}'" in caplog.messages
    assert SECRET not in answer.text
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records), "the log has it all"


def test_every_refused_submission_has_a_code_of_its_own() -> None:
    kinds = list(_all_of(SubmissionError))
    assert len(kinds) > 5
    for kind in kinds:
        assert CODES[kind.code][0] in (409, 413, 422), f"{kind.__name__} needs an entry in CODES"


def test_every_code_of_an_exception_is_one_of_the_interface() -> None:
    codes = {vars(kind)["code"]: kind for kind in _all_of(TaskframeworkError) if "code" in vars(kind)}
    assert {"task_not_found", "worker_not_found", "parent_finished", "invalid_task"} <= codes.keys() <= CODES.keys()


def _all_of(kind: type[Kind]) -> Iterator[type[Kind]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _all_of(child)


async def test_a_process_with_only_the_store_refers_to_the_process_that_executes(tmp_path: Path) -> None:
    framework = TaskFramework(Settings.model_validate({"store": {"url": f"sqlite:///{tmp_path / 'tasks.db'}"}}))
    async with framework.running(worker=False), Api(framework) as api:
        assert (await api.get(TASKS)).status_code == 200
        for path in ("/readyz", "/metrics", "/api/v1/events"):
            answer = await api.get(path)
            assert problem_of(answer, 503, "not_running")["hint"] == "Ask the process that executes tasks."
            assert "retry-after" not in answer.headers, "here it will never be answered"
    starting = await Api(framework).get("/readyz")
    assert "in a moment" in problem_of(starting, 503, "not_running")["hint"]
    assert starting.headers["retry-after"]
