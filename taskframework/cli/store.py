"""Working on the store from a command."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
from collections.abc import Callable, Coroutine
from inspect import Parameter
from typing import Any

import typer

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Config
from taskframework.cli.output import run
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings, sqlite_file


def on_store(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A command that gets a framework with an open store first; typer sees --config in its place, before --json."""

    @functools.wraps(command)
    def with_store(context: typer.Context, config: Config, **given: Any) -> None:
        framework = _store_framework(Invocation.of(context, config))

        async def work() -> None:
            async with framework.store_only():
                await command(framework, **given)

        run(work())

    signature = inspect.signature(command, eval_str=True)
    _, *options, as_json = signature.parameters.values()
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    config = Parameter("config", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Config)
    with_store.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[context, *options, config, as_json]
    )
    return with_store


def _store_framework(invocation: Invocation) -> TaskFramework:
    """A framework without task types, to look at tasks and operate on them with `store_only`.

    Raises:
        ConfigurationError: if the settings cannot be used, or if there is no store yet: looking makes none.
    """
    framework = invocation.framework(registers=False)
    if lacks_store(framework.settings):
        raise ConfigurationError(
            f"There is no store here yet: {sqlite_file(framework.settings.store.url)} does not exist.",
            key="store.url",
            hint="`taskframework dev --app yourmodule` makes it. For a store elsewhere set store.url, or name its "
            "settings file with --config.",
        )
    return framework


def lacks_store(settings: Settings) -> bool:
    """Whether the file of the store is still to be made."""
    return settings.store.scheme == "sqlite" and not os.path.exists(sqlite_file(settings.store.url))


def operator() -> str:
    """Who acts, as the history names them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return "cli"
