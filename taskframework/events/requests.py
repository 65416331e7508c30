"""The parts that every program needs to call the HTTP interface: address, key, and streams of events.

The client imports this; so nothing here imports a broker or the settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskframework.errors import ConfigurationError
from taskframework.urls import LOOPBACK_HOSTS, MAX_PORT, redacted

if TYPE_CHECKING:
    import httpx
    from httpx_sse import ServerSentEvent

#: Seconds without a byte after which the connection is given up. The interface sends a heartbeat every 10 seconds.
MAX_SILENCE_SECONDS = 30.0
_INTERFACE = "/api/v1"


def address_of(url: str) -> str:
    """The address of an interface, with the path it is mounted at, if any. `/api/v1` at its end, as the log of the
    server shows it, is left out: every call has it in its path.

    Raises:
        ConfigurationError: if the URL is not such an address.
    """
    import httpx

    try:
        parsed = httpx.URL(url)
        is_whole = parsed.host and (parsed.port or 0) <= MAX_PORT
        # After a query or a fragment, the path of a call would belong to it.
        if parsed.scheme in ("http", "https") and is_whole and not {"?", "#"} & set(url):
            return url.rstrip("/").removesuffix(_INTERFACE)
    except (httpx.InvalidURL, TypeError, UnicodeError):  # such as None, of a variable without a value
        pass
    raise ConfigurationError(
        f"{redacted(str(url))!r} is not the address of an API.", hint="Give an address such as http://localhost:8000."
    )


def is_loopback(url: str) -> bool:
    """Return whether an address is on this machine itself, so that no proxy in the environment is meant for it.

    A client with its own transport uses no proxy. Without `trust_env` it would ignore `SSL_CERT_FILE` too.
    """
    import httpx

    return httpx.URL(url).host in LOOPBACK_HOSTS


def uses_tls(url: str) -> bool:
    """Return whether there is a certificate to verify. Without TLS none are loaded, which would take 0.03 s."""
    return not url.lower().startswith("http:")


def require_event_stream(response: httpx.Response) -> None:
    """Check that an answer is a stream of events.

    Raises:
        SSEError: if the answer has another type.
    """
    from httpx_sse import SSEError

    kind = response.headers.get("content-type", "without a type")
    if not kind.startswith("text/event-stream"):
        raise SSEError(f"the answer is {kind}, not a stream of events")


def is_heartbeat(event: ServerSentEvent) -> bool:
    """Return whether this is no event: after the first id, httpx-sse makes an event from every blank line."""
    return not event.data


@contextmanager
def environment_errors() -> Iterator[None]:
    """Turn what httpx raises when a client is made into an error that names the cause: variables of the environment.

    Raises:
        ConfigurationError: if a file of certificates cannot be read, or a proxy cannot be used.
    """
    try:
        yield
    except (OSError, ImportError, ValueError) as error:
        file = os.environ.get("SSL_CERT_FILE")
        cause = f"SSL_CERT_FILE is {file!r}: " if file and isinstance(error, OSError) else ""
        raise ConfigurationError(
            f"No HTTP client can be made: {cause}{redacted(str(error)).rstrip('.')}.",
            hint="Correct the variable: SSL_CERT_FILE, SSL_CERT_DIR, HTTP_PROXY, HTTPS_PROXY or ALL_PROXY.",
        ) from error


def authorization(api_key: str | None, url: str) -> dict[str, str]:
    """Return the header with an API key for this address; no header without a key. A key from a file may end with a
    newline, and one that was copied from a request begins with `Bearer`.

    Raises:
        ConfigurationError: if the key is no text, or a header cannot contain it, such as a key with `…` that was copied
            from a page; or if the address has a user name, which would be sent in place of the key.
    """
    import httpx

    if not isinstance(api_key, str | None):
        raise ConfigurationError(
            f"An API key is text, not a {type(api_key).__name__}.", hint="Give the text of the key."
        )
    key = (api_key or "").strip().removeprefix("Bearer ").strip()
    if not (key.isascii() and key.isprintable()):
        hint = "Copy it again, or create a new one: taskframework keys create."
        raise ConfigurationError("The API key contains a character that is not allowed in keys.", hint=hint)
    if key and httpx.URL(url).userinfo:
        hint = "Take the user name and the password out of the address."
        raise ConfigurationError("The address has a user name, which would be sent in place of the API key.", hint=hint)
    return {"Authorization": f"Bearer {key}"} if key else {}
