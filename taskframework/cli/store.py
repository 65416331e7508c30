"""Working on the store from a command, or on an installation at an address: the command does not see which."""

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
from taskframework.cli.options import Api, ApiKey, ApiKeyBesideKey, Config, Reason
from taskframework.cli.output import run
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings, sqlite_file
from taskframework.submission.types import naming_store

if TYPE_CHECKING:
    from taskframework.cli.remote.framework import RemoteFramework

    #: What a command gets. mypy looks at each use of it for both: what a command asks of a store, an API must answer.
    AnyFramework: TypeAlias = TaskFramework | RemoteFramework
else:
    AnyFramework = TaskFramework  # typer evaluates the annotations; the other one loads what speaks HTTP

#: Most characters of the ids in a note of the audit.
_MOST_TOLD = 1000


class NotDone(typer.Exit):
    """A command that has told why it did nothing; the note of it tells so, too."""

    def __init__(self, why: str | None) -> None:
        super().__init__(1)
        self.why = why


def on_store(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A command that gets a framework with an open store first, or one that asks an API.

    The options --api, --key and --config are added to its signature before --json, where typer finds them.
    """

    @functools.wraps(command)
    def with_store(
        context: typer.Context, api: str | None, api_key: str | None, config: Path | None, **given: Any
    ) -> None:
        framework = remote_framework(api, api_key) or _store_framework(Invocation.of(context, config))

        async def work() -> None:
            async with framework.store_only():
                await command(framework, **given)

        with naming_store(framework.settings.store.url) if isinstance(framework, TaskFramework) else nullcontext():
            run(work())

    signature = inspect.signature(command, eval_str=True)
    _, *options, as_json = signature.parameters.values()
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    key = ApiKeyBesideKey if any(map(_is_key_option, options)) else ApiKey
    places = {"api": Api, "api_key": key, "config": Config}
    asked = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=place)
        for name, place in places.items()
    ]
    with_store.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[context, *options, *asked, as_json]
    )
    return with_store


def _is_key_option(parameter: Parameter) -> bool:
    """Whether a parameter of a command is `--key`; the argument KEY of a stream is not."""
    told = getattr(parameter.annotation, "__metadata__", ())
    return parameter.name == "key" and any(isinstance(one, OptionInfo) for one in told)


def remote_framework(url: str | None, key: str | None) -> RemoteFramework | None:
    """An installation at an address; None: it is worked on the store.

    Args:
        url: the address. The variable of it may hold the whole section `api` of the settings instead.
        key: what is shown there.

    Raises:
        ConfigurationError: if the address is none.
    """
    if not url or url.startswith("{"):
        return None
    from taskframework.cli.remote.framework import RemoteFramework  # here: it loads what speaks HTTP

    return RemoteFramework(url, key)


def audited(
    action: str, *, of: str, shown: Sequence[str] = ()
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., Coroutine[Any, Any, None]]]:
    """A command of `on_store` that is noted as an operator's action; each gets --reason, if it has none.

    Args:
        action: as in `AuditLog.noted`.
        of: the argument that says what it is done to.
        shown: further arguments that the note tells.
    """

    def decorate(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        signature = inspect.signature(command, eval_str=True)
        takes_reason = "reason" in signature.parameters

        @functools.wraps(command)
        async def audit(framework: AnyFramework, *, reason: str | None = None, **given: Any) -> None:
            details = {name: given[name] for name in shown if given[name]}
            note = framework.services.audit.noted(action, _told(given[of]), by=operator(), reason=reason, **details)
            async with nullcontext() if given.get("dry_run") else note as noted:
                try:
                    await command(framework, **given, **({"reason": reason} if takes_reason else {}))
                except NotDone as end:
                    if noted is not None:
                        noted.refusal = end.why
                    raise

        if not takes_reason:
            *options, as_json = signature.parameters.values()
            why = Parameter("reason", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Reason)
            signature = signature.replace(parameters=[*options, why, as_json])
        audit.__signature__ = signature  # type: ignore[attr-defined]
        return audit

    return decorate


def _told(target: str | Sequence[str] | None) -> str | None:
    """What an action was done to, as the note tells it."""
    return target if isinstance(target, str) else ", ".join(target or ())[:_MOST_TOLD] or None


def _store_framework(invocation: Invocation) -> TaskFramework:
    """A framework without task types, to look at tasks and operate on them with `store_only`.

    Raises:
        ConfigurationError: if the settings cannot be used, or if there is no store yet: looking makes none.
    """
    framework = invocation.framework(registers=False)
    if lacks_store(framework.settings):
        raise _no_store(framework.settings)
    return framework


def with_types(invocation: Invocation, framework: TaskFramework) -> TaskFramework:
    """The framework to submit with where the store is still to be made, and so nobody has declared a task type.

    Raises:
        ConfigurationError: if --app names no module either; most often it is the wrong folder.
    """
    if not len(invocation.register(framework).registry):
        raise _no_store(framework.settings)
    return framework


def _no_store(settings: Settings) -> ConfigurationError:
    return ConfigurationError(
        f"There is no store here yet: {sqlite_file(settings.store.url)} does not exist.",
        key="store.url",
        hint="Run the command in the folder where `dev` runs; `taskframework dev --app yourmodule` creates the store. "
        "For a store elsewhere, set store.url or give its settings file with --config.",
    )


def lacks_store(settings: Settings) -> bool:
    """Whether the file of the store is still to be made."""
    return settings.store.scheme == "sqlite" and not os.path.exists(sqlite_file(settings.store.url))


def operator() -> str:
    """Who acts, as the history names them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return "cli"
