"""`streams`: show an ordered stream, read its results, let one go on that halted."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer
from rich.text import Text

from taskframework.cli.options import Json
from taskframework.cli.output import note, print_json, say
from taskframework.cli.render import print_rows
from taskframework.cli.store import audited, on_store
from taskframework.model.query import MAX_LIMIT
from taskframework.operations.streams import StreamStatus
from taskframework.runtime import TaskFramework

app = typer.Typer(no_args_is_help=True, help="Ordered streams: show one, read its results, let it go on.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the stream.")]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Whose stream it is.")]
First = Annotated[int, typer.Option("--from", metavar="POSITION", min=0, help="The position to begin with.")]
Most = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MAX_LIMIT, help="Most results.")]


@app.command()
@on_store
async def show(framework: TaskFramework, key: Key, user: User = None, as_json: Json = False) -> None:
    """Show whose turn it is in a stream, and how many wait."""
    status = await framework.stream(key, user_id=user).status()
    if as_json:
        print_json(status.view())
    else:
        _print(status)


@app.command()
@on_store
async def results(
    framework: TaskFramework, key: Key, user: User = None, first: First = 0, limit: Most = 50, as_json: Json = False
) -> None:
    """Show the results of a stream in order, up to the first that is waited for."""
    handle = framework.stream(key, user_id=user)
    page = await handle.operations.results(handle.stream, limit=limit, first=first)
    if as_json:
        print_json({"items": [result.view() for result in page.items], "next_cursor": page.next_cursor})
        return
    if not page.items:
        note(f"No result at position {first} yet.")
        return
    rows = [
        (Text(str(result.position)), Text(result.status), Text(result.task_id or "-"), Text(_short(result.result)))
        for result in page.items
    ]
    print_rows(("Position", "Status", "Task", "Result"), rows)


@app.command("go-on")
@on_store
@audited("stream.go-on", of="key", shown=["user"])
async def go_on(framework: TaskFramework, key: Key, user: User = None, as_json: Json = False) -> None:
    """Let a halted stream go on without the task that failed."""
    status = await framework.stream(key, user_id=user).go_on()
    if as_json:
        print_json(status.view())
    else:
        say(f"Stream {key} goes on.")


def _print(status: StreamStatus) -> None:
    view = status.view()
    turn = view["turn"]
    say(f"Stream {status.key} ({status.stream.mode}): {status.stream.next_position} positions given.")
    if turn is not None:
        say(f"The turn has task {turn['task_id']} at position {turn['position']}; {status.waiting} wait.")
    if status.stream.is_halted and turn is not None:
        note(f"It is halted, since that task failed. Run it again: taskframework tasks retry {turn['task_id']}")
        note(f"Or go on without it: taskframework streams go-on {status.key}")


def _short(value: object) -> str:
    return "" if value is None else orjson.dumps(value).decode()[:60]
