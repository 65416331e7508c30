"""Working on the store from a command."""

from __future__ import annotations

import getpass

from taskframework.cli.invocation import Invocation
from taskframework.cli.output import note
from taskframework.runtime import TaskFramework
from taskframework.settings import sqlite_file


def desk_framework(invocation: Invocation) -> TaskFramework:
    """A framework without task types, to look at tasks and operate on them with `desk_only`.

    Raises:
        ConfigurationError: if the settings cannot be used.
    """
    framework = invocation.framework(registers=False)
    store = framework.settings.store
    if store.scheme == "sqlite" and not sqlite_file(store.url).exists():
        note(f"{sqlite_file(store.url)} was not there: nothing was ever submitted to it. store.url names the file.")
    return framework


def operator() -> str:
    """Who acts, as the history names them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return "cli"
