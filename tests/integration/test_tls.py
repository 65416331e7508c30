"""Everything by TLS, with certificates on both sides: RabbitMQ, MongoDB, Redis and the HTTP interface; and no secret
comes out anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import taskframework.api.server
import taskframework.brokers.rabbitmq.broker
import taskframework.limits.redis
import taskframework.operations.token_keys
import taskframework.stores.mongo.store
from taskframework import (
    BackgroundTaskExecutable,
    Settings,
    SyncTaskClient,
    TaskClient,
    TaskContext,
    TaskFramework,
    TaskOptions,
    event_subscriber,
)
from taskframework.clock import SystemClock
from taskframework.errors import ConfigurationError, TaskframeworkError
from taskframework.limits.buckets import LimiterUnavailableError
from taskframework.limits.redis import RedisBuckets
from taskframework.testing.eventually import eventually
from tests.support.certificates import Authority
from tests.support.process import free_ports
from tests.support.redis import RedisServer
from tests.support.servers import MongoServer, RabbitServer, ServerUnavailable

PLANTED = "planted-s3cret"


class Echo(BackgroundTaskExecutable[str, str]):
    task_type = "echo"
    options = TaskOptions(rate_limit="service")

    async def execute(self, context: TaskContext[str]) -> str:
        return context.parameters


@dataclass(frozen=True)
class Servers:
    """Three servers that want TLS and a certificate of who comes."""

    authority: Authority
    settings: Mapping[str, Mapping[str, Any]]

    def settings_with(self, **changes: Mapping[str, Any]) -> Settings:
        sections = {name: {**values, **changes.get(name, {})} for name, values in self.settings.items()}
        return Settings.model_validate(sections)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    certificate, key, both = authority.signed("server")
    own, own_key, own_both = authority.signed("client")
    (amqps, rediss) = free_ports(2)
    rabbit_config = {
        "listeners.ssl.default": str(amqps),
        "ssl_options.cacertfile": str(authority.file),
        "ssl_options.certfile": str(certificate),
        "ssl_options.keyfile": str(key),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    mongo_options = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", str(both), "--tlsCAFile", str(authority.file)]
    redis_options = {"tls-port": rediss, "tls-cert-file": certificate, "tls-key-file": key}
    redis_options |= {"tls-ca-cert-file": authority.file}
    try:
        rabbit = RabbitServer(config=rabbit_config)
        mongo, redis = MongoServer(options=mongo_options), RedisServer(options=redis_options)
    except ServerUnavailable as error:
        pytest.skip(str(error))
    with closing(rabbit), closing(mongo), closing(redis):
        for server in (rabbit, mongo, redis):
            server.start()
        rabbit.ctl("add_user", "ada", PLANTED)
        rabbit.ctl("set_permissions", "ada", ".*", ".*", ".*")
        yield Servers(
            authority,
            {
                "broker": {
                    "url": f"amqps://ada:{PLANTED}@localhost:{amqps}/",
                    "ca_file": authority.file,
                    "certificate": own,
                    "private_key": own_key,
                },
                "store": {"url": f"{mongo.url}", "ca_file": authority.file, "certificate": own_both, "timeout": "5s"},
                "rate_limiter": {
                    "type": "redis",
                    "redis_url": f"rediss://default:{PLANTED}@localhost:{rediss}/0",
                    "redis_ca_file": authority.file,
                    "redis_certificate": own,
                    "redis_private_key": own_key,
                    "providers": {"service": {"rate": 100, "burst_capacity": 10}},
                },
                "api": {"port": 0, "certificate": certificate, "private_key": key},
            },
        )


async def _clients_trust_the_authority(
    url: str, task_id: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SSL_CERT_FILE; and they ask no proxy for an address on this machine."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    def blocking() -> None:
        with SyncTaskClient(url) as client:
            assert client.get(task_id).result == "hello"

    async with TaskClient(url) as client, event_subscriber(url):
        assert (await client.get(task_id)).result == "hello"
    await asyncio.to_thread(blocking)


async def test_a_task_goes_all_its_way_by_tls(
    servers: Servers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    framework = TaskFramework(servers.settings_with())
    framework.register(Echo)
    trusted = ssl.create_default_context(cafile=servers.authority.file)
    async with framework.running(worker=True, api=False):
        from taskframework.api.server import serving

        async with (
            serving(framework) as server,
            httpx.AsyncClient(verify=trusted, base_url=server.url, timeout=60) as client,
        ):
            assert server.url.startswith("https://")
            submitted = await client.post("/api/v1/tasks", json={"task_type": "echo", "parameters": "hello"})
            assert submitted.headers["strict-transport-security"]
            task = await framework.handle(submitted.json()["task_id"]).finished(timeout=60)
            assert task.result == "hello"
            said = submitted.text
            for path in (
                "/docs",
                "/readyz",
                "/metrics",
                "/api/v1/tasks",
                "/api/v1/admin/limits",
                "/api/v1/admin/workers",
            ):
                said += (await client.get(path)).text
            assert PLANTED not in said
            async with httpx.AsyncClient() as stranger:
                with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                    await stranger.get(server.url)
                with pytest.raises(httpx.HTTPError):
                    await stranger.get(server.url.replace("https", "http"))
            await _clients_trust_the_authority(server.url, task.task_id, servers.authority, monkeypatch)
    assert PLANTED not in caplog.text


@pytest.mark.parametrize("section", ["broker", "store", "rate_limiter"])
@pytest.mark.parametrize("what", ["a stranger's authority", "no certificate"])
async def test_without_the_right_tls_files_no_connection_is_made_and_the_reason_is_named(
    servers: Servers,
    tmp_path: Path,
    section: str,
    what: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(taskframework.limits.redis, "_TIMEOUT_SECONDS", 30.0)
    names = {"broker": "ca_file", "store": "ca_file", "rate_limiter": "redis_ca_file"}
    stranger = Authority(tmp_path, "stranger").file
    without = {"certificate": None, "private_key": None, "redis_certificate": None, "redis_private_key": None}
    known = servers.settings[section]
    changes = {name: value for name, value in without.items() if name in known}
    given = {names[section]: stranger} if what == "a stranger's authority" else changes
    settings = servers.settings_with(**{section: {**given, **({"timeout": "2s"} if section == "store" else {})}})
    said = await asyncio.to_thread(lambda: asyncio.run(_refusal(settings, section)))
    # What refuses a certificate may close the connection before its reason is read.
    assert any(reason in said.lower() for reason in ("certificate", "ssl", "closed", "reset", "broken pipe")), said
    assert PLANTED not in said + caplog.text


async def _refusal(settings: Settings, section: str) -> str:
    from taskframework.clock import SystemClock
    from taskframework.wiring.adapters import build_broker, build_buckets, build_store

    clock = SystemClock()
    store = build_store(settings, clock)
    try:
        if section == "store":
            await store.open()
        elif section == "broker":
            await build_broker(settings, clock).declare([])
        else:
            buckets = build_buckets(settings, store, clock)
            try:
                await buckets.read("rate/service")
            finally:
                await buckets.close()
    except TaskframeworkError as error:
        return f"{error} {error.__cause__}"
    raise AssertionError("it connected")


@pytest.mark.parametrize(
    ("section", "given", "said"),
    [
        ("broker", {"url": "amqp://h/", "ca_file": "x.pem"}, r"broker\.ca_file .* is for amqps://"),
        ("store", {"url": "sqlite:///x", "certificate": "x.pem"}, r"store\.certificate .* is for mongodb://"),
        ("rate_limiter", {"redis_ca_file": "x.pem"}, r"redis_ca_file .* is for rediss://"),
        ("api", {"private_key": "x.pem"}, r"api\.private_key .* has no effect"),
    ],
)
def test_a_file_that_would_be_without_effect_is_refused(section: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Settings.model_validate({section: given})


async def test_a_file_that_is_not_there_or_no_certificate_is_named_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.write_text("no certificate")
    url = f"sqlite:///{tmp_path / 'x.db'}"
    framework = TaskFramework(Settings.model_validate({"store": {"url": url}, "api": {"certificate": file}}))
    with pytest.raises(ConfigurationError, match=r"api\.certificate"):
        async with framework.running(worker=False, api=True):
            pass
    missing = {"url": "amqps://h/", "ca_file": tmp_path / "nowhere.pem"}
    framework = TaskFramework(Settings.model_validate({"store": {"url": url}, "broker": missing}))
    with pytest.raises(ConfigurationError, match=r"broker\.ca_file: .*nowhere"):
        async with framework.running(worker=True, api=False):
            pass


async def test_an_untrusted_redis_certificate_is_an_error_that_names_the_setting(servers: Servers) -> None:
    url = servers.settings["rate_limiter"]["redis_url"]
    buckets = RedisBuckets(url, "tests:", SystemClock())

    async def is_refused() -> bool:
        with pytest.raises(LimiterUnavailableError) as refused:
            await buckets.list_known(1)
        assert PLANTED not in str(refused.value)
        return "rate_limiter.redis_ca_file" in str(refused.value.hint)

    try:
        await eventually(is_refused, what="on a crowded machine, the first tries may only say that they took too long")
    finally:
        await buckets.close()
