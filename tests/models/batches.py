"""Who uploads, abandons and retries a batch in a walk. Each may die between any two of its steps."""

from __future__ import annotations

from datetime import datetime

from taskframework.model.batches import AbandonUpload, Announce, EndRetry, ReopenBatch, Seal, is_open, is_sealed
from taskframework.model.drivers import RETRY, SEAL
from taskframework.model.interventions import Replay
from taskframework.model.marks import CascadeAgain, MoveDriver
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import REPLAYABLE, TaskStatus
from taskframework.model.subtasks import subtask_of
from taskframework.model.task import Task, initial_fields
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.testing.factories import new_task
from tests.models.world import ALL, DELAY, REDISPATCH, Uploading, World

_TEMPLATE = new_task(parameters=None)
_GROUP = {"task_type": _TEMPLATE.task_type, "priority": "normal", "max_attempts": 2}
_POLICIES = ("allow_failures", "allow_failures", "all_must_succeed", "first_success")


async def upload(world: World) -> bool:
    """One of two uploads with the same key does its next step, dies, or begins at the first item."""
    at = world.chance.pick((0, 1))
    current = world.uploads[at]
    if current is None:
        world.uploads[at] = await _begin(world)
        return world.uploads[at] is not None
    if world.chance.yes(0.1) or await _step(world, current):
        world.uploads[at] = None
    return True


async def _begin(world: World) -> Uploading | None:
    """The batch is found, or stored; the uploads need not have the same number of items."""
    if not world.has_batch:
        return None
    if world.batch_id is None:
        world.batch_id = f"{world.name}-batch"
        await world.store.insert(_new_batch(world, world.batch_id))
        world.task_ids.append(world.batch_id)
    elif not is_open(await world.task(world.batch_id)) and world.chance.yes(0.8):
        return None
    return Uploading(world.batch_id, world.chance.pick((1, 2, 2, 3)))


def _new_batch(world: World, batch_id: str) -> Task:
    now = world.store.now()
    batch = _TEMPLATE.evolve(task_id=batch_id, not_before=now - DELAY, created_at=now, updated_at=now)
    return batch.evolve(**initial_fields(batch.not_before, now, REDISPATCH)).evolve(
        status=TaskStatus.WAITING,
        next_dispatch_at=None,
        batch=Batch(),
        subtasks=Subtasks(None, None, policy=world.chance.pick(_POLICIES), resumes=world.chance.yes(0.3)),
        check_at=now + DELAY,
        seal_by=now + DELAY,
    )


async def _step(world: World, upload: Uploading) -> bool:
    """Announce the next item, store it, or seal behind the last one; whether the upload is over."""
    if upload.sent == upload.items:
        if world.without.announcements:
            await world.store.apply(Announce(upload.batch_id, upload.items, DELAY))
        return await world.store.apply(Seal(upload.batch_id, upload.items)) is not None or await _is_over(world)
    if not upload.is_announced and not world.without.announcements:
        announced = await world.store.apply(Announce(upload.batch_id, upload.sent + 1, DELAY))
        upload.is_announced = announced is not None
        return announced is None and await _is_over(world)
    await _store_item(world, upload)
    return False


async def _is_over(world: World) -> bool:
    """Refused: the batch takes no more. If it was cancelled, the last item may have been late."""
    assert world.batch_id is not None
    batch = await world.task(world.batch_id)
    if batch.status.is_final and not is_sealed(batch):
        await world.store.mark(CascadeAgain(batch.task_id, batch.generation, 1))
    return True


async def _store_item(world: World, upload: Uploading) -> None:
    long_ago = world.store.now() - DELAY
    batch = await world.task(upload.batch_id)
    item = subtask_of(batch, upload.sent, _GROUP, upload.sent, "hash", long_ago, REDISPATCH)
    inserted = await world.store.insert(item)
    if inserted.is_new:
        world.task_ids.append(item.task_id)
    await world.ring(inserted.task)
    upload.sent, upload.is_announced = upload.sent + 1, False


async def retry_failed(world: World) -> bool:
    """Somebody asks for all that did not succeed, from a list that may be old."""
    if world.batch_id is None:
        return False
    chance, batch = world.chance, await world.task(world.batch_id)
    if not (batch.status.is_final and is_sealed(batch)) and chance.yes(0.8):
        return False
    scope = chance.pick((EVERYONE, EVERYONE, Scope.of("alice"), Scope.of("bob")))
    await world.store.apply(ReopenBatch(batch.task_id, scope, "operator"))
    return True


async def retry(world: World) -> bool:
    """A process replays the next item that did not succeed, or says that none is left."""
    batch = None if world.batch_id is None else await world.task(world.batch_id)
    if batch is None or RETRY.time_of(batch) is None or world.without.retrier:
        return False
    await _replay_some(world, batch, 1)
    return True


async def _replay_some(world: World, batch: Task, most: int) -> None:
    held = await world.store.apply(MoveDriver(batch.task_id, RETRY, _due(batch), DELAY))
    if held is None:
        return
    failed = await _failed_items(world, held)
    for item in failed[:most]:
        replay = Replay(item.task_id, EVERYONE, "batch", REDISPATCH, item.revision)
        await world.ring(await world.store.apply(replay))
    if len(failed) <= most:
        await world.store.apply(EndRetry(held.task_id, _due(held)))


async def _failed_items(world: World, batch: Task) -> list[Task]:
    """What ended without success until the retry was asked for, and can be replayed by now."""
    until = batch.batch.retry_until if batch.batch else None
    assert until is not None, "set together with the time of the retry"
    tasks = [await world.task(task_id) for task_id in world.task_ids]
    items = [task for task in tasks if task.parent is not None and task.parent.task_id == batch.task_id]
    failed = [task for task in items if task.status in REPLAYABLE and task.cascade_at is None]
    return [task for task in failed if task.finished_at is not None and task.finished_at <= until]


def _due(batch: Task) -> datetime:
    due = batch.retry_at
    assert due is not None
    return due


async def settle_down(world: World) -> None:
    """Nobody uploads any more; what is open is abandoned, and every retry comes to its end."""
    world.uploads = [None, None]
    if world.batch_id is None:
        return
    if not world.without.abandon:
        for found in await world.store.due(SEAL, ALL):
            if found.task_id == world.batch_id:
                await world.store.apply(AbandonUpload(found.task_id))
    batch = await world.task(world.batch_id)
    if RETRY.time_of(batch) is not None and not world.without.retrier:
        await _replay_some(world, batch, ALL)
