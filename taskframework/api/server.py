"""The server: uvicorn in the running event loop, without uvicorn's own signal handlers, logging and exits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from taskframework.api.app import create_app, create_health_app
from taskframework.api.connections import BoundedProtocol, default_max_connections
from taskframework.api.context import Framework
from taskframework.api.sockets import bind_sockets, require_loopback, resolve
from taskframework.model.wording import pluralize
from taskframework.settings import Settings, WorkerSettings
from taskframework.wiring.tls_files import require_certificate

logger = logging.getLogger(__name__)

#: Seconds that requests have to finish when the server stops. What a request has stored stays, even without an answer.
_GRACE_SECONDS = 5
#: Further seconds in which unfinished requests still get an answer, which says that the process stopped.
_CANCELLED_ANSWER_SECONDS = 1
#: Seconds that an idle connection is kept: longer than proxies keep it. We must not close one while a request comes.
_KEEP_ALIVE_SECONDS = 75

#: The paths that are served, for the log.
_WORKER_PATHS = {"health": "/readyz", "metrics": "/metrics"}
_PATHS = {"console": "/", "interface": "/api/v1", "documentation": "/docs", **_WORKER_PATHS}

#: What uvicorn logs as errors although it is meant so. An answer is cut off so that its reader does not take it for
#: complete: at the end of the process, or when the key of the caller is no longer valid. And a request that is not done
#: in time when the process stops, such as an upload that goes on, is told so.
_NO_ERRORS = frozenset(
    {
        "ASGI callable returned without completing response.",
        "Cancel %s running task(s), timeout graceful shutdown exceeded",
    }
)


def _is_error(record: logging.LogRecord) -> bool:
    return record.msg not in _NO_ERRORS


class ApiServer(uvicorn.Server):
    """A uvicorn server that is started and stopped by us."""

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        *,
        root_path: str = "",
        proxies: Sequence[str] = (),
        certificate: Path | None = None,
        private_key: Path | None = None,
        max_connections: int | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            app: the application.
            sockets: the bound sockets to listen on.
            root_path: the path that a proxy cuts off.
            proxies: proxies that are trusted about the caller's address and about TLS.
            certificate: PEM file for TLS; None for no TLS.
            private_key: PEM file of its key; None if the key is in the same file.
            max_connections: the most connections; without it, as many as the limit of file descriptors allows.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                root_path=root_path,
                limit_concurrency=max_connections or default_max_connections(),
                lifespan="off",
                ws="none",
                ssl_certfile=certificate,
                ssl_keyfile=private_key,
                log_config=None,
                log_level=logging.ERROR,  # a warning for each malformed request would let any client fill the log
                access_log=False,
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_error)
        self._sockets = list(sockets)
        self._is_up = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        host, port, *_ = sockets[0].getsockname()
        #: The address it listens on, with the real port even if any free port was asked for.
        self.address: tuple[str, int] = (host, port)

    @property
    def url(self) -> str:
        host, port = self.address
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if late := len(self.server_state.tasks):
            logger.info("%s not done in time: the answer is that the process stops", pluralize(late, "request"))

    async def start(self) -> None:
        """Start to serve, and return when connections are accepted."""
        self._serving = asyncio.create_task(self.serve(self._sockets))
        up = asyncio.create_task(self._is_up.wait())
        await asyncio.wait([self._serving, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._serving.done():
            await self._serving

    async def stop(self) -> None:
        """Finish the requests under way, for a while; then close every connection."""
        self.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving])
            if cancelled := set(self.server_state.tasks):  # the server does not wait for requests that it gave up
                await asyncio.wait(cancelled, timeout=_CANCELLED_ANSWER_SECONDS)
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            await self._serving


async def _require_files(settings: Settings) -> None:
    """Check at the start that the files for TLS and tokens can be used.

    Raises:
        ConfigurationError: with the name of the setting, if a file cannot be used.
        ExtraMissingError: if tokens are accepted and the package for them is not installed.
    """
    if (certificate := settings.api.certificate) is not None:
        key = settings.api.private_key
        await asyncio.to_thread(require_certificate, "api.certificate", certificate, "api.private_key", key)
    if (keys := settings.security.jwt_keys) is not None:
        from taskframework.operations.token_keys import require_readable  # here: it needs a package that is optional

        await asyncio.to_thread(require_readable, keys)


async def require_port(settings: Settings, *, api: bool) -> None:
    """Check that `serving`, or `serving_health`, will be able to listen.

    Raises:
        ConfigurationError: if host and port cannot be listened on.
    """
    key, host, port = "api.", settings.api.host, settings.api.port
    if not api:
        key, host, port = "worker.http_", settings.worker.http_host, settings.worker.http_port or 0
    for bound in bind_sockets(await resolve(host, key=f"{key}host"), port, key=f"{key}port"):
        bound.close()


def server_of(framework: Framework, *, api: bool) -> contextlib.AbstractAsyncContextManager[ApiServer]:
    """The server of a framework: for everything, or only for health and metrics."""
    return serving(framework) if api else serving_health(create_health_app(framework), framework.settings.worker)


@contextlib.asynccontextmanager
async def serving(framework: Framework) -> AsyncIterator[ApiServer]:
    """Serve the HTTP interface of a running framework.

    Yields:
        The server, which knows its address.

    Raises:
        ConfigurationError: if host and port cannot be listened on, or would let unidentified callers in; or if a
            file for TLS or tokens cannot be used.
        ExtraMissingError: if tokens are accepted and the package for them is not installed.
    """
    settings = framework.settings.api
    addresses = await resolve(settings.host, key="api.host")
    if not (settings.allow_remote or await framework.services.callers.are_identified()):
        require_loopback(settings.host, addresses)
    await _require_files(framework.settings)
    app = create_app(framework, hosts=None if settings.allow_remote else settings.hosts)
    server = ApiServer(
        app,
        bind_sockets(addresses, settings.port, key="api.port"),
        root_path=settings.root_path,
        proxies=settings.proxies,
        certificate=settings.certificate,
        private_key=settings.private_key,
        max_connections=None if settings.max_connections == "auto" else settings.max_connections,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        # Closed before the server, which waits for the streams: they never end by themselves.
        stack.push_async_callback(app.state.feed.close)
        await server.start()
        host, port = server.address
        logger.info("ready", extra={"role": "api", "host": host, "port": port, **_addresses(server.url, _PATHS)})
        yield server


@contextlib.asynccontextmanager
async def serving_health(app: ASGIApp, settings: WorkerSettings) -> AsyncIterator[ApiServer]:
    """Serve health and metrics of a worker, or of several, at `worker.http_host` and `worker.http_port`.

    Yields:
        The server, which knows its address.

    Raises:
        ConfigurationError: if host and port cannot be listened on.
    """
    addresses = await resolve(settings.http_host, key="worker.http_host")
    server = ApiServer(app, bind_sockets(addresses, settings.http_port or 0, key="worker.http_port"))
    try:
        await server.start()
        logger.info("serving health and metrics", extra=_addresses(server.url, _WORKER_PATHS))
        yield server
    finally:
        await server.stop()


def _addresses(url: str, served: Mapping[str, str]) -> dict[str, str]:
    return {what: url + path for what, path in served.items()}
