"""What is needed beyond a bare installation, looked at before anything is opened."""

from __future__ import annotations

from importlib.util import find_spec

from taskframework.errors import ExtraMissingError
from taskframework.settings import Settings

#: The modules by which it is told whether an extra is installed. They are only looked for, not imported.
BROUGHT = {
    "api": ("fastapi", "starlette", "uvicorn"),
    "jwt": ("cryptography", "jwt"),
    "mongodb": ("motor", "pymongo"),
    "opentelemetry": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
    "rabbitmq": ("aio_pika", "aiormq", "pamqp", "yarl"),
    "redis": ("redis",),
    "reload": ("watchfiles",),
}


def require_extra(extra: str, what: str) -> None:
    """Look whether an extra is installed.

    Args:
        extra: its name.
        what: needs it; the beginning of the message.

    Raises:
        ExtraMissingError: naming what is missing, and the command that installs it.
    """
    missing = [module for module in BROUGHT[extra] if not _is_there(module)]
    if missing:
        raise ExtraMissingError(what, ", ".join(missing), extra)


def require_extras(settings: Settings) -> None:
    """Look whether what the settings name (store, broker, buckets, keys of tokens) can be used with what is installed.

    Raises:
        ExtraMissingError: if not.
    """
    require_store_driver(settings)
    require_broker_driver(settings)
    if settings.rate_limiter.type == "redis":
        require_extra("redis", "rate_limiter.type: redis")
    if settings.security.jwt_keys is not None:
        require_extra("jwt", "security.jwt_keys")


def require_store_driver(settings: Settings) -> None:
    """As `require_extras`, for the store alone."""
    if settings.store.scheme != "sqlite":
        require_extra("mongodb", f"store.url with {settings.store.scheme}://")


def require_broker_driver(settings: Settings) -> None:
    """As `require_extras`, for the broker alone."""
    if settings.broker.scheme != "embedded":
        require_extra("rabbitmq", f"broker.url with {settings.broker.scheme}://")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is not there either
        return False
