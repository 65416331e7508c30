"""Begins actions on many tasks, shows them and stops them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from taskframework.errors import InvalidRequestError, StoreUnavailableError, TaskframeworkError
from taskframework.model.action_filters import (
    Action,
    ActionFilter,
    includes_messages,
    is_wanted,
    lists_of,
    possible_statuses,
)
from taskframework.model.message import rfc3339
from taskframework.model.query import MAX_LIMIT, Cursor, Page, TaskFilter
from taskframework.model.records import Record, parts_of
from taskframework.model.replays import REPLAY, RUNNING_ACTION, BulkAction, BulkActionStatus, RunningAction, end_action
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.task import new_task_id
from taskframework.operations.dead_letters import MAX_COUNTED_TASKS, MAX_READ_MESSAGES
from taskframework.operations.replay_keys import ReplayConflictError, ReplayKeys, hash_of_action, replay_id_of
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents, read_all_records, read_record
from taskframework.submission.acceptance import accept_reason

#: The most tasks, other than dead letters, that are counted: these tasks are read page by page.
MAX_LISTED_TASKS = 10_000
#: How often a change is tried before it is given up. The carrier may be faster, but it writes at most twice a second.
_MAX_ROUNDS = 20


class ReplayNotFoundError(TaskframeworkError):
    """There is no such action on many tasks."""

    code = "replay_not_found"
    hint = "List the replays to see their ids."

    def __init__(self, replay_id: str) -> None:
        super().__init__(f"There is no replay {replay_id[:100]!r}.")


class ReplayRunningError(TaskframeworkError):
    """The same action on many tasks, with the same filter, is running with other options."""

    code = "replay_running"

    def __init__(self, running: BulkAction) -> None:
        name = running.replay_id
        super().__init__(
            f"The same {running.action} is running: {name}, begun by {running.by} at {rfc3339(running.at)}; "
            f"{running.done:,} of {running.total:,} are done.",
            hint="Let it finish. To begin again with another rate, or with another reopen, stop it first: "
            f"`taskframework replays stop {name}`, or over HTTP POST /api/v1/admin/replays/{name}/stop.",
        )
        self.replay_id = name


@dataclass(frozen=True, slots=True)
class Count:
    """The number of tasks and messages; there may be more than `number` if the count is bounded."""

    number: int
    is_bounded: bool = False


class ReplayOperations:
    """The operations on many tasks at once."""

    def __init__(self, store: TaskStore, keys: ReplayKeys, kept: timedelta | None) -> None:
        """Prepare; `kept` is how long an ended action is kept, None means for ever."""
        self._store = store
        self._kept = kept
        self.keys = keys

    async def begin(
        self,
        action: Action,
        where: ActionFilter,
        *,
        by: str,
        rate: float | None = None,
        reason: str | None = None,
        reopen: bool = False,
        key: str | None = None,
    ) -> BulkAction:
        """Do an action with all chosen tasks, in the background; any process carries it on.

        Args:
            action: what is done.
            where: which tasks are chosen.
            by: the operator.
            rate: the most tasks per second; None means as fast as possible.
            reason: why.
            reopen: as in `TaskOperations.retry`.
            key: a second call of the same operator with the same key returns the same action.

        Returns:
            The action as it is now. If the same one is running already, that one, now and whenever the key comes again.

        Raises:
            InvalidRequestError: as `count_of`, or if the reason is too long.
            ReplayConflictError: if the key stands for another request.
            ReplayRunningError: if the same action with the same filter is running at another rate, or with another
                `reopen`.
        """
        reason = accept_reason(reason)  # each task would refuse a reason that is too long
        replay_id = new_task_id() if key is None else replay_id_of(by, key)
        request_hash = hash_of_action(action, where, rate, reopen=reopen)
        if key is not None and (known := await self._find_known(by, key, request_hash)) is not None:
            return _require_same(known, key, action, where, rate, reopen)
        if (running := await self.find_running(action, where)) is not None:
            if (running.rate, running.reopen) != (rate, reopen):
                raise ReplayRunningError(running)
            if key is not None:
                await self.keys.claim(by, key, request_hash, joined=running.replay_id)
            return running
        now = self._store.now()
        count = await self.count_of(action, where)
        new = BulkAction(
            replay_id=replay_id,
            action=action,
            where=where,
            by=by,
            at=now,
            reason=reason,
            reopen=reopen,
            rate=rate,
            total=count.number,
            is_total_bounded=count.is_bounded,
            due_at=now,
            paced_until=now,
        )
        if key is not None:
            await self.keys.claim(by, key, request_hash)
        # Write first the mark by which carriers find the action: an action without a mark would never begin, while a
        # mark without an action is removed.
        await self._store.write_records([RUNNING_ACTION.new(replay_id, content=RunningAction(self._store.now()))])
        [written] = await self._store.write_records([REPLAY.new(replay_id, content=new)])
        if written is not None:
            await self._mark_again(replay_id)
            return new
        return _require_same(await self.get(replay_id), key or "", action, where, rate, reopen)

    async def _find_known(self, by: str, key: str, request_hash: str) -> BulkAction | None:
        """Return the action that an earlier request with this key began or joined.

        Raises:
            ReplayConflictError: if the key stands for another request.
        """
        begun = await self._find(replay_id_of(by, key))
        if begun is None and (claimed := await self.keys.find(by, key, request_hash)) and claimed.joined:
            begun = await self._find(claimed.joined)
        return None if begun is None else REPLAY.content(begun)

    async def _mark_again(self, replay_id: str) -> None:
        """Write the mark once more, now that its action is stored.

        If this process paused between the two, a carrier has removed the first mark, or is about to: the new revision
        keeps it from that.

        Raises:
            StoreUnavailableError: if other processes were faster again and again; then nobody carries the action on.
        """
        for _ in range(_MAX_ROUNDS):
            mark_id = RUNNING_ACTION.id_of(replay_id)
            present = await read_record(self._store, mark_id)
            mark = RUNNING_ACTION.with_id(mark_id, present, RunningAction(self._store.now()))
            [written] = await self._store.write_records([mark])
            if written is not None:
                return
        raise _busy(replay_id)

    async def find_running(self, action: Action, where: ActionFilter) -> BulkAction | None:
        """Return the action that does the same with the same filter now, if there is one.

        Two actions that begin at the same moment do not find each other; then each task is changed by one of them.
        An action that has found no task is about to end, and is left out.
        """
        marks = await read_all_records(self._store, RUNNING_ACTION)
        ids = [REPLAY.id_of(*parts_of(mark.id)) for mark in marks]
        for present in REPLAY.contents((await self._store.read_records(ids)).values()).values():
            is_under_way = present.status is BulkActionStatus.RUNNING and present.total > 0
            if is_under_way and (present.action, present.where) == (action, where):
                return present
        return None

    async def count_of(self, action: Action, where: ActionFilter) -> Count:
        """Return with how many tasks and messages an action would be done.

        Raises:
            InvalidRequestError: if the action cannot be done with tasks of the wanted status.
        """
        possible = possible_statuses(action)
        if where.status is not None and where.status not in possible:
            reason = f"tasks that are {where.status} cannot be selected for {action}"
            raise InvalidRequestError("filter.status", reason, f"Choose one of {', '.join(possible)}.")
        scope, now = scope_of(where), self._store.now()
        number, is_bounded = 0, False
        for wanted in dict.fromkeys(lists_of(action, where, now)):
            found = await self._count_list(action, scope, wanted)
            number, is_bounded = number + found.number, is_bounded or found.is_bounded
        if includes_messages(action, where):
            outlines = await self._store.outline_dead_messages(limit=MAX_READ_MESSAGES)
            number += sum(map(where.letter_filter.matches, outlines))
        return Count(number, is_bounded)

    async def _count_list(self, action: Action, scope: Scope, wanted: TaskFilter) -> Count:
        if wanted.dead:
            counted = await self._store.count_dead(scope, wanted, most=MAX_COUNTED_TASKS)
            number = sum(entry.count for entry in counted)
            return Count(number, number >= MAX_COUNTED_TASKS)
        number, cursor = 0, None
        while number < MAX_LISTED_TASKS:
            page = await self._store.list_tasks(scope, wanted, limit=MAX_LIMIT, cursor=cursor)
            number += sum(is_wanted(action, task) for task in page.items)
            cursor = page.next_cursor
            if cursor is None:
                return Count(number)
        return Count(number, is_bounded=True)

    async def list_replays(self, *, limit: int, cursor: str | None = None) -> Page[BulkAction]:
        """Return actions from the newest to the oldest.

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        found = [(replay.at, replay.replay_id, replay) for replay in await read_all_contents(self._store, REPLAY)]
        found.sort(key=lambda entry: entry[:2], reverse=True)
        if cursor is not None:
            place = Cursor.decode(cursor)
            found = [entry for entry in found if entry[:2] < (place.at, place.id)]
        page = found[:limit]
        return Page(tuple(entry[2] for entry in page), Cursor(*page[-1][:2]).encode() if len(found) > limit else None)

    async def get(self, replay_id: str) -> BulkAction:
        """Read one action.

        Raises:
            ReplayNotFoundError: if there is no action with this id.
        """
        return REPLAY.content(await self._record(replay_id))

    async def stop(self, replay_id: str) -> BulkAction:
        """Stop an action: it takes no further handful. It finishes its present handful, and then shows the outcome.

        An action that had already finished stays DONE: `stop_refusal` says so.

        Raises:
            ReplayNotFoundError: if there is no action with this id.
        """
        now = self._store.now()

        def stopped(present: BulkAction) -> BulkAction:
            is_running = present.status is BulkActionStatus.RUNNING
            return end_action(present, BulkActionStatus.STOPPED, now) if is_running else present

        return await self.change(replay_id, stopped)

    async def change(self, replay_id: str, rule: Callable[[BulkAction], BulkAction]) -> BulkAction:
        """Change an action by compare and set; if another process was faster, change its new state.

        Raises:
            ReplayNotFoundError: if there is no action with this id.
            StoreUnavailableError: if other processes were faster again and again.
        """
        for _ in range(_MAX_ROUNDS):
            record = await self._record(replay_id)
            present = REPLAY.content(record)
            wanted = rule(present)
            if wanted == present or await self.write(record, wanted):
                return wanted
        raise _busy(replay_id)

    async def write(self, record: Record, wanted: BulkAction) -> bool:
        """Write an action, unless another process wrote it since it was read; return whether it was written.

        An ended action is kept for a time and then deleted.
        """
        expires_at = None if self._kept is None or not wanted.is_over else self._store.now() + self._kept
        [written] = await self._store.write_records([REPLAY.changed(record, wanted, expires_at=expires_at)])
        return written is not None

    async def _record(self, replay_id: str) -> Record:
        record = await self._find(replay_id)
        if record is None:
            raise ReplayNotFoundError(replay_id)
        return record

    async def _find(self, replay_id: str) -> Record | None:
        return await read_record(self._store, REPLAY.id_of(replay_id))


def _busy(replay_id: str) -> StoreUnavailableError:
    message = f"The replay {replay_id} was changed by other processes at the same time."
    return StoreUnavailableError(message, hint="Try again in a moment.")


def _require_same(
    known: BulkAction, key: str, action: Action, where: ActionFilter, rate: float | None, reopen: bool
) -> BulkAction:
    """Return the action for which a key stands, if the same action is asked for again."""
    if (known.action, known.where, known.rate, known.reopen) != (action, where, rate, reopen):
        raise ReplayConflictError(key, known)
    return known


def stop_refusal(replay: BulkAction) -> str | None:
    """Return why a stop came too late; None if the action is stopped."""
    is_done = replay.status is BulkActionStatus.DONE
    return f"The {replay.action} {replay.replay_id} had already finished; nothing was stopped." if is_done else None


def scope_of(where: ActionFilter) -> Scope:
    """Return whose tasks are chosen; it may be everyone, because only operators begin such actions."""
    return EVERYONE if where.user_id is None else Scope.of(where.user_id)
