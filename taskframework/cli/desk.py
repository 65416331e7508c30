"""Working on the store from a command."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskframework.cli.invocation import Invocation
from taskframework.cli.output import note
from taskframework.runtime import TaskFramework
from taskframework.settings import sqlite_file


@asynccontextmanager
async def open_desk(invocation: Invocation) -> AsyncIterator[TaskFramework]:
    """A framework with its store open and no task types: to look and to operate."""
    framework = invocation.framework(registers=False)
    store = framework.settings.store
    if store.scheme == "sqlite" and not sqlite_file(store.url).exists():
        note(f"{sqlite_file(store.url)} was not there: no task was ever submitted in this folder. See store.url.")
    async with framework.desk_only():
        yield framework


def operator() -> str:
    """Who acts, as the history names them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return "cli"
