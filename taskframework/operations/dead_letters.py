"""Dead letters: tasks that ended FAILED or DEAD_LETTER, and kept messages, as one list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from taskframework.errors import ParentFinishedError, TaskframeworkError, TaskNotFoundError, TransitionRefusedError
from taskframework.model.interventions import NewParameters
from taskframework.model.letters import ANY_LETTER, DeadCount, LetterFilter, LetterGroup, count_messages, group_by_cause
from taskframework.model.query import Cursor, CursorInvalidError, DeadMessage, Page
from taskframework.model.replays import was_replayed
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import DEAD
from taskframework.model.task import Task
from taskframework.model.values import Json
from taskframework.operations.letter_views import DeadLetter, of_message, of_task
from taskframework.operations.refusals import not_discarded_error, not_retried_error
from taskframework.operations.replay_keys import ReplayKeys, hash_of_replay, replay_id_of
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskStore
from taskframework.submission.edits import Edits

#: How many of the newest dead tasks, and of the newest messages, are read for groups and for filtered messages.
MAX_COUNTED_TASKS = 100_000
MAX_READ_MESSAGES = 10_000
#: The most digits of a count in a cursor of groups.
_MAX_CURSOR_DIGITS = 6


class AlreadyReplayedError(TransitionRefusedError):
    """The dead letter was queued again before."""

    def __init__(self, task: Task) -> None:
        message = f"Dead letter {task.task_id} was already queued again; the task is {task.status} now."
        hint = "It can be replayed again once it is a dead letter again."
        super().__init__(task.task_id, "replayed", task.status, message=message, hint=hint)


class NothingToReplayError(TransitionRefusedError):
    """The dead letter is a message without a task."""

    def __init__(self, letter_id: str) -> None:
        status = "a message without a task"
        message = f"Dead letter {letter_id} is {status}, so it cannot be queued again."
        hint = "Show it to see its content. Then repair it with a task type and parameters, or discard it."
        super().__init__(letter_id, "replayed", status, message=message, hint=hint)


@dataclass(frozen=True, slots=True)
class LetterOutcome:
    """The outcome for one id; if `problem` is None, the action was done."""

    id: str
    problem: TaskframeworkError | None
    #: In a dry run: why the next attempt of the task would fail at once.
    warning: TaskframeworkError | None = None


def refusal_of(outcomes: Sequence[LetterOutcome]) -> str | None:
    """Return why nothing was done: the first of the problems; None if something was done."""
    problems = [outcome.problem for outcome in outcomes]
    return None if None in problems or not problems else str(problems[0])


class DeadLetterOperations:
    """List, show, replay and discard dead letters."""

    def __init__(self, store: TaskStore, tasks: TaskOperations, edits: Edits, keys: ReplayKeys) -> None:
        self._store = store
        self._tasks = tasks
        self._edits = edits
        self._keys = keys

    async def list_letters(
        self, scope: Scope, *, limit: int, cursor: str | None = None, wanted: LetterFilter = ANY_LETTER
    ) -> Page[DeadLetter]:
        """Return tasks and messages, the newest first. A kept message has no owner: only the scope of everyone has it.

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        tasks: Page[Task] = Page((), None)
        if wanted.kind != "message":
            tasks = await self._store.list_tasks(scope, wanted.task_filter(), limit=limit, cursor=cursor)
        messages = await self._list_messages(scope, wanted, limit, cursor)
        merged = sorted(
            [*map(of_task, tasks.items), *map(of_message, messages.items)],
            key=lambda letter: (letter.at, letter.id),
            reverse=True,
        )
        # Beyond its own end, a list may have entries that are newer than the rest of the other list. With entries that
        # cannot be read, this end comes before `limit` entries.
        ends = [Cursor.decode(cursor) for cursor in (tasks.next_cursor, messages.next_cursor) if cursor is not None]
        end = max(ends, key=lambda end: (end.at, end.id), default=None)
        page = [letter for letter in merged if end is None or (letter.at, letter.id) >= (end.at, end.id)]
        if len(page) > limit:
            page = page[:limit]
            end = Cursor(page[-1].at, page[-1].id)
        return Page(tuple(page), None if end is None else end.encode())

    async def groups(self, scope: Scope, wanted: LetterFilter = ANY_LETTER) -> list[LetterGroup]:
        """Return dead letters grouped by cause, the largest group first; of very many only the newest are counted."""
        counts: list[DeadCount] = []
        if wanted.kind != "message":
            counts += await self._store.count_dead(scope, wanted.task_filter(), most=MAX_COUNTED_TASKS)
        if wanted.kind != "task" and scope == EVERYONE:
            outlines = await self._store.outline_dead_messages(limit=MAX_READ_MESSAGES)
            counts += count_messages(filter(wanted.matches, outlines), self._store.now())
        return group_by_cause(counts)

    async def group_page(
        self, scope: Scope, wanted: LetterFilter, *, limit: int, cursor: str | None = None
    ) -> Page[LetterGroup]:
        """Return one page of `groups`; the cursor is the place of the last group on the page before. So a caller that
        handles each page before it asks for the next one passes over no group.

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        groups = await self.groups(scope, wanted)
        if cursor is not None:
            place = _place_of_group(cursor)
            groups = [group for group in groups if (-group.count, group.fingerprint) > place]
        page = tuple(groups[:limit])
        return Page(page, f"{page[-1].count}-{page[-1].fingerprint}" if len(groups) > limit else None)

    async def get(self, letter_id: str, scope: Scope) -> DeadLetter:
        """Read one entry by its id.

        Raises:
            TaskNotFoundError: if there is no dead letter with this id.
        """
        task = await self._store.get(letter_id, scope)
        if task is not None and task.status in DEAD:
            return of_task(task)
        message = await self._store.get_dead_message(letter_id) if scope == EVERYONE else None
        if message is None:
            raise TaskNotFoundError(letter_id, what="dead letter")
        return of_message(message)

    async def replay(
        self,
        ids: Sequence[str],
        scope: Scope,
        *,
        by: str,
        dry_run: bool = False,
        reopen: bool = False,
        reason: str | None = None,
        key: str | None = None,
    ) -> list[LetterOutcome]:
        """Queue dead tasks again; each id has its own outcome. A message without a task cannot be replayed.

        Args:
            ids: the dead letters; an id that is given twice counts once.
            scope: whose tasks may be queued again.
            by: the caller; written into the task's history.
            dry_run: only find out what would happen to each, and whose parameters no longer fit.
            reopen: as in `TaskOperations.retry`: let an ended parent wait for its sub-task again.
            reason: why; written into the task's history.
            key: a second call of the same operator with the same key does not replay a task again, even if it ended
                again meanwhile.

        Raises:
            ReplayConflictError: if the key stands for another request; then no task is queued.
        """
        replay_id = None if key is None else replay_id_of(by, key)
        if key is not None:
            request_hash = hash_of_replay(ids, reopen=reopen)
            await (self._keys.find if dry_run else self._keys.claim)(by, key, request_hash)

        async def replay_one(name: str) -> TaskframeworkError | None:
            if await self._was_replayed(name, scope, replay_id):
                return None
            task = await self._require_task(name, scope)
            if not dry_run:
                await self._tasks.retry(name, scope, by=by, reopen=reopen, reason=reason, replay_id=replay_id)
                return None
            await self._tasks.check_retry(name, scope, reopen=reopen)
            return await self._edits.find_misfit(task)

        return [await self._outcome_of(name, scope, replay_one) for name in dict.fromkeys(ids)]

    async def replay_edited(
        self,
        ids: Sequence[str],
        parameters: Json,
        scope: Scope,
        *,
        by: str,
        dry_run: bool = False,
        reopen: bool = False,
        reason: str | None = None,
        key: str | None = None,
    ) -> list[LetterOutcome]:
        """Replay with other parameters, which are checked before the first task is changed; otherwise as `replay`.

        Raises:
            SubmissionError: if the parameters do not fit one of the tasks; then no task is queued.
        """
        replay_id = None if key is None else replay_id_of(by, key)
        request_hash = hash_of_replay(ids, [parameters], reopen=reopen)
        if key is not None:
            await self._keys.find(by, key, request_hash)
        edits: dict[str, NewParameters] = {}

        async def accept(name: str) -> None:
            if await self._was_replayed(name, scope, replay_id):
                return
            task = await self._require_task(name, scope)
            await self._tasks.check_retry(name, scope, reopen=reopen)
            edits[name] = await self._edits.accept(task, parameters)

        async def replay_one(name: str) -> None:
            await self._tasks.retry(
                name, scope, by=by, reopen=reopen, reason=reason, edited=edits[name], replay_id=replay_id
            )

        outcomes = {name: await self._outcome_of(name, scope, accept) for name in dict.fromkeys(ids)}
        if not dry_run:
            if key is not None:
                await self._keys.claim(by, key, request_hash)
            outcomes |= {name: await self._outcome_of(name, scope, replay_one) for name in edits}
        return list(outcomes.values())

    async def discard(
        self, ids: Sequence[str], scope: Scope, *, by: str, reason: str | None, dry_run: bool = False
    ) -> list[LetterOutcome]:
        """Discard dead letters; each id has its own outcome. A task keeps its status, a message is deleted."""

        async def discard_one(name: str) -> None:
            letter = await self.get(name, scope)
            if dry_run:
                if isinstance(letter.entry, Task) and letter.entry.discarded is not None:
                    raise not_discarded_error(letter.entry)
                return
            if isinstance(letter.entry, Task):
                await self._tasks.discard(letter.id, scope, by=by, reason=reason)
            else:
                await self._store.delete_dead_message(letter.id)

        return [await self._outcome_of(name, scope, discard_one) for name in dict.fromkeys(ids)]

    async def _list_messages(
        self, scope: Scope, wanted: LetterFilter, limit: int, cursor: str | None
    ) -> Page[DeadMessage]:
        if scope != EVERYONE or wanted.kind == "task":
            return Page((), None)
        if wanted in (ANY_LETTER, LetterFilter(kind="message")):
            return await self._store.list_dead_messages(limit=limit, cursor=cursor)
        place = None if cursor is None else Cursor.decode(cursor)
        outlines = await self._store.outline_dead_messages(limit=MAX_READ_MESSAGES)
        later = [each for each in outlines if place is None or (each.at, each.id) < (place.at, place.id)]
        found = [each for each in later if wanted.matches(each)]
        messages = [await self._store.get_dead_message(each.id) for each in found[:limit]]
        page = tuple(message for message in messages if message is not None)
        return Page(page, Cursor(found[limit - 1].at, found[limit - 1].id).encode() if len(found) > limit else None)

    async def _was_replayed(self, letter_id: str, scope: Scope, replay_id: str | None) -> bool:
        task = None if replay_id is None else await self._store.get(letter_id, scope)
        return task is not None and replay_id is not None and was_replayed(task, replay_id)

    async def _require_task(self, letter_id: str, scope: Scope) -> Task:
        letter = await self.get(letter_id, scope)
        if isinstance(letter.entry, DeadMessage):
            raise NothingToReplayError(letter_id)
        return letter.entry

    async def _outcome_of(
        self, name: str, scope: Scope, act: Callable[[str], Awaitable[TaskframeworkError | None]]
    ) -> LetterOutcome:
        """Return the outcome for one dead letter; `act` changes it or checks it, and may return a warning."""
        try:
            return LetterOutcome(name, None, await act(name))
        except (TaskNotFoundError, TransitionRefusedError) as problem:
            return LetterOutcome(name, await self._explain_problem(problem, name, scope))

    async def _explain_problem(self, problem: TaskframeworkError, letter_id: str, scope: Scope) -> TaskframeworkError:
        """Return the problem, or what explains it: the id is that of a batch, or another caller replayed the task."""
        task = await self._store.get(letter_id, scope)
        if task is not None and task.batch is not None:
            return not_retried_error(task)
        if task is None or task.generation == 0 or task.status in DEAD or isinstance(problem, ParentFinishedError):
            return problem
        return AlreadyReplayedError(task)


def _place_of_group(cursor: str) -> tuple[int, str]:
    """Return the place of a group in the list, as `group_by_cause` sorts it, by a cursor.

    Raises:
        CursorInvalidError: if it is no such cursor.
    """
    count, dash, fingerprint = cursor.partition("-")
    if not (count.isdecimal() and len(count) <= _MAX_CURSOR_DIGITS and dash):
        raise CursorInvalidError
    return -int(count), fingerprint
