"""`dlq`: the dead letters, which are failed tasks and messages that nobody could read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.options import Cursor, Json, Limit, Reopen
from taskframework.cli.output import as_json_text, facts, note, out, print_json, say
from taskframework.cli.render import print_letters, print_page, print_task
from taskframework.cli.store import on_store, operator
from taskframework.model.message import rfc3339
from taskframework.model.query import DeadMessage
from taskframework.model.scope import EVERYONE
from taskframework.operations.dead_letters import DeadLetter, ReplayOutcome
from taskframework.runtime import TaskFramework

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, replay.")

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The id from the list; of a task it is the task's id.")]
LetterIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids from the list.")]


@app.command("list")
@on_store
async def list_letters(
    framework: TaskFramework, limit: Limit = 20, cursor: Cursor = None, as_json: Json = False
) -> None:
    """List dead letters, the newest first."""
    page = await framework.services.dead_letters.list_letters(EVERYONE, limit=limit, cursor=cursor)

    def show(letters: Sequence[DeadLetter]) -> None:
        print_letters(letters, framework.services.store.now())
        note("Look at one: taskframework dlq show ID. Queue tasks anew: taskframework dlq replay ID...")

    print_page(page, show, DeadLetter.view, as_json=as_json, nothing="No dead letters.")


@app.command()
@on_store
async def show(framework: TaskFramework, letter_id: LetterId, as_json: Json = False) -> None:
    """Show one dead letter: a task with its history, a message with its bytes."""
    letter = await framework.services.dead_letters.get(letter_id, EVERYONE)
    if as_json:
        print_json(letter.view(whole=True))
    elif isinstance(letter.entry, DeadMessage):
        out().print(facts(_message_facts(letter, letter.entry)))
        note("No task belongs to it, so it cannot be replayed.")
    else:
        print_task(letter.entry)


@app.command()
@on_store
async def replay(
    framework: TaskFramework, letter_ids: LetterIds, reopen: Reopen = False, as_json: Json = False
) -> None:
    """Queue dead tasks anew; exit code 0 if all were."""
    outcomes = await framework.services.dead_letters.replay(letter_ids, EVERYONE, by=operator(), reopen=reopen)
    if as_json:
        print_json([_outcome_view(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            say(f"{outcome.id}: {outcome.problem or 'queued anew.'}")
    if any(outcome.problem is not None for outcome in outcomes):
        raise typer.Exit(1)


def _message_facts(letter: DeadLetter, message: DeadMessage) -> list[tuple[str, str | Text]]:
    return [
        ("Dead letter", Text(letter.id, style="bold")),
        ("Kind", "message"),
        ("Kept", rfc3339(message.at)),
        ("From queue", message.queue),
        ("Reason", Text(message.reason, style="red")),
        ("Headers", as_json_text(message.headers)),
        ("Body", f"{len(message.body):,} bytes"),
        ("", repr(message.body[:2000])[2:-1]),
    ]


def _outcome_view(outcome: ReplayOutcome) -> dict[str, str | bool | None]:
    problem = outcome.problem
    return {"id": outcome.id, "replayed": problem is None, "problem": str(problem) if problem else None}
