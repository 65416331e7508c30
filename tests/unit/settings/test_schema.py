from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import ValidationError

from taskframework.settings import BrokerSettings, RetrySettings, Settings, StoreSettings, WorkerSettings
from taskframework.settings.keys import groups, known_keys, section_titles


def test_every_key_has_a_line_of_meaning() -> None:
    for key in known_keys().values():
        assert key.description, key.name
        assert "\n" not in key.description
        assert not key.description.endswith("."), key.name
    assert all(section_titles().values())


def test_no_key_is_a_group() -> None:
    assert groups() & known_keys().keys() == set()


def test_the_documented_defaults() -> None:
    settings = Settings()
    assert settings.broker.url == "embedded://"
    assert settings.broker.prefix == "tasks"
    assert settings.broker.delay == "auto"
    assert settings.broker.delay_limit == timedelta(minutes=10)
    assert settings.broker.consumer_timeout == timedelta(minutes=30)
    assert settings.store.driver == "motor"
    assert settings.retry.model_dump(mode="json") == {
        "max_attempts": 5,
        "initial_delay": "5s",
        "max_delay": "1h",
        "backoff_factor": 2.0,
        "jitter_factor": 0.1,
    }
    assert (settings.api.host, settings.api.port, settings.api.max_body) == ("127.0.0.1", 8000, 1024 * 1024)
    assert (settings.worker.concurrency, settings.worker.max_crashes) == (100, 3)
    assert settings.worker.lease == timedelta(seconds=30)
    assert settings.shutdown.await_termination_timeout == timedelta(seconds=30)


@pytest.mark.parametrize(("lease", "heartbeat", "grace"), [(30, 10, 5), (20, 20 / 3, 5), (12, 4, 3)])
def test_heartbeat_and_grace_follow_from_the_lease(lease: float, heartbeat: float, grace: float) -> None:
    worker = WorkerSettings(lease=timedelta(seconds=lease))
    assert worker.heartbeat.total_seconds() == pytest.approx(heartbeat)
    assert worker.lease_grace == timedelta(seconds=grace)


def test_the_scheme_chooses_the_adapter() -> None:
    assert Settings().broker.scheme == "embedded"
    assert BrokerSettings(url="amqp://host").scheme == "amqp"
    assert Settings().store.scheme == "sqlite"
    assert StoreSettings(url="mongodb://host/tasks").scheme == "mongodb"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().api.port = 1  # type: ignore[misc]  # that it is refused is what the test is about


def test_a_password_is_not_in_any_representation() -> None:
    settings = Settings(
        broker=BrokerSettings(url="amqp://user:secret@host"),
        store=StoreSettings(url="mongodb://user:secret@host/tasks"),
    )
    assert "secret" not in f"{settings!r} {settings} {settings.broker!r} {settings.store}"
    assert "amqp://user:***@host" in repr(settings)
    assert settings.broker.url == "amqp://user:secret@host"


def test_a_refused_value_is_not_in_the_error_either() -> None:
    with pytest.raises(ValidationError) as caught:
        BrokerSettings(url="amqps//user:secret@host")
    assert "secret" not in str(caught.value)


def test_a_default_is_checked_against_what_was_given() -> None:
    with pytest.raises(ValidationError, match="must not be less than initial_delay, which is 2h"):
        RetrySettings(initial_delay=timedelta(hours=2))
