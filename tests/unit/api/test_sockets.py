"""Where the server may listen, and what is said when it cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from taskframework.api.sockets import bind_sockets, require_loopback, resolve
from taskframework.errors import ConfigurationError


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost"])
async def test_loopback_needs_no_permission(host: str) -> None:
    require_loopback(host, await resolve(host, key="api.host"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1"])
async def test_an_address_that_is_not_loopback_must_be_allowed(host: str) -> None:
    addresses = await resolve(host, key="api.host")
    with pytest.raises(ConfigurationError) as refused:
        require_loopback(host, addresses)
    assert refused.value.key == "api.host"
    assert "not identified" in refused.value.message
    assert "api.allow_remote" in refused.value.hint


async def test_one_address_beyond_loopback_among_several_is_refused() -> None:
    addresses = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "192.0.2.1")]
    with pytest.raises(ConfigurationError):
        require_loopback("both", addresses)


async def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"api\.host is 'no such host'"):
        await resolve("no such host", key="api.host")


def test_a_free_port_is_the_same_for_all_addresses() -> None:
    with ExitStack() as stack:
        bound = bind_sockets([(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.2")], 0, key="api.port")
        for one in bound:
            stack.enter_context(closing(one))
        assert [one.getsockname()[0] for one in bound] == ["127.0.0.1", "127.0.0.2"]
        assert bound[0].getsockname()[1] == bound[1].getsockname()[1] > 0


def test_a_port_in_use_says_what_to_do(taken: int) -> None:
    with pytest.raises(ConfigurationError) as refused:
        bind_sockets([(socket.AF_INET, "127.0.0.1")], taken, key="api.port")
    assert str(taken) in refused.value.message
    assert "in use" in refused.value.message
    assert "api.port" in refused.value.hint


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        bind_sockets([(socket.AF_INET, "192.0.2.1")], 0, key="api.port")


def test_sockets_that_were_bound_before_an_error_are_closed(taken: int) -> None:
    addresses = [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]
    with pytest.raises(ConfigurationError):
        bind_sockets(addresses, taken, key="api.port")
    with closing(socket.create_server(("127.0.0.2", taken))):
        pass
