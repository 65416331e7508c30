"""A password in the settings comes out nowhere: not in an error, a log line or what a command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import taskframework.brokers.rabbitmq.broker
import taskframework.limits.redis
import taskframework.stores.mongo.store  # noqa: F401 - read before a loop runs
from tests.unit.cli.conftest import Cli

PLANTED = "planted-s3cret"
#: Nobody listens on the port of "discard".
_SETTINGS = f"""
broker:
  url: amqp://ada:{PLANTED}@127.0.0.1:9/
  connect_timeout: 300ms
store:
  url: mongodb://ada:{PLANTED}@127.0.0.1:9/tasks?replicaSet=rs0&tlsCertificateKeyFilePassword={PLANTED}
  timeout: 300ms
rate_limiter:
  type: redis
  redis_url: redis://ada:{PLANTED}@127.0.0.1:9/0
  default: {{rate: 1}}
observability:
  log_level: DEBUG
  otlp_endpoint: https://ada:{PLANTED}@127.0.0.1:9/v1/traces
security:
  jwt_keys: https://ada:{PLANTED}@127.0.0.1:9/keys?token={PLANTED}
  jwt_issuer: https://id.example
  jwt_audience: tasks
"""
_COMMANDS = (
    *("config show", "config show --json", "doctor", "doctor --json", "topology show --app greeting"),
    *("topology apply --app greeting", "tasks list", "tasks show x", "dlq list", "limits", "workers", "keys list"),
    *("submit greets 1", "submit greets 1 --json", "schedules list", "queues list", "batch list"),
)


@pytest.mark.parametrize("command", _COMMANDS)
def test_no_command_prints_a_password(cli: Cli, folder: Path, command: str, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "application.yml").write_text(_SETTINGS)
    done = cli(*command.split())
    assert done.out + done.err, "it said something"
    assert PLANTED not in done.out + done.err + caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        f"broker: {{url: 'amqp://ada:{PLANTED}@'}}",
        f"broker: {{url: 'amqps://ada:{PLANTED}@host:port/'}}",
        f"store: {{url: 'mongodb://ada:{PLANTED}@host'}}",
        f"store: {{url: {{password: {PLANTED}}}}}",
        f"rate_limiter: {{redis_url: 'redis://ada:{PLANTED}/x@127.0.0.1:6390/0'}}",
        f"rate_limiter: {{redis_url: {{password: {PLANTED}}}}}",
        f"rate_limiter: {{redis_url: 'http://ada:{PLANTED}@host'}}",
        f"security: {{jwt_keys: 'http://ada:{PLANTED}@host/keys', jwt_issuer: i, jwt_audience: a}}",
        f"security: {{jwt_keys: 'https://host/keys?token={PLANTED}'}}",
        f"observability: {{otlp_endpoint: 'ada:{PLANTED}@host'}}",
    ],
)
def test_no_refusal_of_a_setting_quotes_a_password(cli: Cli, folder: Path, wrong: str) -> None:
    (folder / "application.yml").write_text(wrong)
    done = cli("config", "show")
    assert done.code == 1
    assert PLANTED not in done.out + done.err
