"""The claim: one guarded write decides which worker runs a task. Duplicate, old and unneeded messages end here."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from taskframework.clock import EARLY_RETRY_PAUSES_SECONDS, Clock
from taskframework.errors import TaskUnreadableError
from taskframework.model.attempts import Claim
from taskframework.model.events import start_of_attempt
from taskframework.model.interventions import Postpone
from taskframework.model.marks import MakeDue
from taskframework.model.message import TaskMessage
from taskframework.model.scope import EVERYONE
from taskframework.model.status import CLAIMABLE
from taskframework.model.stream_moves import ClaimTurn
from taskframework.model.task import SCHEMA_VERSION, Task, new_claim_id
from taskframework.model.transitions import Fence
from taskframework.moves import NotMade, TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import JointReads
from taskframework.worker.admission import PutOff
from taskframework.worker.attempt import RunningAttempt


class Refusal(enum.Enum):
    """Why the task of a delivery is not run here; the reason decides how the message is answered."""

    NOT_NEEDED = "not needed"  # acknowledge: the task runs elsewhere, is final or not due yet, or the message is old
    NO_DOCUMENT = "no document"  # reject: a message without a task is kept as a dead letter, unless the task was seen
    NOT_OURS = "not ours"  # acknowledge: the task is due later, and any worker may take it then


#: If a message comes too early by no more than this, the worker waits until the task is due.
_MAX_EARLY_WAIT = timedelta(seconds=1)
#: Added to the computed wait, because this process only estimates the store's clock.
_CLOCK_TOLERANCE = timedelta(milliseconds=5)
#: The shortest waits, in seconds, before a claim that was refused as too early is repeated. First at once, because the
#: task may be due meanwhile; then as long as the estimate of the store's clock may be wrong.
_REPEAT_PAUSES_SECONDS = (0.0, *EARLY_RETRY_PAUSES_SECONDS)


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """The terms of a claim."""

    lease: timedelta
    no_handler_delay: timedelta
    no_handler_limit: int


class ClaimStation:
    """Claims tasks for one worker."""

    def __init__(
        self,
        store: TaskStore,
        moves: TaskMoves,
        clock: Clock,
        worker_id: str,
        policy: ClaimPolicy,
        knows_type: Callable[[str], bool],
    ) -> None:
        """Prepare to claim; `knows_type` tells whether this worker runs a task type."""
        self._store = store
        self._tasks = JointReads(store)
        self._moves = moves
        self._clock = clock
        self._worker_id = worker_id
        self._policy = policy
        self._knows_type = knows_type

    def request(self, message: TaskMessage) -> Claim:
        """Return the claim for a message. After a failure, repeat this claim: the store may have applied it already."""
        return Claim(
            message.task_id,
            message.dispatch_epoch,
            new_claim_id(),
            self._worker_id,
            self._policy.lease,
            message.task_type,
        )

    async def claim(self, claim: Claim, *, is_repeated: bool = False) -> RunningAttempt | Refusal:
        """Try to claim the task.

        Args:
            claim: the claim that `request` returned.
            is_repeated: whether the same claim was sent before without a reply. If it was applied, its lease began
                then.

        Returns:
            The attempt, or the reason why there is no attempt.

        Raises:
            StoreUnavailableError: if the store does not answer; call again with the same claim.
        """
        if claim.task_type is not None and not self._knows_type(claim.task_type):
            try:
                exists = await self._store.get(claim.task_id, EVERYONE) is not None
            except TaskUnreadableError:
                return await self._postpone_unread(claim)
            return await self._postpone(claim) if exists else Refusal.NO_DOCUMENT
        pauses = iter(_REPEAT_PAUSES_SECONDS)
        while True:
            asked_at = self._clock.monotonic()
            made = await self._moves.make_once(claim, start_of_attempt)
            if not isinstance(made, NotMade):
                return self._attempt(made.task, claim.claim_id, asked_at, is_repeated=is_repeated)
            early, pause = self._time_until_due(claim, made.present), next(pauses, None)
            if early is None or early > _MAX_EARLY_WAIT or pause is None:
                return await self._refuse(claim, made)
            await self._clock.sleep(max(early.total_seconds(), pause))

    async def claim_turn(self, claim: ClaimTurn, *, is_repeated: bool) -> RunningAttempt | None:
        """Try to claim a task that has the turn of its stream; `is_repeated` as in `claim`.

        Returns:
            The attempt; None if the task has to be unblocked, or another process was faster.

        Raises:
            StoreUnavailableError: if the store does not answer; call again with the same claim.
        """
        asked_at = self._clock.monotonic()
        made = await self._moves.make_once(claim, start_of_attempt)
        if isinstance(made, NotMade):
            return None
        return self._attempt(made.task, claim.claim_id, asked_at, is_repeated=is_repeated)

    def _attempt(self, task: Task, claim_id: str, asked_at: float, *, is_repeated: bool) -> RunningAttempt:
        lease = self._policy.lease
        if is_repeated and task.lease is not None:
            lease = min(lease, task.lease.expires_at - self._store.now())
        return RunningAttempt(task, Fence(task.task_id, task.fencing_token, claim_id), asked_at + lease.total_seconds())

    def _time_until_due(self, claim: Claim, task: Task | None) -> timedelta | None:
        """Return the time until the claim can be repeated; None if the message has another fault than being too early.

        The broker and this process measure a delay by their own clocks, but the store's clock decides. If a message
        that is milliseconds early were dropped, the sweeper would send another one, seconds late. The returned time is
        negative if the task became due before the refusal came, or if the estimate is ahead of the store's clock.
        """
        now = self._store.now()
        if task is None or claim.apply(task, max(now, task.not_before)) is None:
            return None
        return task.not_before - now + _CLOCK_TOLERANCE

    async def hand_over(self, message: TaskMessage, put_off: PutOff) -> Refusal:
        """Leave a task that is not claimed here to the sweeper, which sends another message when the task is due."""
        if put_off.limit is None:  # a limit has read the task, so there is a document
            with contextlib.suppress(TaskUnreadableError):
                if await self._tasks.get(message.task_id) is None:
                    return Refusal.NO_DOCUMENT
        delay = put_off.delay(self._store.now())
        await self._store.mark(MakeDue(message.task_id, message.dispatch_epoch, delay, put_off.limit))
        return Refusal.NOT_OURS

    async def _postpone(self, claim: Claim) -> Refusal:
        """Leave a task that this worker cannot run to another worker, which knows its type or its schema."""
        await self._moves.make(self._postponement(claim))
        return Refusal.NOT_OURS

    async def _postpone_unread(self, claim: Claim) -> Refusal:
        """Postpone a task that this release cannot read, by a mark: a move would read the task."""
        await self._store.mark(self._postponement(claim))
        return Refusal.NOT_OURS

    async def _refuse(self, claim: Claim, refused: NotMade) -> Refusal:
        current = refused.present
        if refused.is_unreadable:
            return await self._postpone_unread(claim)
        if current is None:
            return Refusal.NO_DOCUMENT
        unconditional = replace(claim, slot=None, parameters_hash=None)
        if unconditional != claim and unconditional.apply(current, self._store.now()) is not None:
            # The only fault: the slot of the limit expired, because the task waited long for a permit or the store
            # after it, or the parameters that the limits read were replaced.
            await self._store.mark(MakeDue(claim.task_id, claim.dispatch_epoch))
            return Refusal.NOT_OURS
        is_waiting = current.status in CLAIMABLE and current.dispatch_epoch == claim.dispatch_epoch
        is_foreign = current.schema_version > SCHEMA_VERSION or not self._knows_type(current.task_type)
        return await self._postpone(claim) if is_waiting and is_foreign else Refusal.NOT_NEEDED

    def _postponement(self, claim: Claim) -> Postpone:
        policy = self._policy
        return Postpone(claim.task_id, claim.dispatch_epoch, policy.no_handler_delay, policy.no_handler_limit)
