"""The store, the broker and the buckets that the settings name. Each adapter is imported when it is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from taskframework.background import refuse_import_by_child
from taskframework.brokers.base import Broker
from taskframework.clock import Clock
from taskframework.limits.buckets import Buckets, MemoryBuckets, StoreBuckets
from taskframework.operations.keys import TokenReader
from taskframework.settings import SecuritySettings, Settings, sqlite_file
from taskframework.stores.base import Records, TaskStore
from taskframework.wiring.extras import require_broker_driver, require_store_driver
from taskframework.wiring.tls_files import require_tls_files

if TYPE_CHECKING:
    from taskframework.brokers.rabbitmq.topology_mover import TopologyMover


def build_store(settings: Settings, clock: Clock) -> TaskStore:
    """The store that `store.url` names.

    Raises:
        ExtraMissingError: if its driver is not installed.
        ConfigurationError: in a process of `run_in="process"` that imports the program.
    """
    refuse_import_by_child()
    if settings.store.scheme == "sqlite":
        from taskframework.stores.sqlite import SqliteStore

        return SqliteStore(sqlite_file(settings.store.url), clock=clock)
    require_store_driver(settings)
    from taskframework.stores.mongo.client import TlsFiles
    from taskframework.stores.mongo.store import MongoStore

    require_tls_files(settings.store, "store", settings.store.url)
    return MongoStore(
        settings.store.url,
        driver=settings.store.driver,
        timeout=settings.store.timeout,
        pool_size=settings.store.pool_size,
        tls=TlsFiles(settings.store.ca_file, settings.store.certificate),
    )


def build_broker(settings: Settings, clock: Clock) -> Broker:
    """The broker that `broker.url` names.

    Raises:
        ExtraMissingError: if its driver is not installed.
    """
    if settings.broker.scheme == "embedded":
        from taskframework.brokers.embedded import EmbeddedBroker

        return EmbeddedBroker(clock=clock, prefix=settings.broker.prefix)
    require_broker_driver(settings)
    from taskframework.brokers.rabbitmq.broker import RabbitBroker

    require_tls_files(settings.broker, "broker", settings.broker.url)
    return RabbitBroker(settings.broker)


def build_buckets(settings: Settings, store: Records, clock: Clock) -> Buckets:
    """The buckets that `rate_limiter.type` names."""
    limiter = settings.rate_limiter
    if limiter.type == "store":
        return StoreBuckets(store)
    if limiter.type == "memory":
        return MemoryBuckets(clock)
    from taskframework.limits.redis import RedisBuckets

    require_tls_files(limiter, "rate_limiter", limiter.redis_url, "redis_")
    files = (limiter.redis_ca_file, limiter.redis_certificate, limiter.redis_private_key)
    waits = limiter.on_unavailable == "wait"
    return RedisBuckets(limiter.redis_url, settings.broker.prefix, clock, files, waits=waits)


def token_reader_factory(security: SecuritySettings) -> Callable[[], TokenReader] | None:
    """Return a function that makes the reader of tokens at the first token; None if the settings take no tokens."""
    jwt_keys = security.jwt_keys
    if jwt_keys is None:
        return None

    def build() -> TokenReader:
        from taskframework.operations.token_keys import TokenKeys
        from taskframework.operations.tokens import TokenRules, Tokens

        rules = TokenRules(
            issuer=security.jwt_issuer or "",
            audience=security.jwt_audience or "",
            algorithms=security.jwt_algorithms,
            leeway=security.jwt_leeway,
            principal_claim=security.jwt_principal_claim,
            roles_claim=security.jwt_roles_claim,
            users_claim=security.jwt_users_claim,
        )
        return Tokens(rules, TokenKeys.at(jwt_keys))

    return build


def topology_lines(settings: Settings, task_types: Sequence[str]) -> list[str]:
    """One line for each exchange, queue and binding that is declared; none for the embedded broker."""
    if settings.broker.scheme == "embedded":
        return []
    from taskframework.brokers.rabbitmq.topology import whole_topology

    def lines(with_plugin: bool) -> list[str]:
        limit = settings.broker.delivery_limit
        topology = whole_topology(settings.broker.prefix, task_types, delivery_limit=limit, with_plugin=with_plugin)
        return list(topology.lines())

    if settings.broker.delay != "auto":
        return lines(settings.broker.delay == "plugin")
    without_plugin = lines(False)
    return without_plugin + [
        f"{line} (if the broker has the plugin)" for line in lines(True) if line not in without_plugin
    ]


def build_mover(settings: Settings, task_types: Sequence[str]) -> TopologyMover:
    """Build the mover: it compares RabbitMQ with the topology of these types, and moves every part that differs."""
    from taskframework.brokers.rabbitmq.topology_mover import TopologyMover

    require_tls_files(settings.broker, "broker", settings.broker.url)
    return TopologyMover(settings.broker, task_types)


def is_shared(settings: Settings) -> bool:
    """Return whether any number of processes may dispatch and repair, because store and broker are servers."""
    return settings.store.scheme != "sqlite" and settings.broker.scheme != "embedded"


def execution_lock(settings: Settings) -> AbstractContextManager[object]:
    """The lock of the one process that executes the tasks of a SQLite file. A server needs no such lock.

    Raises:
        ConfigurationError: on entering, if another process executes the tasks of that file; at once, in a process of
            `run_in="process"` that imports the program.
    """
    refuse_import_by_child()
    if settings.store.scheme != "sqlite":
        return nullcontext()
    from taskframework.stores.sqlite import ExecutionLock

    return ExecutionLock(sqlite_file(settings.store.url))
