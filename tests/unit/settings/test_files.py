"""The files in the tree that the settings make or read: application.yml, the reference, the profiles, logging.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskframework.errors import ConfigurationError
from taskframework.settings import Settings, load_settings
from taskframework.settings.keys import known_keys
from taskframework.settings.logging_file import read_log_levels
from taskframework.settings.reference import application_yml, markdown

ROOT = Path(__file__).parents[3]


def test_application_yml_is_current() -> None:
    assert (ROOT / "application.yml").read_text(encoding="utf-8") == application_yml(), (
        "Renew it: python -m taskframework.settings.reference --yaml > application.yml"
    )


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8") == markdown(), (
        "Renew it: python -m taskframework.settings.reference > docs/reference/settings.md"
    )


def test_application_yml_names_every_key_and_says_the_defaults() -> None:
    loaded = load_settings(ROOT / "application.yml", environ={})
    assert loaded.settings == Settings()
    assert "default" not in set(loaded.origins.values())


def test_the_reference_has_a_row_for_every_key() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert len(rows) == len(known_keys())
    assert all(row.replace(r"\|", "").count("|") == 6 for row in rows)


@pytest.mark.parametrize("profile", ["dev", "test", "prod"])
def test_the_profiles_are_valid(profile: str) -> None:
    loaded = load_settings(environ={"TASKFRAMEWORK_PROFILE": profile}, directory=ROOT)
    assert any(origin.startswith(f"config/{profile}.yml:") for origin in loaded.origins.values())


def test_prod_never_falls_back_to_the_embedded_servers() -> None:
    settings = load_settings(environ={"TASKFRAMEWORK_PROFILE": "prod"}, directory=ROOT).settings
    assert settings.broker.scheme == "amqp"
    assert settings.store.scheme == "mongodb"
    assert settings.observability.logging_config is not None
    assert (ROOT / settings.observability.logging_config).is_file()


def test_logging_yml_gives_levels() -> None:
    assert read_log_levels(ROOT / "config/logging.yml")["aio_pika"] == "WARNING"


@pytest.mark.parametrize("text", ["", "loggers: {}\n"])
def test_a_logging_file_without_content_gives_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "logging.yml").write_text(text)
    assert read_log_levels(tmp_path / "logging.yml") == {}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("loggers: {aio_pika: {level: LOUD}}", "logging.yml at loggers.aio_pika.level does not give"),
        ("loggers: {aio_pika: WARNING}", "logging.yml at loggers.aio_pika does not give"),
        ("handlers: {}", "logging.yml at handlers does not give"),
        ("loggers: {a: {level: 2026-02-30}}", "logging.yml does not give"),
        ("- a", "logging.yml at  does not give"),
    ],
)
def test_a_wrong_logging_file_is_explained(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "logging.yml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_log_levels(tmp_path / "logging.yml")
    assert where in caught.value.message
    assert "its.name: {level: WARNING}; levels are DEBUG to CRITICAL" in caught.value.hint
    assert caught.value.key == "observability.logging_config"
