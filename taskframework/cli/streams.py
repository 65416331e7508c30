"""`streams`: list ordered streams, show one, read its results, continue a halted one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.options import MAX_NUMBER, Cursor, Json, Limit, whole_number
from taskframework.cli.output import note, print_json, print_json_line, printable, say
from taskframework.cli.render import print_page, print_rows, result_text
from taskframework.cli.store import AnyFramework, audited, on_store
from taskframework.model.query import MAX_LIMIT
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import go_on_command
from taskframework.model.wording import pluralize
from taskframework.operations.streams import ListedStream, StreamStatus

app = typer.Typer(
    no_args_is_help=True, help="Ordered streams: list them, show one, read its results, continue a halted one."
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the stream.")]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Whose stream it is.")]
Halted = Annotated[bool, typer.Option("--halted", help="Only streams that have halted because a task failed.")]
First = Annotated[
    int,
    typer.Option("--from", metavar="POSITION", parser=whole_number(0, MAX_NUMBER), help="The first position to read."),
]
Position = Annotated[
    int | None,
    typer.Option(
        "--position",
        metavar="POSITION",
        parser=whole_number(0, MAX_NUMBER),
        help="Only if the task at this position halted it.",
        show_default=False,
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Print each result as a line of JSON as soon as it is available, until Ctrl-C.")
]
ResultLimit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MAX_LIMIT, help="Most results.")]


@app.command("list")
@on_store
async def list_streams(
    framework: AnyFramework,
    halted: Halted = False,
    user: User = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List the streams by user and key, or those that halted."""
    scope = EVERYONE if user is None else Scope.of(user)
    is_halted = True if halted else None
    page = await framework.services.streams.list_streams(scope, limit=limit, cursor=cursor, is_halted=is_halted)

    def show_all(found: Sequence[ListedStream]) -> None:
        rows = [
            (
                Text(printable(listed.owner.key)),
                Text(listed.owner.user_id),
                Text(listed.stream.mode),
                *_turn_cells(listed),
            )
            for listed in found
        ]
        print_rows(("Key", "User", "Mode", "Given", "Last turn", "State"), rows)

    nothing = "No stream has halted." if halted else "No streams."
    print_page(page, show_all, ListedStream.view, as_json=as_json, nothing=nothing)


def _turn_cells(listed: ListedStream) -> tuple[Text, ...]:
    stream, turn = listed.stream, listed.stream.turn
    state = Text("halted", style="red") if stream.is_halted else Text("")
    return Text(f"{stream.next_position:,}"), Text("-" if turn is None else turn.task_id), state


@app.command()
@on_store
async def show(framework: AnyFramework, key: Key, user: User = None, as_json: Json = False) -> None:
    """Show which task has the turn in a stream, and how many are waiting."""
    status = await framework.stream(key, user_id=user).status()
    if as_json:
        print_json(status.view())
    else:
        _print_status(status, user)


@app.command()
@on_store
async def results(
    framework: AnyFramework,
    key: Key,
    user: User = None,
    first: First = 0,
    limit: ResultLimit = 50,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Show the results of a stream in order, up to the first one that is not there yet."""
    handle = framework.stream(key, user_id=user)
    if follow:
        async for result in handle.results(first=first):
            print_json_line(result.view())
        return
    page = await handle.operations.results(handle.stream, limit=limit, first=first)
    if as_json:
        print_json({"items": [result.view() for result in page.items], "next_cursor": page.next_cursor})
        return
    if not page.items:
        note(f"No result at position {first} yet.")
        return
    rows = [
        (
            Text(str(result.position)),
            Text(result.status),
            Text(result.task_id or "-"),
            Text(_outcome_text(result)),
        )
        for result in page.items
    ]
    print_rows(("Position", "Status", "Task", "Result"), rows)


@app.command("go-on")
@on_store
@audited("stream.go-on", target="key", details=["user", "position"])
async def go_on(
    framework: AnyFramework, key: Key, user: User = None, position: Position = None, as_json: Json = False
) -> None:
    """Continue a halted stream without the task that failed."""
    status = await framework.stream(key, user_id=user).go_on(position=position)
    if as_json:
        print_json(status.view())
    else:
        say(f"Stream {key} continues.")


def _outcome_text(result: StreamResult) -> str:
    nothing = result.result is None and result.error is None  # skipped, cancelled, or without a result
    return "" if nothing else result_text(result.result, result.error)


def _print_status(status: StreamStatus, user: str | None) -> None:
    view = status.view()
    turn = view["turn"]
    say(f"Stream {status.key} ({status.stream.mode}): {pluralize(status.stream.next_position, 'position')} used.")
    if turn is not None:
        say(f"Task {turn['task_id']} at position {turn['position']} has the turn; {status.waiting} waiting.")
    if status.stream.is_halted and turn is not None:
        note(f"It has halted because that task failed. To run it again: taskframework tasks retry {turn['task_id']}")
        note(f"Or continue without it: {go_on_command(user, status.key, turn['position'])}")
