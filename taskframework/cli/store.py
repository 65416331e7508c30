"""Working on the store from a command."""

from __future__ import annotations

import getpass
import os

from taskframework.cli.invocation import Invocation
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings, sqlite_file


def store_framework(invocation: Invocation) -> TaskFramework:
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
