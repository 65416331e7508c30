"""Lets a command work on the store, or on an installation at an address; the command does not see the difference."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer
from typer.models import OptionInfo

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Api, ApiKey, ApiKeyBesideKey, Config, Reason, is_address
from taskframework.cli.output import run
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings, sqlite_file
from taskframework.submission.types import NamingStore

if TYPE_CHECKING:
    from taskframework.cli.remote.framework import RemoteFramework

    #: The argument of a command. mypy checks each use for both classes, so an API must offer all that a command uses.
    AnyFramework: TypeAlias = TaskFramework | RemoteFramework
else:
    AnyFramework = TaskFramework  # typer evaluates the annotations; RemoteFramework would import the code for HTTP

#: How many characters of the ids an audit record has at most.
_MAX_TARGET_LENGTH = 1000


class RefusedExit(typer.Exit):
    """The command printed why it did nothing; the audit record gets the reason, too."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(1)
        self.reason = reason


def on_store(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a command that first gets a framework with an open store, or a framework that calls an API.

    The options --api, --key and --config are added to its signature before --json, where typer finds them.
    """

    @functools.wraps(command)
    def with_store(
        context: typer.Context, api: str | None, api_key: str | None, config: Path | None, **arguments: Any
    ) -> None:
        framework = remote_framework(api, api_key) or _framework_on_store(Invocation.of(context, config))

        async def work() -> None:
            async with framework.store_only():
                await command(framework, **arguments)

        with NamingStore(framework.settings.store.url) if isinstance(framework, TaskFramework) else nullcontext():
            run(work())

    signature = inspect.signature(command, eval_str=True)
    _, *options, as_json = signature.parameters.values()
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    key = ApiKeyBesideKey if any(map(_is_key_option, options)) else ApiKey
    annotations = {"api": Api, "api_key": key, "config": Config}
    added_options = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    with_store.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[context, *options, *added_options, as_json]
    )
    return with_store


def _is_key_option(parameter: Parameter) -> bool:
    """Return whether a parameter of a command is the option `--key`; the argument KEY of a stream is not."""
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return parameter.name == "key" and any(isinstance(item, OptionInfo) for item in metadata)


def remote_framework(url: str | None, key: str | None) -> RemoteFramework | None:
    """An installation at an address; None if the command works on the store.

    Args:
        url: the address, if one was given.
        key: the key that is sent there.

    Raises:
        ConfigurationError: if the address is not one of an API.
    """
    if not is_address(url):
        return None
    from taskframework.cli.remote.framework import RemoteFramework  # here: it imports the code for HTTP

    return RemoteFramework(url, key)


def audited(
    action: str, *, target: str, details: Sequence[str] = ()
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., Coroutine[Any, Any, None]]]:
    """Record a command of `on_store` as an operator's action. A command without --reason gets this option.

    Args:
        action: as in `AuditLog.noted`.
        target: the name of the argument with the target of the action.
        details: further arguments that the record shows.
    """

    def decorate(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        signature = inspect.signature(command, eval_str=True)
        takes_reason = "reason" in signature.parameters

        @functools.wraps(command)
        async def audit(framework: AnyFramework, *, reason: str | None = None, **arguments: Any) -> None:
            given_details = {name: arguments[name] for name in details if arguments[name]}
            shown_target = _target_text(arguments[target])
            note = framework.services.audit.noted(
                action, shown_target, by=operator_name(), reason=reason, **given_details
            )
            async with nullcontext() if arguments.get("dry_run") else note as noted:
                try:
                    await command(framework, **arguments, **({"reason": reason} if takes_reason else {}))
                except RefusedExit as end:
                    if noted is not None:
                        noted.refusal = end.reason
                    raise

        if not takes_reason:
            *options, as_json = signature.parameters.values()
            reason_option = Parameter("reason", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Reason)
            signature = signature.replace(parameters=[*options, reason_option, as_json])
        audit.__signature__ = signature  # type: ignore[attr-defined]
        return audit

    return decorate


def _target_text(target: str | Sequence[str] | None) -> str | None:
    """The target of an action, as the audit record shows it."""
    return target if isinstance(target, str) else ", ".join(target or ())[:_MAX_TARGET_LENGTH] or None


def _framework_on_store(invocation: Invocation) -> TaskFramework:
    """A framework without task types, to look at tasks and work on them with `store_only`.

    Raises:
        ConfigurationError: if the settings cannot be used, or if there is no store yet: a look must not create one.
    """
    framework = invocation.framework(registers=False)
    if is_store_missing(framework.settings):
        raise _no_store_error(framework.settings)
    return framework


def register_types(invocation: Invocation, framework: TaskFramework) -> TaskFramework:
    """Register task types for a submission if the store does not exist yet, because then no types are declared.

    Raises:
        ConfigurationError: if --app names no module; then the folder is probably the wrong one.
    """
    if not len(invocation.register(framework).registry):
        raise _no_store_error(framework.settings)
    return framework


def _no_store_error(settings: Settings) -> ConfigurationError:
    return ConfigurationError(
        f"There is no store here yet: {sqlite_file(settings.store.url)} does not exist.",
        key="store.url",
        hint="Run the command in the folder where `dev` runs; `taskframework dev --app yourmodule` creates the store. "
        "For a store elsewhere, set store.url or give its settings file with --config.",
    )


def is_store_missing(settings: Settings) -> bool:
    """Return whether the file of the store does not exist yet."""
    return settings.store.scheme == "sqlite" and not os.path.exists(sqlite_file(settings.store.url))


def operator_name() -> str:
    """The name of the operator in the history."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return "cli"
