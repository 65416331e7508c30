"""The server: uvicorn inside the loop that is running, without its signal handlers, its logging and its exits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from taskframework.api.app import create_app
from taskframework.api.connections import BoundedProtocol, most_connections
from taskframework.api.context import Framework
from taskframework.api.listening import listen, require_loopback, resolve
from taskframework.errors import ConfigurationError
from taskframework.settings import Settings, WorkerSettings

logger = logging.getLogger(__name__)

#: Seconds that requests have to finish at a stop. What was stored stays stored, answered or not.
_GRACE_SECONDS = 5
#: Seconds after that in which requests that did not finish are still answered: the process stopped.
_FAREWELL_SECONDS = 1
#: Seconds that an idle connection is kept: longer than proxies keep it. Else we could close it while a request comes.
_KEEP_ALIVE_SECONDS = 75

#: What is served where, for the log.
_SERVED_BY_WORKERS = {"health": "/readyz", "metrics": "/metrics"}
_SERVED = {"console": "/", "interface": "/api/v1", "documentation": "/docs", **_SERVED_BY_WORKERS}


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
            sockets: where it listens, bound.
            root_path: what a proxy cuts off the paths.
            proxies: whose word about the caller's address and about TLS is believed.
            certificate: PEM file for TLS; None: there is none.
            private_key: PEM file of its key; None: it is in the same file.
            max_connections: further ones are refused; without it, as many as the limit of file descriptors allows.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                root_path=root_path,
                limit_concurrency=max_connections or most_connections(),
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
        self._sockets = list(sockets)
        self._is_up = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        host, port, *_ = sockets[0].getsockname()
        #: Where it listens; the port is the real one if any free one was asked for.
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

    async def start(self) -> None:
        """Return when connections are accepted."""
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
            if cancelled := set(self.server_state.tasks):  # the server does not wait for what it gave up on
                await asyncio.wait(cancelled, timeout=_FAREWELL_SECONDS)
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            await self._serving


async def _require_files(settings: Settings) -> None:
    """Look at the start whether what TLS and tokens need can be used.

    Raises:
        ConfigurationError: naming the setting, if it cannot.
        ExtraMissingError: if tokens are to be taken and the package for them is not installed.
    """
    if (certificate := settings.api.certificate) is not None:
        try:
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            await asyncio.to_thread(trial.load_cert_chain, certificate, settings.api.private_key, lambda: "")
        except OSError as error:
            raise ConfigurationError(
                f"api.certificate: {certificate} cannot be used with its key ({error.strerror or error}).",
                key="api.certificate",
                hint="Name PEM files: the certificate, and in api.private_key its key, without a pass phrase.",
            ) from None
    if (keys := settings.security.jwt_keys) is not None:
        from taskframework.operations.token_keys import require_readable  # here: it needs a package that is optional

        await asyncio.to_thread(require_readable, keys)


@contextlib.asynccontextmanager
async def serving(framework: Framework) -> AsyncIterator[ApiServer]:
    """Serve the HTTP interface of a running framework.

    Yields:
        The server, which tells its address.

    Raises:
        ConfigurationError: if host and port cannot be listened on, or would let unidentified callers in; or if a
            file for TLS or tokens cannot be used.
        ExtraMissingError: if tokens are to be taken and the package for them is not installed.
    """
    settings = framework.settings.api
    addresses = await resolve(settings.host, key="api.host")
    if not (settings.allow_remote or await framework.services.callers.are_identified()):
        require_loopback(settings.host, addresses)
    await _require_files(framework.settings)
    app = create_app(framework, hosts=None if settings.allow_remote else settings.hosts)
    server = ApiServer(
        app,
        listen(addresses, settings.port, key="api.port"),
        root_path=settings.root_path,
        proxies=settings.proxies,
        certificate=settings.certificate,
        private_key=settings.private_key,
        max_connections=None if settings.max_connections == "auto" else settings.max_connections,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        # Before the server, which waits for them: streams never end by themselves.
        stack.push_async_callback(app.state.feed.close)
        await server.start()
        host, port = server.address
        logger.info("ready", extra={"role": "api", "host": host, "port": port, **_places(server.url, _SERVED)})
        yield server


@contextlib.asynccontextmanager
async def serving_health(app: ASGIApp, settings: WorkerSettings) -> AsyncIterator[ApiServer]:
    """Serve health and metrics of a worker, or of several, at `worker.http_host` and `worker.http_port`.

    Yields:
        The server, which tells its address.

    Raises:
        ConfigurationError: if host and port cannot be listened on.
    """
    addresses = await resolve(settings.http_host, key="worker.http_host")
    server = ApiServer(app, listen(addresses, settings.http_port or 0, key="worker.http_port"))
    try:
        await server.start()
        logger.info("serving health and metrics", extra=_places(server.url, _SERVED_BY_WORKERS))
        yield server
    finally:
        await server.stop()


def _places(url: str, served: Mapping[str, str]) -> dict[str, str]:
    return {what: url + path for what, path in served.items()}
