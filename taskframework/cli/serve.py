"""`dev`, `api` and `worker`: the long-running processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Apps, Config, or_bad_parameter, whole_number
from taskframework.cli.process import serve
from taskframework.cli.supervision import process_count, supervise
from taskframework.cli.tether import Tether
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework
from taskframework.wiring.extras import require_extra


def _number_or_auto(text: str) -> str:
    if text != "auto" and not text.isdecimal():
        raise ValueError("is neither auto nor a whole number of at least 0")
    return text


Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on (api.host).")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", parser=whole_number(), metavar="N", help="Port to listen on (api.port); 0 takes any free port."
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", parser=whole_number(), metavar="N", help="Tasks executed at once (worker.concurrency)."
    ),
]
Processes = Annotated[
    str | None,
    typer.Option(
        "--processes",
        metavar="N|auto",
        parser=or_bad_parameter(_number_or_auto),
        help="Worker processes (worker.processes); auto: one per CPU.",
    ),
]
Reload = Annotated[bool, typer.Option("--reload", help="Restart when a Python or YAML file here changes.")]
TetherTo = Annotated[int | None, typer.Option("--tether", hidden=True, help="Internal, for child processes.")]

#: The beginning of the command with which a parent starts its processes.
_COMMAND_PREFIX = (sys.executable, "-m", "taskframework")
_APP_HINT = "Name the module that defines your tasks: --app package.module, or app.modules in application.yml."


def dev(
    context: typer.Context,
    host: Host = None,
    port: Port = None,
    concurrency: Concurrency = None,
    reload: Reload = False,
    config: Config = None,
    app: Apps = None,
    tether: TetherTo = None,
) -> None:
    """Run everything in one process: HTTP interface, worker and repairs. No servers needed."""
    flags: dict[str, object] = {"api.host": host, "api.port": port, "worker.concurrency": concurrency}
    invocation = Invocation.of(context, config, app)
    if tether is not None:
        from taskframework.cli.reload import SHUTDOWN_GRACE

        with Tether(tether).reporting() as parent_tether:
            _serve_dev(invocation, flags | {"shutdown.await_termination_timeout": SHUTDOWN_GRACE}, parent_tether)
    elif reload:
        require_extra("reload", "dev --reload")
        from taskframework.cli.reload import run_reloading

        run_reloading([*_COMMAND_PREFIX, *(word for word in sys.argv[1:] if word != "--reload")], Path.cwd())
    else:
        _serve_dev(invocation, flags, None)


def _serve_dev(invocation: Invocation, flags: Mapping[str, object], tether: Tether | None) -> None:
    framework = invocation.framework(flags, registers=False)
    remark = _register(invocation, framework)
    if not len(framework.registry):
        remark = f"No task types are registered, so no tasks are executed here. {remark or _APP_HINT}"
    serve(framework, worker=True, api=True, remarks=[remark] if remark else [], tether=tether)


def _register(invocation: Invocation, framework: TaskFramework) -> str | None:
    """Register the tasks of the modules that were named.

    Returns:
        What to do if the program built the framework itself and may have forgotten to register its tasks.
    """
    is_empty = not len(framework.registry)
    invocation.register(framework)
    app = invocation.framework_app
    modules = {type(registration.executable).__module__ for registration in framework.registry}
    if app is None or not is_empty or framework.settings.app.modules or app.module in modules:
        return None
    return (
        f"The framework {app} has no registered tasks of its own. To register one, call {app.attribute}.register(...) "
        f"in {app.module}; to register all that are defined there, add --app {app.module}."
    )


def api(context: typer.Context, host: Host = None, port: Port = None, config: Config = None, app: Apps = None) -> None:
    """Serve the HTTP interface. It executes no tasks; workers do. Declared task types need no --app."""
    framework = Invocation.of(context, config, app).framework({"api.host": host, "api.port": port})
    remarks = []
    if framework.settings.broker.scheme == "embedded":
        remarks.append("No tasks are executed here: the embedded broker serves only its own process. Run dev instead.")
    serve(framework, worker=False, api=True, remarks=remarks)


def worker(
    context: typer.Context,
    processes: Processes = None,
    concurrency: Concurrency = None,
    config: Config = None,
    app: Apps = None,
    tether: TetherTo = None,
) -> None:
    """Execute tasks. Any number of workers share the work."""
    invocation = Invocation.of(context, config, app)
    flags = {"worker.processes": processes, "worker.concurrency": concurrency}
    if tether is not None:
        with Tether(tether).reporting() as parent_tether:
            _serve_worker(invocation, invocation.framework(flags, registers=False), parent_tether)
        return
    # The processes that execute tasks import the modules with the tasks; the parent does not.
    framework = invocation.framework(flags, registers=False)
    count = process_count(framework.settings)
    if count == 1:
        _serve_worker(invocation, framework, None)
    else:
        supervise(framework.settings, [*_COMMAND_PREFIX, *sys.argv[1:]], count)


def _serve_worker(invocation: Invocation, framework: TaskFramework, tether: Tether | None) -> None:
    remark = _register(invocation, framework)
    if not len(framework.registry):
        hint = remark or _APP_HINT
        raise ConfigurationError("This worker would have no tasks to execute.", key="app.modules", hint=hint)
    settings = framework.settings.worker
    if tether is not None and settings.http_port is not None:  # the parent serves it, and asks this process
        from taskframework.cli.joint_health import make_health_responder

        tether.answer = make_health_responder(framework)
        update = {"worker": settings.model_copy(update={"http_port": None})}
        framework.settings = framework.settings.model_copy(update=update)
    serve(framework, worker=True, api=False, remarks=[remark] if remark else [], tether=tether)
