"""`dev`, `api` and `worker`: the long-running processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Apps, Config
from taskframework.cli.process import serve
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework

Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on (api.host).")]
Port = Annotated[int | None, typer.Option("--port", metavar="N", help="Port to listen on (api.port); 0 takes any.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", metavar="N", help="Tasks executed at once (worker.concurrency).")
]

_NAME_AN_APP = "Name the module that defines your tasks: --app package.module, or app.modules in application.yml."


def dev(
    context: typer.Context,
    host: Host = None,
    port: Port = None,
    concurrency: Concurrency = None,
    config: Config = None,
    app: Apps = None,
) -> None:
    """Run everything in one process: HTTP interface, worker and repairs. Needs no servers."""
    flags = {"api.host": host, "api.port": port, "worker.concurrency": concurrency}
    framework = Invocation.of(context, config, app).framework(flags)
    serve(framework, worker=True, api=True, remarks=list(_remarks(framework)))


def api(context: typer.Context, host: Host = None, port: Port = None, config: Config = None, app: Apps = None) -> None:
    """Serve HTTP: submit, look, operate. Workers execute."""
    framework = Invocation.of(context, config, app).framework({"api.host": host, "api.port": port})
    remarks = list(_remarks(framework))
    if framework.settings.broker.scheme == "embedded":
        remarks.append("Nothing executes tasks here: the embedded broker serves its own process only. Run dev instead.")
    serve(framework, worker=False, api=True, remarks=remarks)


def worker(context: typer.Context, concurrency: Concurrency = None, config: Config = None, app: Apps = None) -> None:
    """Execute tasks. Any number of workers share the work."""
    framework = Invocation.of(context, config, app).framework({"worker.concurrency": concurrency})
    if not len(framework.registry):
        raise ConfigurationError("This worker would have nothing to execute.", key="app.modules", hint=_NAME_AN_APP)
    serve(framework, worker=True, api=False)


def _remarks(framework: TaskFramework) -> Iterator[str]:
    if not len(framework.registry):
        yield f"No task types are registered, so nothing can be submitted. {_NAME_AN_APP}"
