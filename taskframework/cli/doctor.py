"""`doctor`: what runs here, what is reachable, and what to do about each problem."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer
from rich.text import Text

from taskframework import wiring
from taskframework.brokers.base import BrokerReport
from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Apps, Config, Json
from taskframework.cli.output import facts, out, print_json, run, say
from taskframework.clock import SystemClock
from taskframework.errors import TaskframeworkError
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings, redacted
from taskframework.settings.load import FILE_NAME, PROFILE_VARIABLE
from taskframework.stores.base import StoreReport

_PACKAGES = ("aio-pika", "motor", "pymongo", "aiosqlite", "fastapi", "uvicorn", "uvloop", "pydantic")
_NOT_THERE_YET = "state"


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: what is known about it, and what is wrong, each with its remedy."""

    name: str
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()


def doctor(context: typer.Context, config: Config = None, app: Apps = None, as_json: Json = False) -> None:
    """Check versions, settings, program, store and broker; exit code 1 if anything is wrong."""
    findings = run(_examine(Invocation.of(context, config, app)))
    problems = [problem for finding in findings for problem in finding.problems]
    if as_json:
        print_json({"ok": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
        say("No problem found." if not problems else "", style="green")
    if problems:
        raise typer.Exit(1)
