"""Two of them at the same moment, about the same task."""

from __future__ import annotations

from taskframework.model.attempts import Claim
from taskframework.model.batches import AbandonUpload, Announce, EndRetry, ReopenBatch, Seal
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.drivers import CASCADE, CHECK
from taskframework.model.interventions import Cancel, EndUnstarted, Expire, Postpone, Reap, Replay, Supersede
from taskframework.model.marks import MoveDriver
from taskframework.model.scope import EVERYONE
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.stream_moves import ClaimTurn, Unblock
from taskframework.model.streams import Turn
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Transition
from tests.models.actors import outcome_of
from tests.models.world import DELAY, GRACE, LEASE, MAX_CRASHES, MAX_POSTPONED, REDISPATCH, Attempt, World, may_plan


async def race(world: World) -> bool:
    if not world.task_ids:
        return False
    task = await world.any_task()
    wishes = _wishes(world, task)
    first, second = world.chance.take(wishes), world.chance.take(wishes)
    replies = await world.store.race(first, second)
    for request, reply in zip((first, second), replies, strict=True):
        if reply is not None and isinstance(request, Claim | ClaimTurn):
            # By the document of the claim: the other one may have been quicker to change it.
            fence = Fence(task.task_id, task.fencing_token + 1, request.claim_id)
            world.attempts.append(Attempt(fence, request.worker_id, None, may_plan(task)))
    await world.ring(await world.task(task.task_id))
    return True


def _wishes(world: World, task: Task) -> list[Transition]:
    """What somebody might want of this task now, or just about now: the next epoch may be a moment away."""
    epoch, pick = task.dispatch_epoch, world.chance.pick
    claims = [
        Claim(task.task_id, epoch + ahead, world.new_claim_id(), worker_id, LEASE)
        for ahead, worker_id in ((0, "worker-1"), (0, "worker-2"), (1, "worker-1"))
    ]
    driven: list[Transition] = []
    if task.cascade_at is not None:
        driven += [MoveDriver(task.task_id, CASCADE, task.cascade_at, delay) for delay in (DELAY, None)]
    if CHECK.is_due(task, world.store.now()):
        driven += [Wake(task.task_id), Wake(task.task_id)]
    for turn in _turns_of(world, task):
        driven += [Unblock(task.task_id, turn.generation, REDISPATCH) for _ in range(2)]
        claim_id = world.new_claim_id()
        driven += [ClaimTurn(task.task_id, turn.generation, claim_id, "worker-2", LEASE, task.task_type, task.priority)]
    if task.batch is not None:
        driven += _wishes_for_batch(world, task)
    outcomes = [outcome_of(world, attempt) for attempt in world.attempts if attempt.fence.task_id == task.task_id]
    return [
        *claims,
        *driven,
        *outcomes,
        *outcomes,  # asked twice, because the first reply takes long
        Cancel(task.task_id, EVERYONE, "alice", None),
        Supersede(task.task_id, 3, stops_running=pick((False, True))),
        Expire(task.task_id),
        EndUnstarted(task.task_id),
        ReplaceParameters(task.task_id, {"n": 3}, "c", DELAY),
        SendSignal(task.task_id, EVERYONE, pick(("a", "d")), "approved", 1),
        Postpone(task.task_id, epoch, REDISPATCH, MAX_POSTPONED),
        Reap(task.task_id, task.fencing_token, GRACE, MAX_CRASHES, pick((DELAY, DELAY * 0))),
        Replay(task.task_id, EVERYONE, "operator", REDISPATCH, pick((None, task.revision))),
    ]


def _turns_of(world: World, task: Task) -> list[Turn]:
    """The turn of its stream, if the task has it."""
    turn = world.stream.turn
    return [turn] if turn is not None and turn.task_id == task.task_id and not world.stream.is_halted else []


def _wishes_for_batch(world: World, batch: Task) -> list[Transition]:
    """Only who has stored all of its items seals."""
    complete = [upload for upload in world.uploads if upload is not None and upload.sent == upload.items]
    wishes: list[Transition] = [
        *(Announce(batch.task_id, items, DELAY) for items in (1, 2, 3)),
        *(Seal(batch.task_id, upload.items) for upload in (*complete, *complete)),
        AbandonUpload(batch.task_id),
        ReopenBatch(batch.task_id, EVERYONE, "operator"),
    ]
    if batch.retry_at is not None:
        wishes.append(EndRetry(batch.task_id, batch.retry_at))
    return wishes
