"""`replays`: actions on many tasks: list them, look at one, stop it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.choosing import tell
from taskframework.cli.options import Cursor, Json, Limit
from taskframework.cli.output import ago, note, print_json, printable
from taskframework.cli.render import print_rows
from taskframework.cli.store import audited, on_store
from taskframework.model.replays import ManyReplay, replay_view
from taskframework.runtime import TaskFramework

app = typer.Typer(no_args_is_help=True, help="Replays, cancels and discards of many: list, show, stop.")

ReplayId = Annotated[str, typer.Argument(metavar="ID", help="The id from the list.")]


@app.command("list")
@on_store
async def list_replays(
    framework: TaskFramework, limit: Limit = 20, cursor: Cursor = None, as_json: Json = False
) -> None:
    """List actions on many tasks, those that are over included."""
    page = await framework.services.replays.list_replays(limit=limit, after=cursor)
    if as_json:
        print_json({"items": [replay_view(each) for each in page.items], "next_cursor": page.next_cursor})
        return
    if page.items:
        now = framework.services.store.now()
        rows = [
            (
                Text(each.replay_id),
                Text(each.action),
                Text(printable(_chosen(each))),
                Text(each.status),
                Text(f"{each.done:,}/{each.total:,}"),
                Text(f"{each.refused + each.failed:,}", style="red" if each.refused + each.failed else ""),
                Text(f"{each.by}, {ago(each.at, now)}"),
            )
            for each in page.items
        ]
        print_rows(("Replay", "What", "Where", "Status", "Done", "Not done", "Begun"), rows)
    else:
        note("None so far. Begin one: taskframework dlq replay --where fingerprint=...")
    if page.next_cursor:
        note(f"More: --cursor {page.next_cursor}")


@app.command()
@on_store
async def show(framework: TaskFramework, replay_id: ReplayId, as_json: Json = False) -> None:
    """Show how far one is."""
    _print(await framework.services.replays.get(replay_id), as_json)


@app.command()
@on_store
@audited("replay.stop", of="replay_id")
async def stop(framework: TaskFramework, replay_id: ReplayId, as_json: Json = False) -> None:
    """Let one begin with no more; it tells what it did, and is not continued."""
    _print(await framework.services.replays.stop(replay_id), as_json)


def _print(replay: ManyReplay, as_json: bool) -> None:
    if as_json:
        print_json(replay_view(replay))
    else:
        tell(replay)


def _chosen(replay: ManyReplay) -> str:
    return " ".join(f"{name}={value}" for name, value in replay.where.conditions.items())
