"""`replays`: actions on many tasks: list them, show one, stop it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from shlex import quote
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.bulk_actions import CONDITION_NAMES, print_progress
from taskframework.cli.options import Cursor, Json, Limit
from taskframework.cli.output import ago, note, print_json, printable
from taskframework.cli.render import print_page, print_rows
from taskframework.cli.store import AnyFramework, RefusedExit, audited, on_store
from taskframework.model.replays import BulkAction, replay_view
from taskframework.operations.replays import stop_refusal

app = typer.Typer(no_args_is_help=True, help="Replays, retries, cancels and discards of many tasks: list, show, stop.")

ReplayId = Annotated[str, typer.Argument(metavar="ID", help="The id from the list.")]


@app.command("list")
@on_store
async def list_replays(
    framework: AnyFramework, limit: Limit = 20, cursor: Cursor = None, as_json: Json = False
) -> None:
    """List actions on many tasks, including finished ones."""
    page = await framework.services.replays.list_replays(limit=limit, cursor=cursor)
    show = partial(_print_all, framework.services.store.now())
    nothing = "No actions yet. To start one: taskframework dlq replay --where fingerprint=..."
    print_page(page, show, replay_view, as_json=as_json, nothing=nothing)


@app.command()
@on_store
async def show(framework: AnyFramework, replay_id: ReplayId, as_json: Json = False) -> None:
    """Show the progress of one action."""
    _print(await framework.services.replays.get(replay_id), as_json)


@app.command()
@on_store
@audited("replay.stop", target="replay_id")
async def stop(framework: AnyFramework, replay_id: ReplayId, as_json: Json = False) -> None:
    """Stop one for good. It reports what it has done so far; exit code 1 if it had already finished."""
    stopped = await framework.services.replays.stop(replay_id)
    _print(stopped, as_json)
    if (refusal := stop_refusal(stopped)) is not None:
        note(refusal)
        raise RefusedExit(refusal)


def _print(replay: BulkAction, as_json: bool) -> None:
    if as_json:
        print_json(replay_view(replay))
    else:
        print_progress(replay)


def _print_all(now: datetime, replays: Sequence[BulkAction]) -> None:
    rows = [
        (
            Text(replay.replay_id),
            Text(replay.action),
            Text(printable(_conditions_text(replay))),
            Text(replay.status),
            Text(f"{replay.done:,}/{replay.total:,}{'+' if replay.is_total_bounded else ''}"),
            Text(f"{replay.refused + replay.failed:,}", style="red" if replay.refused + replay.failed else ""),
            Text(f"{replay.skipped:,}"),
            Text(f"{replay.remaining + len(replay.batch):,}"),
            Text(f"{replay.by}, {ago(replay.at, now)}"),
        )
        for replay in replays
    ]
    print_rows(("Replay", "What", "Where", "Status", "Done", "Refused or failed", "Skipped", "Not done", "Begun"), rows)


def _conditions_text(replay: BulkAction) -> str:
    """The conditions as `--where` takes them."""
    return " ".join(quote(f"{CONDITION_NAMES[name]}={value}") for name, value in replay.where.conditions.items())
