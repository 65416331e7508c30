from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework import errors
from taskframework.settings import Settings, explain, load_settings
from tests.unit.settings.conftest import Load


def test_without_anything_the_defaults_are_in_force(load: Load) -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_each_layer_of_settings_overrides_the_one_before(load: Load, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "stage.yml").write_text("api:\n  port: 3\n\nworker:\n  concurrency: 3\n  max_crashes: 3\n")
    loaded = load(
        "api:\n  host: example.org\n  port: 2\nworker:\n  concurrency: 2\n  max_crashes: 2\n",
        {
            "TASKFRAMEWORK_PROFILE": "stage",
            "TASKFRAMEWORK_WORKER__CONCURRENCY": "4",
            "TASKFRAMEWORK_WORKER__MAX_CRASHES": "4",
        },
        {"worker.max_crashes": 5, "worker.lease": None},
    )
    settings = loaded.settings
    assert (settings.api.host, settings.api.port) == ("example.org", 3)
    assert (settings.worker.concurrency, settings.worker.max_crashes) == (4, 5)
    assert settings.worker.lease == timedelta(seconds=30)
    assert {key: origin for key, origin in loaded.origins.items() if origin != "default"} == {
        "api.host": "application.yml:2",
        "api.port": "config/stage.yml:2",
        "worker.concurrency": "environment TASKFRAMEWORK_WORKER__CONCURRENCY",
        "worker.max_crashes": "command line",
    }


def test_every_key_can_be_set_by_its_variable(load: Load) -> None:
    loaded = load(
        environ={
            "TASKFRAMEWORK_APP__MODULES": '["one.tasks", "two.tasks"]',
            "TASKFRAMEWORK_BROKER__DEAD_LETTER_COLLECTOR": "false",
            "TASKFRAMEWORK_BROKER__PREFIX": "007",
            "TASKFRAMEWORK_RETRY__JITTER_FACTOR": "0.25",
            "TASKFRAMEWORK_API__MAX_BODY": "2MiB",
            "TASKFRAMEWORK_SHUTDOWN__AWAIT_TERMINATION_TIMEOUT": "PT5S",
            "TASKFRAMEWORK_RETENTION__FINISHED": "",
            "TASKFRAMEWORK_WORKER__HTTP_PORT": "9100",
            "TASKFRAMEWORK_OBSERVABILITY__LOGGING_CONFIG": "config/logging.yml",
        }
    )
    settings = loaded.settings
    assert settings.app.modules == ("one.tasks", "two.tasks")
    assert settings.broker.dead_letter_collector is False
    assert settings.broker.prefix == "007"
    assert settings.retry.jitter_factor == 0.25
    assert settings.api.max_body == 2 * 1024 * 1024
    assert settings.shutdown.await_termination_timeout == timedelta(seconds=5)
    assert settings.retention.finished is None
    assert settings.worker.http_port == 9100
    assert settings.observability.logging_config == Path("config/logging.yml")


def test_a_section_can_be_one_variable(load: Load) -> None:
    loaded = load(
        environ={
            "TASKFRAMEWORK_API": '{"host": "example.org", "port": 1}',
            "TASKFRAMEWORK_API__PORT": "2",
        }
    )
    assert (loaded.settings.api.host, loaded.settings.api.port) == ("example.org", 2)
    assert loaded.origins["api.host"] == "environment TASKFRAMEWORK_API"


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "broker:\n", "broker:\n  # url: amqp://host\napi:\n", "\ufeffapi:\n", "---\n...\n"]
)
def test_a_file_or_section_without_content_changes_nothing(load: Load, text: str) -> None:
    assert load(text).settings == Settings()


def test_only_environment_variables_of_the_settings_are_read(load: Load) -> None:
    loaded = load(
        environ={
            "PATH": "/bin",
            "TASKFRAMEWORKX_API__PORT": "1",
            "TASKFRAMEWORK_FAILPOINTS": "claim.after_write=kill",
            "TASKFRAMEWORK_TEST_RABBITMQ_URL": "amqp://host",
            "TASKFRAMEWORK_PROFILE": "",
            # What Kubernetes adds beside services named taskframework and taskframework-api.
            "TASKFRAMEWORK_SERVICE_HOST": "10.0.0.1",
            "TASKFRAMEWORK_API_SERVICE_PORT_HTTP": "80",
            "TASKFRAMEWORK_PORT": "tcp://10.0.0.1:80",
            "TASKFRAMEWORK_API_PORT": "tcp://10.0.0.1:80",
            "TASKFRAMEWORK_API_PORT_80_TCP_ADDR": "10.0.0.1",
        }
    )
    assert loaded.settings == Settings()


def test_an_explicit_file_is_named_as_it_was_given_and_its_profile_lies_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "own.yml"
    file.write_text("api: {port: 1}\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "stage.yml").write_text("api: {host: example.org}\n")
    loaded = load_settings(file, environ={"TASKFRAMEWORK_PROFILE": "stage"})
    assert load_settings(str(file), environ={"TASKFRAMEWORK_PROFILE": "stage"}) == loaded
    assert (loaded.settings.api.port, loaded.settings.api.host) == (1, "example.org")
    assert loaded.origins["api.port"] == f"{file}:1"


def test_the_working_directory_is_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "application.yml").write_text("api: {port: 1}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKFRAMEWORK_API__HOST", "example.org")
    loaded = load_settings()
    assert (loaded.settings.api.port, loaded.settings.api.host) == (1, "example.org")


def test_explain_shows_every_key_without_passwords(load: Load) -> None:
    loaded = load(environ={"TASKFRAMEWORK_BROKER__URL": "amqp://user:secret@host"})
    rows = {row.key: row for row in explain(loaded)}
    assert rows.keys() == loaded.origins.keys()
    url = rows["broker.url"]
    assert (url.value, url.default) == ("amqp://user:***@host", "embedded://")
    assert url.origin == "environment TASKFRAMEWORK_BROKER__URL"
    assert "amqp" in url.description
    assert (rows["worker.lease"].value, rows["worker.lease"].origin) == ("30s", "default")


def test_the_settings_need_no_heavy_import() -> None:
    # An empty package in place of the real one, whose public names bring everything with them.
    code = (
        "import sys, types; package = types.ModuleType('taskframework'); package.__path__ = [sys.argv[1]]; "
        "sys.modules['taskframework'] = package; import taskframework.settings; print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(Path(errors.__file__).parent)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"motor", "pymongo", "aio_pika", "fastapi", "asyncio", "sqlite3", "opentelemetry"} & set(modules)


def test_off_without_quotes_is_the_word_although_yaml_reads_it_as_false(tmp_path: Path) -> None:
    (tmp_path / "application.yml").write_text("broker:\n  url: amqp://here/\n  fast_path: off\n")
    assert load_settings(environ={}, directory=tmp_path).settings.broker.fast_path == "off"
