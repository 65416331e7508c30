"""`dlq`: the dead letters, which are failed tasks and dead messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
import typer
from rich.text import Text

from taskframework.cli.bulk_actions import (
    Background,
    DryRun,
    LettersWhere,
    Rate,
    letters_where,
    note_unknown_type,
    print_count,
    run_bulk_action,
    validates_choice,
)
from taskframework.cli.options import REASON_HELP, Cursor, Json, Limit, Reopen, TaskReason, choice_option, reason_option
from taskframework.cli.output import ago, as_json_text, facts, note, out, print_json, printable, say
from taskframework.cli.reading import past_time_option, read_json
from taskframework.cli.render import print_letters, print_page, print_rows, print_task, shorten
from taskframework.cli.store import AnyFramework, RefusedExit, audited, on_store, operator_name
from taskframework.model.action_filters import Action
from taskframework.model.letters import LetterFilter, LetterGroup
from taskframework.model.message import rfc3339
from taskframework.model.query import MAX_LIMIT, DeadMessage
from taskframework.model.scope import ANONYMOUS, EVERYONE, Scope
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.model.wording import pluralize
from taskframework.operations.dead_letters import LetterOutcome, refusal_of
from taskframework.operations.letter_views import DeadLetter
from taskframework.operations.mending import read_corrected
from taskframework.operations.replays import scope_of

app = typer.Typer(no_args_is_help=True, help="Dead letters: groups, list, show, edit, replay, discard, repair.")

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The id from the list; for a task, the task's id.")]
LetterIds = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids from the list.")]
TypeName = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only of this task type.")]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", metavar="TEXT", help="Only this group: the fingerprint of an error.")
]
Contained = Annotated[str | None, typer.Option("--text", metavar="TEXT", help="Only if the error contains this text.")]
Kind = Annotated[
    Literal["task", "message"] | None, choice_option("--kind", ("task", "message"), "Only tasks, or only messages.")
]
OfUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only of this user.")]
Since = Annotated[datetime | None, past_time_option("--after", "Only if ended or received since a time, or 10m.")]
Before = Annotated[datetime | None, past_time_option("--before", "Only if ended or received before a time, or 10m.")]
Parameters = Annotated[
    Any,
    typer.Argument(parser=read_json, metavar="JSON", help="The new parameters; - reads standard input, @FILE a file."),
]
RequiredReason = Annotated[str | None, reason_option(f"{REASON_HELP} Required, except for a dry run.")]
NewType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Task type, if the JSON does not name it.")]
Corrected = Annotated[
    Any,
    typer.Argument(
        parser=read_json, metavar="JSON", help='{"task_type": …, "parameters": …}, or the parameters alone with --type.'
    ),
]
ForUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Owner of the task.")]


_SPARKLINE_BARS = " ▁▂▃▄▅▆▇█"


@app.command("list")
@on_store
async def list_letters(
    framework: AnyFramework,
    task_type: TypeName = None,
    fingerprint: Fingerprint = None,
    text: Contained = None,
    kind: Kind = None,
    user: OfUser = None,
    after: Since = None,
    before: Before = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List dead letters, the newest first."""
    wanted = LetterFilter(
        kind=kind, task_type=task_type, fingerprint=fingerprint, text=text, finished_after=after, finished_before=before
    )
    scope = EVERYONE if user is None else Scope.of(user)
    page = await framework.services.dead_letters.list_letters(scope, limit=limit, cursor=cursor, wanted=wanted)

    def show(letters: Sequence[DeadLetter]) -> None:
        print_letters(letters, framework.services.store.now())
        note("To see one: taskframework dlq show ID. To queue tasks again: taskframework dlq replay ID...")

    if not page.items:
        await note_unknown_type(framework, task_type)
    nothing = "No dead letters." if wanted == LetterFilter() and user is None else "No such dead letters."
    print_page(page, show, DeadLetter.view, as_json=as_json, nothing=nothing)


@app.command()
@on_store
async def groups(framework: AnyFramework, task_type: TypeName = None, as_json: Json = False) -> None:
    """List the causes of dead letters, the most frequent first."""
    found = await framework.services.dead_letters.groups(EVERYONE, LetterFilter(task_type=task_type))
    if not found:
        await note_unknown_type(framework, task_type)
    if as_json:
        print_json({"items": [group.view() for group in found], "next_cursor": None})
    elif not found:
        note("No dead letters." if task_type is None else "No such dead letters.")
    else:
        now = framework.services.store.now()
        rows = [
            (
                Text(group.fingerprint),
                Text(f"{group.count:,}"),
                Text(_sparkline(group)),
                Text(ago(group.first_at, now)),
                Text(ago(group.last_at, now)),
                Text(", ".join(group.task_types) or "message"),
                Text(shorten(printable(f"{group.error_type}: {group.error_message}"))),
            )
            for group in found
        ]
        print_rows(("Group", "Count", "Last 24 h", "Oldest", "Newest", "Types", "Error"), rows)
        note("To list one group: taskframework dlq list --fingerprint GROUP")
        if any(group.task_types for group in found):
            note("To queue all tasks of a group again: taskframework dlq replay --where fingerprint=GROUP")


@app.command()
@on_store
async def show(framework: AnyFramework, letter_id: LetterId, as_json: Json = False) -> None:
    """Show one dead letter: a task with its errors and history, or a message with its bytes."""
    letter = await framework.services.dead_letters.get(letter_id, EVERYONE)
    if as_json:
        print_json(letter.view(whole=True))
    elif isinstance(letter.entry, DeadMessage):
        out().print(facts(_message_facts(letter, letter.entry)))
        note(f"It belongs to no task. To make a task from it: taskframework dlq repair {letter_id} JSON")
    else:
        print_task(letter.entry)
        _print_traces(letter.entry)


@app.command()
@validates_choice(letters_where, "letter_ids")
@on_store
@audited("dead-letter.replay", target="letter_ids", details=["where", "rate"])
async def replay(
    framework: AnyFramework,
    letter_ids: LetterIds = None,
    where: LettersWhere = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    reopen: Reopen = False,
    reason: TaskReason = None,
    background: Background = False,
    as_json: Json = False,
) -> None:
    """Queue dead tasks again, by ids or all that --where finds; exit code 0 if all were queued."""
    ids, dead_letters = letter_ids or [], framework.services.dead_letters
    if (chosen := letters_where(where, ids)) is not None:
        if not dry_run:
            await run_bulk_action(
                framework,
                Action.REPLAY,
                chosen,
                rate=rate,
                reason=reason,
                in_background=background,
                as_json=as_json,
                reopen=reopen,
            )
            return
        page = await dead_letters.list_letters(scope_of(chosen), limit=MAX_LIMIT, wanted=chosen.letter_filter)
        ids = [letter.id for letter in page.items]
        if not ids:
            await note_unknown_type(framework, chosen.task_type)
        if page.next_cursor is not None and as_json:
            note(f"More fit --where; these are the newest {MAX_LIMIT}.")
        elif page.next_cursor is not None:
            await print_count(framework, Action.REPLAY, chosen, as_json=False)
            note(f"The newest {MAX_LIMIT} of them:")
    outcomes: Sequence[LetterOutcome] = []
    if ids:
        outcomes = await dead_letters.replay(
            ids, EVERYONE, by=operator_name(), dry_run=dry_run, reopen=reopen, reason=reason
        )
    if chosen is not None and not as_json:
        say(_summarize_dry_run(outcomes))
        outcomes = [outcome for outcome in outcomes if outcome.problem or outcome.warning]
    _print_outcomes(outcomes, "would be queued again." if dry_run else "queued again.", "replayed", as_json, dry_run)


@app.command()
@on_store
@audited("dead-letter.edit", target="letter_id")
async def edit(
    framework: AnyFramework,
    letter_id: LetterId,
    parameters: Parameters,
    dry_run: DryRun = False,
    reopen: Reopen = False,
    reason: TaskReason = None,
    as_json: Json = False,
) -> None:
    """Queue a dead task again with new parameters, which are checked first."""
    outcomes = await framework.services.dead_letters.replay_edited(
        [letter_id],
        parameters,
        EVERYONE,
        by=operator_name(),
        dry_run=dry_run,
        reopen=reopen,
        reason=reason,
    )
    done = "would be queued again with these parameters." if dry_run else "queued again with these parameters."
    _print_outcomes(outcomes, done, "replayed", as_json, dry_run)


@app.command()
@validates_choice(letters_where, "letter_ids", needs_reason=True)
@on_store
@audited("dead-letter.discard", target="letter_ids", details=["where", "rate"])
async def discard(
    framework: AnyFramework,
    letter_ids: LetterIds = None,
    where: LettersWhere = None,
    rate: Rate = None,
    reason: RequiredReason = None,
    dry_run: DryRun = False,
    background: Background = False,
    as_json: Json = False,
) -> None:
    """Discard dead letters: they disappear from all lists. A task can still be retried by its id."""
    if (chosen := letters_where(where, letter_ids)) is None:
        discards = framework.services.dead_letters.discard
        outcomes = await discards(letter_ids or [], EVERYONE, by=operator_name(), reason=reason, dry_run=dry_run)
        _print_outcomes(outcomes, "would be discarded." if dry_run else "discarded.", "discarded", as_json, dry_run)
    else:
        await run_bulk_action(
            framework,
            Action.DISCARD,
            chosen,
            dry_run=dry_run,
            rate=rate,
            reason=reason,
            in_background=background,
            as_json=as_json,
        )


@app.command()
@on_store
@audited("dead-letter.repair", target="letter_id")
async def repair(
    framework: AnyFramework,
    letter_id: LetterId,
    corrected: Corrected,
    task_type: NewType = None,
    user: ForUser = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a task from an unreadable message, and delete the message. Repeating it makes no second task."""
    wanted, parameters = read_corrected(orjson.dumps(corrected).decode(), task_type)
    submission = await framework.services.mending.mend(
        letter_id, wanted, parameters, user_id=user or ANONYMOUS, by=operator_name(), dry_run=dry_run
    )
    if as_json:
        dry_view = {"task_type": wanted, "would_be_submitted": True}
        print_json(dry_view if submission is None else public_view(submission.task))
    elif submission is None:
        say(f"Would be submitted as a task of {wanted}.")
    else:
        say(f"It is {'now' if submission.is_new else 'already'} task {submission.task.task_id}.")


def _print_outcomes(outcomes: Sequence[LetterOutcome], done: str, name: str, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json([_outcome_view(outcome, f"would_be_{name}" if dry_run else name) for outcome in outcomes])
    else:
        for outcome in outcomes:
            warned = f"{done} But its parameters are no longer valid: {outcome.warning}"
            say(f"{outcome.id}: {outcome.problem or (warned if outcome.warning else done)}")
    if any(outcome.problem is not None for outcome in outcomes):
        raise RefusedExit(refusal_of(outcomes))


def _summarize_dry_run(outcomes: Sequence[LetterOutcome]) -> str:
    """Summarize a dry run: of many outcomes, only those that need attention get a line of their own."""
    refused = sum(outcome.problem is not None for outcome in outcomes)
    warned = sum(outcome.problem is None and outcome.warning is not None for outcome in outcomes)
    queued_text = f"{pluralize(len(outcomes) - refused, 'dead letter')} would be queued again"
    return f"{queued_text}, {warned:,} of them with parameters that are no longer valid; {refused:,} refused."


def _sparkline(group: LetterGroup) -> str:
    """The trend as a row of bars."""
    highest = max(group.trend) or 1
    return "".join(_SPARKLINE_BARS[-(-number * (len(_SPARKLINE_BARS) - 1) // highest)] for number in group.trend)


def _print_traces(task: Task) -> None:
    for error in task.errors:
        if error.traceback:
            say(f"Attempt {error.attempt}:")
            say(error.traceback)
    if task.discarded is not None:
        reason = f": {task.discarded.reason}" if task.discarded.reason else ""
        say(f"Discarded by {task.discarded.by} at {rfc3339(task.discarded.at)}{reason}")


def _message_facts(letter: DeadLetter, message: DeadMessage) -> list[tuple[str, str | Text]]:
    return [
        ("Dead letter", Text(letter.id, style="bold")),
        ("Kind", "message"),
        ("Kept", rfc3339(message.at)),
        ("From queue", message.queue),
        ("Reason", Text(printable(message.reason), style="red")),
        ("Headers", as_json_text(message.headers)),
        ("Body", pluralize(len(message.body), "byte")),
        ("", repr(message.body[:2000])[2:-1]),
        ("As hex", message.body[:64].hex(" ")),
    ]


def _outcome_view(outcome: LetterOutcome, name: str) -> dict[str, str | bool | None]:
    problem, warning = outcome.problem, outcome.warning
    view: dict[str, str | bool | None] = {"id": outcome.id, name: problem is None}
    return view | {"problem": str(problem) if problem else None, "warning": str(warning) if warning else None}
