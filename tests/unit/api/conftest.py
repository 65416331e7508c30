from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.api.server
import taskframework.brokers.embedded
import taskframework.stores.sqlite  # noqa: F401
from taskframework import BackgroundTaskExecutable, Settings, TaskFramework
from taskframework.api.app import create_app
from taskframework.api.feed import Feed
from tests.support.kitchen_sink import ALL, Waits

TASKS = "/api/v1/tasks"
DEAD_LETTERS = "/api/v1/admin/dead-letters"
COUNT_WORDS = {"task_type": "count-words", "parameters": {"text": "one two three"}}

OpenApi = Callable[..., AbstractAsyncContextManager["Api"]]


class Api(httpx.AsyncClient):
    """A client that speaks to the application in this process, and the framework behind it."""

    def __init__(self, framework: TaskFramework) -> None:
        app = create_app(framework)
        super().__init__(transport=httpx.ASGITransport(app), base_url="http://api")
        self.framework = framework
        self.feed: Feed = app.state.feed

    async def submit(self, **body: Any) -> dict[str, Any]:
        answer = await self.post(TASKS, json=COUNT_WORDS | body)
        assert answer.status_code == 202, answer.text
        task: dict[str, Any] = answer.json()
        return task

    async def finished(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The task once it is final."""
        await self.framework.handle(task["task_id"]).finished(timeout=20)
        found: dict[str, Any] = (await self.get(f"{TASKS}/{task['task_id']}")).json()
        return found


@pytest.fixture
def open_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenApi:
    """Run a framework on a file of its own and open its API: `async with open_api(worker=True) as api`.

    Nothing listens on a port: the client is in this process, and a server takes longer to stop than most tests.
    """
    monkeypatch.setattr("taskframework.api.server.serving", lambda _framework: contextlib.nullcontext())

    @asynccontextmanager
    async def opened(
        *,
        worker: bool = False,
        extra: Sequence[type[BackgroundTaskExecutable[Any, Any]]] = (),
        **sections: dict[str, Any],
    ) -> AsyncIterator[Api]:
        Waits.gate, Waits.started = asyncio.Event(), 0
        framework = TaskFramework(
            Settings.model_validate(
                {
                    "store": {"url": f"sqlite:///{tmp_path / 'tasks.db'}"},
                    "shutdown": {"await_termination_timeout": "200ms"},
                    **sections,
                    "api": {"port": 0} | sections.get("api", {}),
                }
            )
        )
        for executable in [*ALL, *extra]:
            framework.register(executable)
        async with framework.running(worker=worker, api=not worker), Api(framework) as api:
            yield api

    return opened


@pytest.fixture
async def api(open_api: OpenApi) -> AsyncIterator[Api]:
    """An API without a worker: what is submitted stays QUEUED."""
    async with open_api() as opened:
        yield opened


def problem_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of an answer, checked for what every problem has."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, f"/docs#{code}")
    assert problem["title"]
    assert problem["detail"]
    assert problem["hint"], "a problem says what to do next"
    return problem
