"""`submit`: stores one task, and waits for its end if asked to."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, Unpack

import typer
from pydantic_core import from_json

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import (
    Api,
    ApiKey,
    Apps,
    Config,
    Json,
    or_bad_parameter,
    seconds_or_duration,
    whole_number,
)
from taskframework.cli.output import note, print_json, run, say
from taskframework.cli.reading import JSON_EXAMPLE, parse_future_time, read_json
from taskframework.cli.render import print_next_step, print_outcome
from taskframework.cli.store import AnyFramework, is_store_missing, register_types, remote_framework
from taskframework.cli.watching import follow
from taskframework.clock import SystemClock
from taskframework.errors import InvalidParametersError, UnknownTaskTypeError
from taskframework.model.status import TaskStatus
from taskframework.model.view import public_view
from taskframework.runtime import TaskFramework
from taskframework.submission.acceptance import option_schemas
from taskframework.submission.options import SubmissionOptions
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.types import NamingStore
from taskframework.wiring.adapters import build_store
from taskframework.wiring.store_services import build_store_services


def _parse_object(text: str, *, fields: Sequence[str]) -> object:
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        example = ", ".join(f'"{name}": …' for name in fields)
        raise ValueError(f"is not a JSON object such as '{{{example}}}'")
    return value


Type = Annotated[str, typer.Argument(metavar="TYPE", help="The task's type.")]
Parameters = Annotated[
    str | None,
    typer.Argument(
        metavar="JSON", help=f"Its parameters, such as {JSON_EXAMPLE}; - reads standard input, @FILE a file."
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it ends; exit code 0 only if it is COMPLETED.")]
Timeout = Annotated[
    timedelta | None,
    typer.Option(
        "--timeout",
        parser=or_bad_parameter(seconds_or_duration),
        metavar="TIME",
        help="Longest time to wait, such as 30s.",
    ),
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Owner of the task.")]


def _example_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object with the fields that a schema requires: keys, numbers and lengths of time."""
    fields = {name: schema["properties"][name] for name in schema["required"]}
    return {
        name: field["examples"][0] if "examples" in field else 2 if field["type"] == "integer" else "page-7"
        for name, field in fields.items()
    }


def _make_flag(name: str, schema: Mapping[str, Any]) -> Parameter:
    """Make the flag of a submission option. It only parses a value; the submission checks the value."""
    value = schema["anyOf"][0]
    read: Callable[[str], Any] = str
    metavar, help_suffix = "|".join(value.get("enum", ["TEXT"])), ""
    if value.get("format") == "date-time":
        read, metavar, help_suffix = or_bad_parameter(parse_future_time), "TIME", ": a time, or 10m from now"
    elif value["type"] == "object":
        read, metavar = or_bad_parameter(partial(_parse_object, fields=value["required"])), "JSON"
        help_suffix = f" (example: '{json.dumps(_example_of(value))}')"
    elif value["type"] == "integer":
        read, metavar = whole_number(), "N"
    option = typer.Option(
        f"--{name.replace('_', '-')}", parser=read, metavar=metavar, help=f"{schema['description']}{help_suffix}."
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Any, option])


def takes_options(
    schemas: Mapping[str, Mapping[str, Any]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let typer see a flag for each of these options, in place of the command's `**options`."""

    def with_flags(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        flags = [_make_flag(name, schema) for name, schema in schemas.items()]
        command.__signature__ = signature.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
        return command

    return with_flags


@takes_options(option_schemas())
def submit(
    context: typer.Context,
    task_type: Type,
    parameters: Parameters = None,
    wait: Wait = False,
    timeout: Timeout = None,
    user: User = None,
    api: Api = None,
    api_key: ApiKey = None,
    config: Config = None,
    app: Apps = None,
    as_json: Json = False,
    **options: Unpack[SubmissionOptions],
) -> None:
    """Submit one task. It is stored when this returns; a running `dev` or `worker` takes it within a second.

    Needs no --app once a process that executes TYPE has started.
    """
    value = None if parameters is None else read_json(parameters)
    request = SubmitRequest(task_type=task_type, parameters=value, user_id=user, **options)
    should_wait = wait or timeout is not None
    try:
        if (remote := remote_framework(api, api_key)) is not None:
            status = run(_submit(remote, request, should_wait, timeout, as_json))
        else:
            status = _submit_locally(Invocation.of(context, config, app), request, should_wait, timeout, as_json)
    except InvalidParametersError as error:
        if parameters is None:
            error.hint = f"{error.hint} Give the parameters as JSON after the type, such as {JSON_EXAMPLE}."
        raise
    if should_wait and status is not TaskStatus.COMPLETED:
        raise typer.Exit(1)


def _submit_locally(
    invocation: Invocation, request: SubmitRequest, should_wait: bool, timeout: timedelta | None, as_json: bool
) -> TaskStatus:
    framework = invocation.framework(registers=bool(invocation.apps))
    if is_store_missing(framework.settings):  # no type is declared then, and a refused submission must make no file
        _check_request(register_types(invocation, framework), request)
    with NamingStore(framework.settings.store.url):
        try:
            return run(_submit(framework, request, should_wait, timeout, as_json))
        except UnknownTaskTypeError:
            if len(framework.registry) or not framework.settings.app.modules:
                raise
            return run(_submit(invocation.register(framework), request, should_wait, timeout, as_json))


def _check_request(framework: TaskFramework, request: SubmitRequest) -> None:
    settings, clock = framework.settings, SystemClock()
    store = build_store(settings, clock)
    build_store_services(settings, framework.registry, clock, store, dispatches=False).submission.check(request)


async def _submit(
    framework: AnyFramework,
    request: SubmitRequest,
    should_wait: bool,
    timeout: timedelta | None,
    as_json: bool,
) -> TaskStatus:
    async with framework.store_only():
        submission = await framework.services.submission.submit(request)
        task = submission.task
        if not as_json:
            say(f"{'Submitted' if submission.is_new else 'Submitted before:'} {task.task_type} {task.task_id}")
        if should_wait:
            try:
                task = await follow(framework.handle(task.task_id), timeout)
            except asyncio.CancelledError:  # by Ctrl-C
                note(f"The task keeps running. To follow it again: taskframework tasks watch {task.task_id}")
                raise
    if as_json:
        print_json(public_view(task))
    elif should_wait:
        print_outcome(task)
    else:
        print_next_step(task)
    return task.status
