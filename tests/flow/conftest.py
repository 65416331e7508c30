"""Flow tests run three times: on the embedded default, on RabbitMQ with MongoDB, and there without the fast path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import motor.motor_asyncio  # noqa: F401 - see below
import pytest

# Adapters are imported when first needed, which is on the loop; reading a module blocks it, and here that counts.
import taskframework.api.server
import taskframework.brokers.embedded
import taskframework.brokers.rabbitmq.broker
import taskframework.stores.mongo.store
import taskframework.stores.sqlite  # noqa: F401
from taskframework import BackgroundTaskExecutable, Settings, TaskFramework
from tests.support.kitchen_sink import ALL, Waits

#: The two installations, for tests to which it makes no difference how messages are read and written.
BOTH = ["embedded", "servers"]

Run = Callable[..., AbstractAsyncContextManager[TaskFramework]]


@pytest.fixture(params=["embedded", "servers", "servers, plain"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where broker and store are."""
    if request.param == "embedded":
        return {"broker": "embedded://", "store": f"sqlite:///{tmp_path / 'tasks.db'}"}
    fast_path = "off" if request.param == "servers, plain" else "auto"
    servers = {"broker": request.getfixturevalue("amqp_url"), "store": request.getfixturevalue("mongo_url")}
    return {**servers, "fast_path": fast_path}


@pytest.fixture
def settings(urls: dict[str, str]) -> Callable[..., Settings]:
    """Settings for these servers, with sections changed by keyword."""

    def build(**sections: dict[str, Any]) -> Settings:
        merged: dict[str, dict[str, Any]] = {
            "shutdown": {"await_termination_timeout": "200ms"},
            "retry": {"initial_delay": "100ms"},
            "api": {"port": 0},
        }
        for name, values in sections.items():
            merged[name] = {**merged.get(name, {}), **values}
        merged["broker"] = {
            "url": urls["broker"],
            "fast_path": urls.get("fast_path", "auto"),
            **merged.get("broker", {}),
        }
        merged["store"] = {"url": urls["store"], **merged.get("store", {})}
        return Settings.model_validate(merged)

    return build


@pytest.fixture
def run(settings: Callable[..., Settings]) -> Run:
    """Run a framework with every test task: `async with run() as framework`. Without a worker it is an API process."""

    @asynccontextmanager
    async def running(
        *,
        worker: bool = True,
        lease: str = "30s",
        concurrency: int = 100,
        at_once: Mapping[str, int] | None = None,
        extra: Sequence[type[BackgroundTaskExecutable[Any, Any]]] = (),
        **sections: dict[str, Any],
    ) -> AsyncIterator[TaskFramework]:
        Waits.gate, Waits.started = asyncio.Event(), 0
        sections["concurrency"] = {"limits": dict(at_once or {})}
        framework = TaskFramework(settings(worker={"lease": lease, "concurrency": concurrency}, **sections))
        for executable in [*ALL, *extra]:
            framework.register(executable)
        async with framework.running(worker=worker, api=not worker):
            yield framework

    return running
