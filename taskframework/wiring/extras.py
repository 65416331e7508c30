"""Checks before anything is opened that the packages which the settings need are installed."""

from __future__ import annotations

from importlib.util import find_spec

from taskframework.errors import ExtraMissingError
from taskframework.settings import Settings

#: The modules that show whether an extra is installed. They are only looked for, not imported.
EXTRA_MODULES = {
    "api": ("fastapi", "starlette", "uvicorn"),
    "jwt": ("cryptography", "jwt"),
    "mongodb": ("motor", "pymongo"),
    "opentelemetry": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
    "rabbitmq": ("aio_pika", "aiormq", "pamqp", "yarl"),
    "redis": ("redis",),
    "reload": ("watchfiles",),
}


def require_extra(extra: str, feature: str) -> None:
    """Check that an extra is installed.

    Args:
        extra: the name of the extra.
        feature: the feature that needs it; the message begins with this text.

    Raises:
        ExtraMissingError: naming what is missing, and the command that installs it.
    """
    missing = [module for module in EXTRA_MODULES[extra] if not _is_installed(module)]
    if missing:
        raise ExtraMissingError(feature, ", ".join(missing), extra)


def require_extras(settings: Settings) -> None:
    """Check that the packages are installed for the store, broker, buckets and keys of tokens in the settings.

    Raises:
        ExtraMissingError: if a package is missing.
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


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing, too
        return False
