"""`audit`: what operators did."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer
from rich.text import Text

from taskframework.cli.options import Cursor, Json, Limit
from taskframework.cli.output import ago, note, print_json, printable
from taskframework.cli.render import print_rows
from taskframework.cli.store import on_store
from taskframework.model.audit import AuditEntry
from taskframework.operations.audit import audit_view
from taskframework.runtime import TaskFramework

app = typer.Typer(no_args_is_help=True, help="What operators did: who, what, when and why.")

By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Only what this operator did.")]
Action = Annotated[
    str | None, typer.Option("--action", metavar="NAME", help="Only this action, or those on this: queue, queue.pause.")
]


@app.callback()
def audit() -> None:
    """What operators did: who, what, when and why."""


@app.command("list")
@on_store
async def list_entries(
    framework: TaskFramework,
    by: By = None,
    action: Action = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List what operators did over HTTP and on the command line, the newest first."""
    page = await framework.services.audit.list_entries(limit=limit, cursor=cursor, by=by, action=action)
    if as_json:
        print_json({"items": [audit_view(entry) for entry in page.items], "next_cursor": page.next_cursor})
        return
    if page.items:
        now = framework.services.store.now()
        rows = [
            (Text(ago(entry.at, now)), Text(entry.by), Text(entry.action), Text(_target(entry)), _why(entry))
            for entry in page.items
        ]
        print_rows(("When", "Who", "What", "To what", "Why"), rows)
    else:
        note("Nothing so far.")
    if page.next_cursor:
        note(f"More: --cursor {page.next_cursor}")


def _target(entry: AuditEntry) -> str:
    details = orjson.dumps(entry.details).decode() if entry.details else ""
    return printable(" ".join(part for part in (entry.target, details) if part))


def _why(entry: AuditEntry) -> Text:
    if entry.refusal is not None:
        return Text(f"refused: {printable(entry.refusal)}", style="red")
    return Text(printable(entry.reason or ""))
