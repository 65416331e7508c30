"""Chooses many tasks by conditions, and follows an action on them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from taskframework.cli.options import or_bad_parameter
from taskframework.cli.output import note, print_json, say
from taskframework.cli.reading import parse_past_time, parse_status
from taskframework.cli.store import AnyFramework, operator_name
from taskframework.errors import UnknownTaskTypeError
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.message import rfc3339
from taskframework.model.replays import TIMES, BulkAction, BulkActionStatus, replay_view
from taskframework.model.status import TaskStatus
from taskframework.model.wording import pluralize

#: The names of conditions on the command line, and in `ActionFilter`.
_SHARED_CONDITIONS = {"type": "task_type", "user": "user_id", "fingerprint": "fingerprint", "text": "text"}
_END_TIME_CONDITIONS = {"finished_after": "finished_after", "finished_before": "finished_before"}
_LETTER_CONDITIONS = _SHARED_CONDITIONS | {"kind": "kind"} | _END_TIME_CONDITIONS
_TASK_CONDITIONS = (
    _SHARED_CONDITIONS
    | {"status": "status", "parent": "parent_task_id", "stream": "stream", "waits_for_limit": "waits_for_limit"}
    | {"created_after": "created_after", "created_before": "created_before"}
    | _END_TIME_CONDITIONS
)
#: The names on the command line, by those in `ActionFilter`.
CONDITION_NAMES = {field: name for name, field in (_LETTER_CONDITIONS | _TASK_CONDITIONS).items()}
_DONE_TEXTS = {
    Action.REPLAY: "queued again",
    Action.DISCARD: "discarded",
    Action.RETRY: "queued again",
    Action.CANCEL: "cancelled",
}
#: Seconds between two looks of this process at its own action.
_POLL_SECONDS = 0.2


def _parse_rate(text: str) -> float:
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1000:
        raise ValueError("is not a rate. Write a number per second, such as 10 or 0.5")
    return rate


LettersWhere = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="NAME=VALUE",
        help=f"All with this value; names: {', '.join(_LETTER_CONDITIONS)}. Repeatable.",
    ),
]
TasksWhere = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="NAME=VALUE", help=f"All with this value; names: {', '.join(_TASK_CONDITIONS)}. Repeatable."
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", metavar="N", parser=or_bad_parameter(_parse_rate), help="With --where: at most N per second."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
Background = Annotated[
    bool, typer.Option("--background", help="With --where: let the running processes do it, and return at once.")
]


def validates_choice(
    read_where: Callable[[Sequence[str] | None, Sequence[str] | None], object], ids: str, *, needs_reason: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command refuse a wrong choice before it opens the store; `ids` is the name of its other argument."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def check(**arguments: Any) -> None:
            names = arguments[ids]
            is_one = isinstance(names, str)
            if read_where(arguments["where"], [names] if is_one else names) is None:
                _refuse_options(arguments, "rate", "background", *(["dry_run"] if is_one else []))
            if needs_reason and not arguments["reason"] and not arguments["dry_run"]:
                raise typer.BadParameter("Give a reason with --reason TEXT. Only a dry run needs none.")
            command(**arguments)

        return check

    return decorate


def _refuse_options(arguments: Mapping[str, Any], *options: str) -> None:
    """Refuse options for many tasks if ids are given."""
    for name in options:
        if arguments[name]:
            flag = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{flag} works only with --where. Leave it out, or use --where instead of ids.")


def letters_where(conditions: Sequence[str] | None, ids: Sequence[str] | None) -> ActionFilter | None:
    """The conditions for dead letters from --where; None if ids are given."""
    return _where(conditions, ids, _LETTER_CONDITIONS)


def tasks_where(conditions: Sequence[str] | None, ids: Sequence[str] | None) -> ActionFilter | None:
    """The conditions for tasks from --where; None if ids are given."""
    return _where(conditions, ids, _TASK_CONDITIONS)


def _where(
    conditions: Sequence[str] | None, ids: Sequence[str] | None, condition_names: dict[str, str]
) -> ActionFilter | None:
    if bool(conditions) == bool(ids):
        raise typer.BadParameter("Give either ids or --where, not both." if ids else "Give ids, or --where NAME=VALUE.")
    if not conditions:
        return None
    chosen: dict[str, str | TaskStatus | datetime] = {}
    for condition in conditions:
        name, is_given, value = condition.partition("=")
        if name not in condition_names or not is_given or not value:
            raise typer.BadParameter(
                f"{condition!r} is not a condition. Write NAME=VALUE; the names are {', '.join(condition_names)}."
            )
        if condition_names[name] in chosen:
            raise typer.BadParameter(f"{name} is given twice. A task meets all conditions; give each name once.")
        chosen[condition_names[name]] = _parse_value(name, value)
    if chosen.get("kind", "task") not in ("task", "message"):
        raise typer.BadParameter("The kind must be task or message.")
    return ActionFilter(**chosen)  # type: ignore[arg-type]


def _parse_value(name: str, value: str) -> str | TaskStatus | datetime:
    try:
        if name in TIMES:
            return parse_past_time(value)
        return parse_status(value) if name == "status" else value
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {value!r} {str(error).rstrip('.')}.") from error


async def note_unknown_type(framework: AnyFramework, task_type: str | None) -> None:
    """If nothing of a task type was found and the type is unknown, print the most similar known type."""
    if task_type is None:
        return
    known_types = await framework.services.types.names()
    if task_type not in known_types:
        error = UnknownTaskTypeError(task_type, known_types)
        note(f"{error.message} {error.nearest}")


async def print_count(framework: AnyFramework, action: Action, where: ActionFilter, *, as_json: bool) -> None:
    """Print how many tasks an action would change."""
    count = await framework.services.replays.count_of(action, where)
    if not count.number:
        await note_unknown_type(framework, where.task_type)
    if as_json:
        print_json({"total": count.number, "is_total_bounded": count.is_bounded})
    else:
        more = "More than " if count.is_bounded else ""
        noun = "dead letter" if action in (Action.REPLAY, Action.DISCARD) else "task"
        say(f"{more}{pluralize(count.number, noun)} would be {_DONE_TEXTS[action]}.")


async def run_bulk_action(
    framework: AnyFramework,
    action: Action,
    where: ActionFilter,
    *,
    rate: float | None,
    reason: str | None,
    in_background: bool,
    as_json: bool,
    reopen: bool = False,
    dry_run: bool = False,
) -> None:
    """Begin an action on all chosen tasks, and carry it on while this process runs, as any other process does.

    A dry run only prints how many tasks the action would change.

    Raises:
        typer.Exit: if some tasks were not changed, or if somebody stopped the action.
    """
    if dry_run:
        await print_count(framework, action, where, as_json=as_json)
        return
    begin = framework.services.replays.begin
    replay = await begin(action, where, by=operator_name(), rate=rate, reason=reason, reopen=reopen)
    if is_joined := _was_running(replay, reason):
        note(_running_text(replay))
    if not in_background:
        replay = await _carry_on(framework, replay, with_notes=replay.total > 0 and not as_json)
    fits_nothing = not replay.total and not replay.done
    if fits_nothing:
        await note_unknown_type(framework, where.task_type)
    if as_json:
        print_json(replay_view(replay))
    elif fits_nothing:
        say(f"Nothing fits --where, so nothing was {_DONE_TEXTS[action]}.")
    elif in_background:
        say(f"{'Running' if is_joined else 'Started'}: {replay.replay_id}, for {_total_text(replay)}.")
        note(f"To see its progress: taskframework replays show {replay.replay_id}")
    else:
        print_progress(replay)
    if replay.refused or replay.failed or replay.status is BulkActionStatus.STOPPED:
        raise typer.Exit(1)


def _was_running(replay: BulkAction, reason: str | None) -> bool:
    """Whether the call that should begin an action returned an action that another operator had begun before."""
    return replay.reason != reason or bool(replay.done + replay.refused + replay.failed + replay.skipped)


def _running_text(replay: BulkAction) -> str:
    why = f" ({replay.reason})" if replay.reason else ""
    begun = f"begun by {replay.by} at {rfc3339(replay.at)}{why}"
    return f"The same {replay.action} is running, {begun}: nothing else was begun, and no other reason is kept."


def _total_text(replay: BulkAction) -> str:
    return f"{replay.total:,}" + (" or more" if replay.is_total_bounded else "")


def print_progress(replay: BulkAction) -> None:
    """Print how far an action is."""
    counts = f"{replay.done:,} of {_total_text(replay)} done, {replay.refused:,} refused, {replay.failed:,} failed"
    if replay.skipped:
        counts += f", {replay.skipped:,} skipped because they began, ended or were changed before"
    if replay.remaining:
        counts += f", {replay.remaining:,} {'not done' if replay.status is BulkActionStatus.STOPPED else 'to do'}"
    if replay.batch:
        counts += f", {len(replay.batch):,} in hand"
    say(f"{replay.action} {replay.replay_id} is {replay.status}: {counts}.")
    for refused in replay.refusals:
        note(f"{refused.id}: {refused.problem}")


async def _carry_on(framework: AnyFramework, replay: BulkAction, *, with_notes: bool) -> BulkAction:
    services, reported = framework.services, 0
    if with_notes:
        note(f"{replay.action} {replay.replay_id} of {_total_text(replay)}.")
        note("After Ctrl-C the running processes do the rest.")
        note(f"To stop it for good: taskframework replays stop {replay.replay_id}")
    while not replay.is_over:
        if not await services.replay_carrier.run_once():
            await asyncio.sleep(_POLL_SECONDS)
        replay = await services.replays.get(replay.replay_id)
        if (
            with_notes
            and replay.status is BulkActionStatus.RUNNING
            and replay.done >= reported + max(1, replay.total // 10)
        ):
            reported = replay.done
            note(f"{reported:,} of {_total_text(replay)} done")
    return replay
