"""What every test gets: a clean environment, a watch on blocking calls, and real servers for those that ask."""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, Protocol

import pytest
from blockbuster import BlockBuster
from hypothesis import settings

from taskframework.cli.process import reduce_garbage_collection
from tests.support.external import ExternalMongo, ExternalRabbit
from tests.support.process import keep_data_in_memory
from tests.support.redis import RedisServer
from tests.support.servers import MongoServer, RabbitServer, ServerUnavailable

pytest_plugins = ["tests.chaos.summary"]

# hypothesis runs without a limit on time, which a busy machine would break, and without leaving files.
settings.register_profile("taskframework", deadline=None, database=None)
settings.load_profile("taskframework")

_RABBITMQ_URL = os.environ.get("TASKFRAMEWORK_TEST_RABBITMQ_URL")
_MONGODB_URL = os.environ.get("TASKFRAMEWORK_TEST_MONGODB_URL")
#: MongoDB needs a tenth of a second to drop a database and is idle meanwhile; the next test has another one.
_CLEANING = ThreadPoolExecutor(1, "cleaning")
_MARKERS = {
    "rabbit_server": "rabbitmq",
    "amqp_url": "rabbitmq",
    "mongo_server": "mongodb",
    "mongo_url": "mongodb",
    "chromium": "browser",
}


class _Rabbit(Protocol):
    def ensure_running(self) -> None: ...
    def new_vhost(self) -> str: ...
    def url_of(self, vhost: str) -> str: ...
    def delete_vhost(self, name: str) -> None: ...


class _Mongo(Protocol):
    def ensure_running(self) -> None: ...
    def url_of(self, database: str) -> str: ...
    def drop_database(self, name: str) -> None: ...


def pytest_configure() -> None:
    """Forget the developer's own settings: a test, and every process it starts, sees only what it sets itself.

    A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C; some tests send it.
    """
    keep_data_in_memory()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith("TASKFRAMEWORK_")]:
        if not name.startswith("TASKFRAMEWORK_TEST_"):
            del os.environ[name]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the servers they use, so that `-m "not rabbitmq and not mongodb"` runs the quick ones."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if marker := _MARKERS.get(fixture):
                item.add_marker(marker)


def pytest_collection_finish() -> None:
    """As in the processes of users: a fifth of the tests' time went into looking at what is loaded and stays."""
    reduce_garbage_collection()


@pytest.fixture(scope="session")
def _blocking_calls() -> BlockBuster:
    watch = BlockBuster("taskframework")
    # A client is made once; looking whether it runs in a container is part of that.
    watch.functions["os.stat"].can_block_in("pymongo/pool_options.py", "get_container_env_info")
    # Whether certificates are there is looked at once, at the start.
    watch.functions["os.access"].can_block_in("wiring/tls_files.py", "require_tls_files")
    watch.functions["os.readlink"].can_block_in("sqlite/lock.py", "lock_file")  # at the start, beside the lock itself
    # Once, for the message of a hook that fails at the start; it does not wait for a disk.
    watch.functions["os.getcwd"].can_block_in("taskframework/frames.py", "shown_place")
    for call in ("os.stat", "io.TextIOWrapper.read", "io.BufferedReader.read"):
        watch.functions[call].can_block_in("redis/utils.py", "get_lib_version")
    # A warning that is logged goes to where this test run wants it, at times to a file.
    for write in ("io.TextIOWrapper.write", "io.BufferedWriter.write"):
        watch.functions[write].can_block_in("logging/__init__.py", "emit")
        # A test that takes too long is told so; an error here would hide it behind another one.
        watch.functions[write].can_block_in("pytest_timeout.py", "timeout_sigalrm")
    return watch


@pytest.fixture(autouse=True)
def _blocking_calls_are_errors(request: pytest.FixtureRequest, _blocking_calls: BlockBuster) -> Iterator[None]:
    """A call that blocks the event loop, made by taskframework, fails the test; a benchmark is left alone."""
    if request.node.get_closest_marker("bench"):
        yield
        return
    _blocking_calls.activate()
    try:
        yield
    finally:
        _blocking_calls.deactivate()


@pytest.fixture(scope="module", autouse=True)
def _what_is_left_open_is_found() -> Iterator[None]:
    """A socket that nobody closed fails a test of the file that left it, not one that happens to run much later."""
    yield
    gc.collect()
    gc.freeze()  # what is left needs no second look, which took a tenth of the unit tests' time


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """The private RabbitMQ node, for tests that stop, kill or freeze it; most tests want `amqp_url`."""
    if _RABBITMQ_URL:
        _unavailable("this test stops the broker: unset TASKFRAMEWORK_TEST_RABBITMQ_URL to run it on a private node")
    try:
        server = RabbitServer()
    except ServerUnavailable as error:
        _unavailable(str(error))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[MongoServer]:
    """The private MongoDB replica set, for tests that stop, kill or freeze it; most tests want `mongo_url`."""
    if _MONGODB_URL:
        _unavailable("this test stops the database: unset TASKFRAMEWORK_TEST_MONGODB_URL to run it on a private server")
    try:
        server = MongoServer()
    except ServerUnavailable as error:
        _unavailable(str(error))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def amqp_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a virtual host that belongs to this test alone."""
    rabbit: _Rabbit = ExternalRabbit(_RABBITMQ_URL) if _RABBITMQ_URL else request.getfixturevalue("rabbit_server")
    rabbit.ensure_running()
    try:
        vhost = rabbit.new_vhost()
    except ServerUnavailable as error:
        _unavailable(str(error))
    yield rabbit.url_of(vhost)
    rabbit.ensure_running()
    rabbit.delete_vhost(vhost)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A private Redis that forgets everything when it is killed."""
    try:
        server = RedisServer(is_durable=False)
    except ServerUnavailable as error:
        _unavailable(str(error))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def mongo_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a database that belongs to this test alone."""
    mongo: _Mongo = ExternalMongo(_MONGODB_URL) if _MONGODB_URL else request.getfixturevalue("mongo_server")
    mongo.ensure_running()
    database = f"test_{secrets.token_hex(6)}"
    yield mongo.url_of(database)
    mongo.ensure_running()
    _CLEANING.submit(mongo.drop_database, database)


def _unavailable(reason: str) -> NoReturn:
    """Skip at home, fail in CI: a green run there must mean that the real servers were used."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
