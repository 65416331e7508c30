"""Addresses of the broker, the store and Redis: which are accepted, and how they are shown without their secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

#: Parameters of an address whose values are secret, by a part of the name or by the whole name. In a text that may be
#: long, the length of a name is limited: without a limit, the search time grows with the square of the text's length.
_SECRET_NAMES = "password|passwd|secret|token|key|signature|credential|authmechanismproperties"
_SECRET_PARAMETER = re.compile(
    rf"([?&;#](?:[^=&;#]*(?:{_SECRET_NAMES})[^=&;#]*|pwd|sig|auth|code)=)[^&;#]*", re.IGNORECASE
)
_SECRET_IN_TEXT = re.compile(
    rf"([?&;#](?:[\w.-]{{0,40}}(?:{_SECRET_NAMES})[\w.-]{{0,40}}|pwd|sig|auth|code)=)[^&;#\s'\"]*", re.IGNORECASE
)
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
MAX_PORT = 65_535
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
_BROKER_SCHEMES = ("embedded", "amqp", "amqps")
_STORE_SCHEMES = ("sqlite", "mongodb", "mongodb+srv")
_REDIS_SCHEMES = ("redis", "rediss", "unix")
#: Options by which a driver checks no certificate, or not its name, with the values that leave the check as it is.
_TLS_CHECK_OPTIONS = {
    "no_verify_ssl": ("0",),
    "tlsAllowInvalidCertificates": ("false",),
    "tlsAllowInvalidHostnames": ("false",),
    "tlsInsecure": ("false",),
    "ssl_cert_reqs": ("required",),
    "ssl_check_hostname": ("true", "1", "yes"),
}


def redacted(text: str) -> str:
    """An address with its passwords as `***`; a text without secrets stays as it is."""
    # The last @ ends the user part: a password that was not percent-encoded may hold any character before it.
    head, at, tail = text.rpartition("@")
    if at:
        scheme, separator, user_part = head.partition("://") if "://" in head else ("", "", head)
        user, colon, _ = user_part.partition(":")
        if not colon and scheme.lower() in ("http", "https"):
            user = "***"  # in such an address the user is a token
        text = f"{scheme}{separator}{user}{':***' if colon else ''}@{tail}"
    return _SECRET_PARAMETER.sub(r"\1***", text)


def without_secrets(text: str) -> str:
    """A text without the secrets in the queries of the addresses that it contains."""
    return _SECRET_IN_TEXT.sub(r"\1***", text)


def scheme_of(url: str) -> str:
    """The part of an address before `://`, in lower case; empty if there is none."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def sqlite_file(url: str) -> Path:
    """The file of `sqlite:///relative/file` or `sqlite:////absolute/file`."""
    return Path(url.partition(":///")[2])


def check_broker_url(url: str) -> str:
    """Accept `embedded://`, `amqp://host…` and `amqps://host…`.

    Raises:
        ValueError: for anything else; the message holds no part of the address but its scheme.
    """
    scheme, rest = _split(url, _BROKER_SCHEMES, "embedded://, amqp://user:password@host:5672/vhost or amqps://…")
    if scheme != "embedded":
        _check_hosts(rest, f"{scheme}://user:password@host:5672/vhost")
        _check_tls_options(rest, "broker.ca_file")
    elif rest.strip("/"):
        raise ValueError("must have nothing after embedded://, because that broker is in the process")
    return url


def check_store_url(url: str) -> str:
    """Accept `sqlite:///file` and MongoDB addresses that name a database.

    Raises:
        ValueError: for anything else; the message holds no part of the address but its scheme.
    """
    scheme, rest = _split(url, _STORE_SCHEMES, "sqlite:///file or mongodb://host:27017/database")
    if scheme == "sqlite":
        _check_sqlite(rest)
        return url
    _check_hosts(rest, f"{scheme}://user:password@host/database")
    _check_tls_options(rest, "store.ca_file")
    database = _without_user_info(rest).partition("/")[2]
    if not database or "/" in database:
        raise ValueError(f"needs one database in its path; write {scheme}://host/database, options after a ?")
    return url


def check_redis_url(url: str) -> str:
    """Accept `redis://host…`, `rediss://host…` and `unix:///path`.

    Raises:
        ValueError: for anything else; the message holds no part of the address but its scheme.
    """
    scheme, rest = _split(url, _REDIS_SCHEMES, "redis://user:password@host:6379/0, rediss://… or unix:///path")
    user, _, place = rest.partition("?")[0].rpartition("@")
    host = place.partition("/")[0]  # may be missing: then the driver takes this machine
    is_cut = "/" in user or "#" in user  # the driver would take what is before it for the host
    if scheme != "unix" and (is_cut or host):
        _check_host("" if is_cut else host, f"{scheme}://user:password@host:6379/0")
    _check_tls_options(rest, "rate_limiter.redis_ca_file")
    return url


def _check_sqlite(rest: str) -> None:
    if not rest.startswith("/") or not rest[1:] or rest.endswith("/"):
        raise ValueError("has no file name; write sqlite:///file, or sqlite:////absolute/path/file with four slashes")
    if ":memory:" in rest:
        raise ValueError("needs a file, because data in memory is lost with the process")


def _check_hosts(rest: str, example: str) -> None:
    hosts = _without_user_info(rest).partition("/")[0]
    for host in hosts.split(","):
        _check_host(host, example)


def _check_host(host: str, example: str) -> None:
    found = _HOST.fullmatch(host)
    if found is None:
        raise ValueError(
            f"has no valid host; write {example}, and percent-encode special characters in the password: "
            "@ : / as %40 %3A %2F"
        )
    if not 1 <= int(found["port"] or 1) <= MAX_PORT:
        raise ValueError(f"has a port that does not exist; ports are 1 to {MAX_PORT}")


def _check_tls_options(rest: str, ca_file: str) -> None:
    given = parse_qsl(rest.partition("?")[2].replace(";", "&"), keep_blank_values=True)
    for option, harmless in _TLS_CHECK_OPTIONS.items():
        if any(name.lower() == option.lower() and value not in harmless for name, value in given):
            raise ValueError(
                f"must not have the option {option}, because certificates are always checked; remove it, and set "
                f"{ca_file} to the authority that signed the server's certificate"
            )


def _split(url: str, schemes: tuple[str, ...], accepted: str) -> tuple[str, str]:
    if (scheme := scheme_of(url)) not in schemes:
        raise ValueError(f"must be {accepted}")
    return scheme, url.partition("://")[2]


def _without_user_info(rest: str) -> str:
    return rest.partition("?")[0].rpartition("@")[2]
