"""What needs an extra says so before anything is opened, and how to install it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import taskframework
from taskframework import ConfigurationError, Settings, TaskFramework
from taskframework.clock import SystemClock
from taskframework.errors import ExtraMissingError
from taskframework.tasks.declarations import TaskDeclaration
from taskframework.wiring.adapters import build_broker, build_store
from taskframework.wiring.extras import EXTRA_MODULES, require_extra
from taskframework.wiring.subscriber import event_subscriber

AMQP = {"broker": {"url": "amqp://localhost/"}}
MONGODB = {"store": {"url": "mongodb://localhost/tasks"}}
REDIS = {"rate_limiter": {"type": "redis", "redis_url": "redis://localhost"}}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without any extra."""
    for module in {"jsonschema_rs", *(module for modules in EXTRA_MODULES.values() for module in modules)}:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("settings", "what", "extra"),
    [
        (AMQP, "broker.url with amqp:// needs aio_pika", "rabbitmq"),
        (MONGODB, "store.url with mongodb:// needs motor", "mongodb"),
        (REDIS, "rate_limiter.type: redis needs redis", "redis"),
    ],
    ids=["rabbitmq", "mongodb", "redis"],
)
def test_settings_that_need_an_extra_are_refused_by_the_framework_that_is_given_them(
    settings: dict[str, Any], what: str, extra: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TaskFramework(Settings.model_validate(settings))
    assert str(refused.value).startswith(what)
    assert refused.value.hint == f"pip install 'taskframework[{extra}]'"


def test_the_embedded_default_needs_no_extra() -> None:
    TaskFramework(Settings())


def test_parts_built_without_a_framework_check_their_extras_too() -> None:
    with pytest.raises(ExtraMissingError, match="rabbitmq"):
        build_broker(Settings.model_validate(AMQP), SystemClock())
    with pytest.raises(ExtraMissingError, match="rabbitmq"):
        event_subscriber("amqp://localhost/")
    with pytest.raises(ExtraMissingError, match="mongodb"):
        build_store(Settings.model_validate(MONGODB), SystemClock())


@pytest.mark.parametrize(
    ("serves", "settings", "what"),
    [
        ({"api": True}, {}, "Serving HTTP"),
        ({"worker": True}, {"worker": {"http_port": 0}}, "worker.http_port"),
    ],
    ids=["api", "health of a worker"],
)
async def test_serving_http_needs_an_extra_and_opens_nothing_without(
    serves: dict[str, bool], settings: dict[str, Any], what: str, tmp_path: Any
) -> None:
    file = tmp_path / "tasks.db"
    framework = TaskFramework(Settings.model_validate({"store": {"url": f"sqlite:///{file}"}, **settings}))
    with pytest.raises(ExtraMissingError, match=rf"{what} needs fastapi.* pip install 'taskframework\[api\]'"):
        async with framework.running(**serves):
            pass
    assert not file.exists()


def test_a_type_known_by_its_declaration_alone_needs_an_extra() -> None:
    anything = TaskDeclaration(task_type="t", parameters_schema={}, result_schema={}, priority="normal")
    with pytest.raises(ExtraMissingError, match="not registered here needs jsonschema-rs"):
        anything.accept(1)


def test_a_package_whose_parent_is_missing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRA_MODULES, "other", ("no_such_package.part",))
    with pytest.raises(ExtraMissingError, match=r"This needs no_such_package\.part"):
        require_extra("other", "This")


def test_mount_needs_the_extra_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(taskframework), "mount", raising=False)
    with pytest.raises(ExtraMissingError, match=r"taskframework\.mount needs fastapi.*taskframework\[api\]"):
        taskframework.mount  # noqa: B018 - it is imported here
