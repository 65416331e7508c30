from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from pydantic import ValidationError

from taskframework.errors import ConfigurationError
from taskframework.settings import ApiSettings, BrokerSettings, RetrySettings, Settings, StoreSettings, WorkerSettings
from taskframework.settings.keys import group_paths, known_keys, section_titles
from taskframework.settings.limits import RateLimiterSettings
from taskframework.settings.schema import RetentionSettings
from taskframework.settings.section import Section
from taskframework.settings.validation_errors import fields_of


def test_every_key_has_a_line_of_meaning() -> None:
    for key in known_keys().values():
        assert key.description, key.name
        assert "\n" not in key.description
        assert not key.description.endswith("."), key.name
    assert all(section_titles().values())


def test_every_length_of_time_is_bounded() -> None:
    """A task could not be stored, or the end of a task failed, with a time after the year 9999."""
    lengths = [path for path, field in fields_of(Settings) if field.annotation in (timedelta, timedelta | None)]
    assert len(lengths) > 20
    for section, name in lengths:
        with pytest.raises(ConfigurationError, match=rf"{section}\.{name} is '?9999999d'?; "):
            Settings.model_validate({section: {name: "9999999d"}})
    assert RetentionSettings(finished=timedelta(days=36_600), audit=None).audit is None


def test_no_key_is_a_group() -> None:
    assert group_paths() & known_keys().keys() == set()


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


WRONG = [
    (lambda: Settings(api=ApiSettings(port=99999)), "api.port", "is 99999; accepted: whole number from 0 to 65535."),
    (lambda: Settings.model_validate({"api": {"port": "x"}}), "api.port", "is 'x'; accepted: whole number from 0"),
    (lambda: Settings.model_validate({"worker": {"processes": "x"}}), "worker.processes", "is 'x'; accepted: auto or"),
    (lambda: Settings.model_validate({"api": {"prot": 1}}), "api.prot", "is not a setting. Did you mean api.port?"),
    (lambda: Settings.model_validate({"api": 8000}), "api", "is a group of settings; give them by their names."),
    (lambda: Settings.model_validate({"rate_limit": {}}), "rate_limit", "is not a setting."),
    (lambda: RateLimiterSettings(type="cloud"), "rate_limiter.type", "accepted: memory | store | redis."),  # type: ignore[arg-type]
    (lambda: RetrySettings(initial_delay=timedelta(hours=2)), "retry.max_delay", "must not be less than initial_delay"),
    (lambda: BrokerSettings(url="amqps//user:secret@host"), "broker.url", "must be embedded://, amqp://"),
]


@pytest.mark.parametrize(("make", "key", "said"), WRONG, ids=[key for _, key, _ in WRONG])
def test_wrong_settings_of_a_program_are_refused_like_those_of_a_file(
    make: Callable[[], Section], key: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert refused.value.key == key
    assert str(refused.value).startswith(f"The configuration is wrong: {key} ")
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_all_problems_of_settings_from_a_program_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)has 2 problems:.*app\.modules is 1; .*api\.port is -1; "):
        Settings.model_validate({"api": {"port": -1}, "app": {"modules": [1]}})


def test_a_section_is_named_as_its_class() -> None:
    assert {name: type(section).__name__ for name, section in Settings()} == {
        name: f"{name.title().replace('_', '')}Settings" for name in Settings.model_fields
    }
