"""Sockets to listen on. They are bound before the server starts, so that problems with them are clear errors."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence

from taskframework.errors import ConfigurationError

#: After this time without progress the kernel drops a connection: a reader that stopped reading must not use memory.
_STALLED_MILLISECONDS = 60_000

Address = tuple[socket.AddressFamily, str]


async def resolve(host: str, *, key: str) -> Sequence[Address]:
    """The addresses of a host name.

    Args:
        host: a name or address.
        key: the setting it comes from.

    Raises:
        ConfigurationError: if the name has no address.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(
            f"{key} is {host!r}, which is not an address ({error.strerror}).",
            key=key,
            hint="Use 127.0.0.1 for requests from this machine only.",
        ) from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def require_loopback(host: str, addresses: Sequence[Address]) -> None:
    """Refuse access from the network while callers are not identified.

    Raises:
        ConfigurationError: if an address is not loopback.
    """
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for _, address in addresses):
        return
    raise ConfigurationError(
        f"api.host is {host!r}, but callers are not identified: everyone who can reach the port can do everything.",
        key="api.host",
        hint="Create the first API key with `taskframework keys create`; then callers are identified. Or use 127.0.0.1 "
        "behind a reverse proxy that identifies them. Where only trusted programs reach the port, as in a container "
        "network, set api.allow_remote to true.",
    )


def bind_sockets(addresses: Sequence[Address], port: int, *, key: str) -> list[socket.socket]:
    """Bind each address; the later addresses take the port that the first one got.

    Raises:
        ConfigurationError: if the port is not available.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            sockets.append(_bind(family, address, sockets[0].getsockname()[1] if sockets else port))
    except OSError as error:
        # A name such as localhost may also stand for a kind of address that this machine does not have.
        if not (sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
            for bound in sockets:
                bound.close()
            raise _bind_error(error, addresses[len(sockets)][1], port, key) from error
    return sockets


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if sys.platform == "linux":  # connections inherit it
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MILLISECONDS)
        bound.setblocking(False)
        bound.bind((address, port))
        # Listen now, not when the server starts: two programs may bind one port, and only the second `listen` fails.
        bound.listen(2048)
    except BaseException:
        bound.close()
        raise
    return bound


def _bind_error(error: OSError, address: str, port: int, key: str) -> ConfigurationError:
    given = f"--port or {key}" if key == "api.port" else key
    match error.errno:
        case errno.EADDRINUSE:
            return ConfigurationError(
                f"Port {port} of {address} is in use by another program.",
                key=key,
                hint=f"Stop it, or choose another port with {given}; 0 takes any free one.",
            )
        case errno.EACCES:
            return ConfigurationError(
                f"This user may not listen on port {port}.", key=key, hint=f"Choose one above 1023 with {given}."
            )
    return ConfigurationError(
        f"Cannot listen on port {port} of {address}: {error.strerror}.",
        key=key,
        hint="Check that the address belongs to this machine.",
    )
