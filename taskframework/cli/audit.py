"""`audit`: the actions of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import orjson
import typer
from rich.text import Text

from taskframework.cli.options import Cursor, Json, Limit
from taskframework.cli.output import ago, printable
from taskframework.cli.render import print_page, print_rows
from taskframework.cli.store import AnyFramework, on_store
from taskframework.model.audit import AuditEntry
from taskframework.operations.audit import audit_view

app = typer.Typer(no_args_is_help=True, help="The audit log: what operators did, when and why.")

By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Only actions of this operator.")]
Action = Annotated[
    str | None,
    typer.Option(
        "--action", metavar="NAME", help="Only this action, or all actions on one thing: queue.pause, or queue."
    ),
]


@app.callback()
def audit() -> None:
    """The audit log: what operators did, when and why."""


@app.command("list")
@on_store
async def list_entries(
    framework: AnyFramework,
    by: By = None,
    action: Action = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List what operators did over HTTP and on the command line, the newest first."""
    page = await framework.services.audit.list_entries(limit=limit, cursor=cursor, by=by, action=action)
    now = framework.services.store.now()

    def show(entries: Sequence[AuditEntry]) -> None:
        rows = [
            (
                Text(ago(entry.at, now)),
                Text(entry.by),
                Text(entry.action),
                Text(_target_text(entry)),
                _reason_text(entry),
            )
            for entry in entries
        ]
        print_rows(("When", "Who", "What", "Target", "Why"), rows)

    nothing = "No entries yet." if by is None and action is None else "No such entries."
    print_page(page, show, audit_view, as_json=as_json, nothing=nothing)


def _target_text(entry: AuditEntry) -> str:
    details = orjson.dumps(entry.details).decode() if entry.details else ""
    return printable(" ".join(part for part in (entry.target, details) if part))


def _reason_text(entry: AuditEntry) -> Text:
    if entry.refusal is not None:
        return Text(f"refused: {printable(entry.refusal)}", style="red")
    return Text(printable(entry.reason or ""))
