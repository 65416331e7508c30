"""Carries on actions on many tasks, a handful at a time. Every process with repairs does so, so none is essential."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskframework import failpoint
from taskframework.errors import (
    ParentFinishedError,
    StoreUnavailableError,
    TaskframeworkError,
    TaskNotFoundError,
    TransitionRefusedError,
)
from taskframework.model.action_filters import Action
from taskframework.model.records import Record, parts_of
from taskframework.model.replays import (
    REPLAY,
    RUNNING_ACTION,
    TAKEOVER_DELAY,
    BulkAction,
    BulkActionStatus,
    Refused,
    can_be_done,
    end_action,
    settle_handful,
    take_in_hand,
    take_over,
    was_done_before,
)
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.operations.dead_letters import MAX_READ_MESSAGES
from taskframework.operations.replays import ReplayOperations, scope_of
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_records, read_record

logger = logging.getLogger(__name__)

#: How many tasks of a handful are worked on at once, so that connections to the store are left for other work.
_MAX_CONCURRENT_TASKS = 25
#: The most pages that one look reads without finding work; the next look continues after them.
_MAX_PAGES = 20


class ReplayCarrier:
    """Looks for actions that are due. Several processes may look: one of them takes a handful by compare and set."""

    def __init__(self, store: TaskStore, tasks: TaskOperations, replays: ReplayOperations) -> None:
        self._store = store
        self._tasks = tasks
        self._replays = replays

    async def run_once(self) -> bool:
        """Do the next handful of each action that is due.

        Returns:
            Whether some actions are due again at once.
        """
        more = False
        for mark in await read_all_records(self._store, RUNNING_ACTION):
            try:
                more |= await self._continue_action(mark)
            except StoreUnavailableError:
                raise
            except Exception as error:  # the other actions must still continue
                is_unknown = not isinstance(error, TaskframeworkError)
                logger.warning("%s cannot continue now: %s", mark.id, error, exc_info=is_unknown)
        return more

    async def _continue_action(self, mark: Record) -> bool:
        [replay_id] = parts_of(mark.id)
        now = self._store.now()
        record = await read_record(self._store, REPLAY.id_of(replay_id))
        if record is None:  # the process may be about to write it
            if RUNNING_ACTION.content(mark).at + TAKEOVER_DELAY < now:
                await self._store.delete_records([mark])
            return False
        replay = REPLAY.content(record)
        if replay.is_over:
            await self._store.delete_records([mark])
            return False
        if replay.due_at > now:
            return False
        present = take_over(replay, now) if replay.batch else await self._take_next_batch(replay)
        if not present.batch and present.part >= _part_count(present):
            present = end_action(present, BulkActionStatus.DONE, now)
        if not await self._replays.write(record, present):
            return True
        await failpoint.reached("replays.after_take")
        if present.batch:
            present = await self._work_on_batch(present)
        return present.is_over or present.due_at <= self._store.now()

    async def _work_on_batch(self, replay: BulkAction) -> BulkAction:
        outcomes: dict[str, Refused | None] = {}
        for at in range(0, len(replay.batch), _MAX_CONCURRENT_TASKS):
            names = replay.batch[at : at + _MAX_CONCURRENT_TASKS]
            done = await asyncio.gather(*(self._try_action(replay, name) for name in names), return_exceptions=True)
            for outcome in done:
                if isinstance(outcome, BaseException):
                    raise outcome  # the handful is due again, and tasks that are done are recognised
                outcomes |= outcome
        await failpoint.reached("replays.before_settle")
        number, now = replay.batch_number, self._store.now()
        return await self._replays.change(
            replay.replay_id, lambda present: settle_handful(present, number, outcomes, now)
        )

    async def _take_next_batch(self, replay: BulkAction) -> BulkAction:
        """Return the action with its next handful; without a handful if no task is left, or many pages had no work."""
        now, lists = self._store.now(), replay.lists
        part, cursor = replay.part, replay.cursor
        for _ in range(_MAX_PAGES):
            if part >= len(lists):
                break
            page = await self._store.list_tasks(scope_of(replay.where), lists[part], limit=replay.size, cursor=cursor)
            part, cursor = (part, page.next_cursor) if page.next_cursor is not None else (part + 1, None)
            if chosen := [task.task_id for task in page.items if _is_wanted(replay, task)]:
                return take_in_hand(replay, chosen, part, cursor, now)
        if part == len(lists) and replay.has_messages:
            if messages := await self._next_messages(replay):
                return take_in_hand(replay, messages, part, None, now)
            part += 1
        return replace(replay, part=part, cursor=cursor, due_at=now)

    async def _next_messages(self, replay: BulkAction) -> Sequence[str]:
        outlines = await self._store.outline_dead_messages(limit=MAX_READ_MESSAGES)
        found = [each.id for each in outlines if each.at <= replay.at and replay.where.letter_filter.matches(each)]
        return found[: replay.size]

    async def _try_action(self, replay: BulkAction, name: str) -> Mapping[str, Refused | None]:
        """Do the action with one task or message, unless it was done before.

        Returns:
            The outcome by the name. Nothing if it is left out: it has changed or is gone, or the action was stopped.
        """
        try:
            task = await self._store.get(name, EVERYONE)
            if task is None:
                return await self._discard_message(replay, name)
            if was_done_before(replay, task):
                # That process may have died before the parents of the task knew.
                if task.status is TaskStatus.QUEUED:
                    await self._tasks.ancestors.count_again(task, EVERYONE, by=replay.by, reopen=replay.reopen)
                return {name: None}
            if replay.status is not BulkActionStatus.RUNNING or not can_be_done(replay, task):
                return {}
            return await self._do_action(replay, task)
        except StoreUnavailableError:
            raise
        except ParentFinishedError as error:  # maybe only after this action had replayed the task
            return {name: Refused(name, error.message)}
        except TaskframeworkError as error:
            return {name: Refused(name, error.message, is_failure=True)}

    async def _discard_message(self, replay: BulkAction, name: str) -> Mapping[str, Refused | None]:
        if replay.action is not Action.DISCARD:
            return {}
        await self._store.delete_dead_message(name)
        return {name: None}

    async def _do_action(self, replay: BulkAction, task: Task) -> Mapping[str, Refused | None]:
        name = task.task_id
        try:
            await self._change(replay, task)
        except ParentFinishedError:  # by now the task may be replayed, which the next lines would take for success
            raise
        except (TransitionRefusedError, TaskNotFoundError) as error:
            present = await self._store.get(name, EVERYONE)
            if present is None or present.revision != task.revision:  # another caller was faster
                return {name: None} if present is not None and was_done_before(replay, present) else {}
            return {name: Refused(name, error.message)}
        await failpoint.reached("replays.after_one")
        return {name: None}

    async def _change(self, replay: BulkAction, task: Task) -> None:
        given: dict[str, Any] = {"by": replay.by, "reason": replay.reason}
        match replay.action:
            case Action.CANCEL:
                await self._tasks.cancel(task.task_id, EVERYONE, **given)
            case Action.DISCARD:
                await self._tasks.discard(task.task_id, EVERYONE, **given)
            case Action.REPLAY | Action.RETRY:
                given |= {"reopen": replay.reopen, "replay_id": replay.replay_id, "revision": task.revision}
                await self._tasks.retry(task.task_id, EVERYONE, **given)


def _part_count(replay: BulkAction) -> int:
    return len(replay.lists) + replay.has_messages


def _is_wanted(replay: BulkAction, task: Task) -> bool:
    return can_be_done(replay, task) and not was_done_before(replay, task)
