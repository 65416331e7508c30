"""The upload of a batch: items become stored sub-tasks, part by part, and the batch is sealed after the last one.

Each part is announced in the batch before it is stored, so that a seal cannot overlook it. The id of a sub-task is made
from the batch and its slot. So a sub-task that an earlier upload stored is found, compared and not stored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, islice, zip_longest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError, TaskNotFoundError
from taskframework.model.batches import Announce, Seal, is_open, is_sealed, parts_of, subtask_group
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.marks import CascadeAgain
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.subtasks import MAX_SUBTASKS, Policy, subtask_of
from taskframework.model.task import Task
from taskframework.model.values import MAX_PARAMETERS_BYTES, Json, fingerprint
from taskframework.model.wording import pluralize
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.submission.refusals import BatchClosedError, BatchConflictError, BatchTooLargeError

_NO_ITEM = object()
#: Which part of the time limit of an upload is left when items that fill no chunk restart it: so they write seldom, and
#: an upload may still pause almost as long as the limit says.
_KEPT_OPEN_UNTIL = 0.9
_DIFFERS = "it differs from the item that the batch has at this position"


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a batch, as the task type accepted it."""

    parameters: Json = field(repr=False)
    canonical: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SubtaskContent:
    """The parameters of one sub-task of a batch: one item, or the list of items of a chunk."""

    parameters: Json = field(repr=False)
    parameters_hash: str


def contents_of(batch: Task, items: Sequence[Item]) -> list[SubtaskContent]:
    """Return the contents of the sub-tasks for these consecutive items.

    Raises:
        InvalidRequestError: if the items of a chunk are too large together.
    """
    size = parts_of(batch)[0].chunk_size
    if size == 1:
        return [SubtaskContent(item.parameters, fingerprint(batch.task_type, item.canonical)) for item in items]
    return [_chunk(batch, items[index : index + size]) for index in range(0, len(items), size)]


def _chunk(batch: Task, items: Sequence[Item]) -> SubtaskContent:
    if sum(len(item.canonical) + 1 for item in items) >= MAX_PARAMETERS_BYTES:
        reason = f"{len(items)} items together have more than {MAX_PARAMETERS_BYTES:,} bytes"
        raise InvalidRequestError("chunk_size", reason, "Use smaller chunks.")
    canonical = (item.canonical for item in items)
    return SubtaskContent([item.parameters for item in items], fingerprint(batch.task_type, *canonical))


def check_policy(batch: Task, planned: int) -> None:
    """Refuse a batch that could never succeed.

    Raises:
        InvalidRequestError: if its policy asks for more sub-tasks than it has.
    """
    own, subtasks = parts_of(batch)
    policy, tasks = Policy(subtasks.policy), pluralize(planned, "sub-task")
    if own.chunk_size != 1:
        tasks = f"{pluralize(planned, 'chunk')} of {own.chunk_size} items"
    if policy.needed(planned) > planned:
        raise InvalidRequestError(
            "policy",
            f"{policy.text} cannot be met with {tasks}",
            "Submit more items, or use another policy.",
        )


class Upload:
    """One upload into one batch."""

    def __init__(
        self,
        store: TaskStore,
        bus: EventBus,
        moves: TaskMoves,
        batch: Task,
        *,
        is_new: bool,
        dispatch_after: timedelta,
        timeout: timedelta,
    ) -> None:
        """Begin at the first item.

        Args:
            store: where the batch is.
            bus: gets the event of each sub-task.
            moves: makes the seal.
            batch: the batch as it was stored or found.
            is_new: whether this upload has stored the batch, so that no earlier upload has stored items.
            dispatch_after: as in `NewTasks`.
            timeout: how long the batch waits for the next part before it is cancelled.
        """
        self.batch = batch
        self._store = store
        self._bus = bus
        self._moves = moves
        self._is_new = is_new
        self._dispatch_after = dispatch_after
        self._timeout = timeout
        #: How many items have come, and the last of them, which do not fill a chunk yet.
        self.items = 0
        self._incomplete_chunk: list[Item] = []

    async def add(self, items: Sequence[Item]) -> None:
        """Store the next items, or find them in the batch.

        Raises:
            BatchTooLargeError: if the batch has too many items.
            BatchConflictError: if the batch has other items at their positions.
            BatchClosedError: if the batch takes no more items.
            StoreError: if not all items could be stored.
        """
        self.items += len(items)
        if self.items > MAX_SUBTASKS:
            raise BatchTooLargeError(MAX_SUBTASKS)
        pending = [*self._incomplete_chunk, *items]
        rest = len(pending) % parts_of(self.batch)[0].chunk_size
        complete = len(pending) - rest
        self._incomplete_chunk = pending[complete:]
        if complete:
            await self._store_or_compare(pending[:complete], until=self.items - rest)
        else:
            await self._keep_open()

    async def end(self) -> bool:
        """Seal the batch after the last item.

        Returns:
            Whether this upload sealed the batch; an earlier upload with the same items may have sealed it.

        Raises:
            InvalidRequestError: if there are too few items for the policy.
            BatchConflictError: if the batch has more items.
            BatchClosedError: if the batch was cancelled meanwhile.
            StoreError: if the seal could not be stored.
        """
        await self._store_or_compare(self._incomplete_chunk, until=self.items)
        planned = self._slot(self.items + parts_of(self.batch)[0].chunk_size - 1)
        check_policy(self.batch, planned)
        sealed = None if is_sealed(self.batch) else await self._moves.make(Seal(self.batch.task_id, self.items))
        if sealed is not None:
            self.batch = sealed
            return True
        await self._reload_batch()
        if parts_of(self.batch)[0].items != self.items:
            raise BatchConflictError(
                self.batch.task_id, self.items, "the batch has this item, but this upload ends before it"
            )
        await self._check_is_sealed()
        return False

    async def _store_or_compare(self, items: Sequence[Item], *, until: int) -> None:
        """Store items that make whole sub-tasks; including the last of them, `until` items have come."""
        if not items:
            return
        contents = contents_of(self.batch, items)
        first_slot = self._slot(until - len(items))
        if is_open(self.batch):
            if not self._is_new:
                # Before the announcement: items of another batch that are announced or stored would stay in this one.
                await self._compare_with_stored(contents, first_slot)
            if await self._is_announced(until):
                await self._insert(contents, first_slot)
                return
        await self._compare(contents, first_slot, until)

    async def _keep_open(self) -> None:
        """Restart the time limit of the batch, although the items that came do not fill a chunk yet."""
        seal_by = self.batch.seal_by
        if is_open(self.batch) and seal_by and seal_by - self._store.now() < self._timeout * _KEPT_OPEN_UNTIL:
            await self._is_announced(self.items - len(self._incomplete_chunk))

    async def _is_announced(self, items: int) -> bool:
        announced = await self._store.apply(Announce(self.batch.task_id, items, self._timeout))
        await failpoint.reached("batch.after_announce")
        if announced is None:
            await self._reload_batch()
        else:
            self.batch = announced
        return announced is not None

    async def _insert(self, contents: Sequence[SubtaskContent], first_slot: int) -> None:
        group, now = subtask_group(self.batch), self._store.now()
        tasks = [
            subtask_of(self.batch, slot, group, content.parameters, content.parameters_hash, now, self._dispatch_after)
            for slot, content in enumerate(contents, first_slot)
        ]
        replies = await self._store.insert(tasks)
        await failpoint.reached("batch.after_insert")
        for slot, (task, reply) in enumerate(zip(tasks, replies, strict=True), first_slot):
            if isinstance(reply, Exception):
                raise reply
            self._require_same(slot, task, reply.task)
            if reply.is_new:
                await self._bus.publish(TaskSubmittedEvent(reply.task))

    async def _compare(self, contents: Sequence[SubtaskContent], first_slot: int, until: int) -> None:
        """Check that a batch that takes no more items has these items. This skips sub-tasks that the retention deleted.

        While a batch has its plan, only the plan has all items. Before the plan was removed, or the upload sealed, all
        sub-tasks were stored.
        """
        await self._check_is_sealed()
        batch, subtasks = parts_of(self.batch)
        if until > batch.items:
            raise BatchConflictError(self.batch.task_id, batch.items, "the batch is already complete without this item")
        if subtasks.plan is None:
            await self._compare_with_stored(contents, first_slot)
            return
        planned = chain.from_iterable(group["items"] for group in subtasks.plan)
        planned_here = islice(planned, first_slot, first_slot + len(contents))
        for slot, (content, item) in enumerate(zip(contents, planned_here, strict=True), first_slot):
            self._require_same(slot, content, SubtaskContent(*item))

    async def _compare_with_stored(self, contents: Sequence[SubtaskContent], first_slot: int) -> None:
        """Check that the sub-tasks that are stored in these slots have these contents."""
        round = RoundOfSubtasks(self.batch.task_id, self.batch.generation, parts_of(self.batch)[1].round)
        found = await self._store.list_subtasks(round, limit=len(contents), after_slot=first_slot - 1)
        there = {task.parent.slot: task for task in found if task.parent is not None}
        for slot, content in enumerate(contents, first_slot):
            if slot in there:
                self._require_same(slot, content, there[slot])

    async def _check_is_sealed(self) -> None:
        if not is_sealed(self.batch):
            # If this process paused, it may have stored the last part long after the batch was cancelled.
            round = parts_of(self.batch)[1].round
            await self._store.mark(CascadeAgain(self.batch.task_id, self.batch.generation, round))
            raise BatchClosedError(self.batch.task_id, self.batch.status)

    def _require_same(self, slot: int, mine: SubtaskContent | Task, found: SubtaskContent | Task) -> None:
        if found.parameters_hash != mine.parameters_hash:
            size = parts_of(self.batch)[0].chunk_size
            item = 0 if size == 1 else _first_difference(mine.parameters, found.parameters)
            raise BatchConflictError(self.batch.task_id, slot * size + item, _DIFFERS)

    async def _reload_batch(self) -> None:
        batch = await self._store.get(self.batch.task_id, EVERYONE)
        if batch is None:
            raise TaskNotFoundError(self.batch.task_id, what="batch")
        self.batch = batch

    def _slot(self, items: int) -> int:
        """Return the slot of the sub-task that follows after this many items."""
        return items // parts_of(self.batch)[0].chunk_size


def _first_difference(chunk: Json, found: Json) -> int:
    """Return the index of the first item of a chunk that differs from the chunk that was found."""
    pairs = zip_longest(chunk, found, fillvalue=_NO_ITEM)
    return next((index for index, (mine, other) in enumerate(pairs) if mine != other), 0)
