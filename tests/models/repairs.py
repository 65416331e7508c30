"""Who repairs in a walk: sweeper, reaper, deadlines, relays, and the subscriber that hears them.

Whoever reads acts later, if it has not died: in between, everything may have changed.
"""

from __future__ import annotations

from taskframework.model.batches import AbandonUpload
from taskframework.model.drivers import CASCADE, DEADLINE, DISPATCH, LEASE, RETRY, SEAL, SPAWN, START, UNBLOCK
from taskframework.model.interventions import EndUnstarted, Expire, Reap
from taskframework.model.marks import MarkPublished, MoveDriver, PostponeRelay, ReserveDispatch, RestartQueueTimeout
from taskframework.model.task import Task
from taskframework.stores.replies import DueTask
from tests.models.families import is_unreported
from tests.models.world import ALL, DELAY, GRACE, HOUR, MAX_CRASHES, REDISPATCH, REDISPATCH_MAX, Publication, World


async def look(world: World) -> bool:
    """The repairs read what is due."""
    if not world.task_ids:
        return False
    await _look_for_leases(world)
    if not world.without.sweeper:
        world.due = [due for due in await world.store.due(DISPATCH, ALL) if due.task_id in world.task_ids]
    overdue = await world.store.due(DEADLINE, ALL)
    world.overdue = [task.task_id for task in overdue if task.task_id in world.task_ids]
    unstarted = await world.store.due(START, ALL)
    world.unstarted = [task.task_id for task in unstarted if task.task_id in world.task_ids]
    if not world.without.abandon:
        unsealed = await world.store.due(SEAL, ALL)
        world.unsealed = [task.task_id for task in unsealed if task.task_id in world.task_ids]
    # families.py, batches.py and streams.py go by the tasks; a store is held to its lists here.
    for driver in (SPAWN, CASCADE, RETRY):
        await world.store.due(driver, ALL)
    for found in await world.store.due(UNBLOCK, ALL):
        if found.task_id in world.task_ids:
            await world.store.apply(MoveDriver(found.task_id, UNBLOCK, found.due, DELAY))
    return True


async def _look_for_leases(world: World) -> None:
    if not world.without.reaper:
        leases = await world.store.due(LEASE, ALL, GRACE)
        world.expired = [lease for lease in leases if lease.task_id in world.task_ids]


async def act(world: World) -> bool:
    """One of the repairs does the next thing it read."""
    chance = world.chance
    if world.expired and chance.yes(0.5):
        await reap(world, chance.take(world.expired))
    elif world.due:
        await dispatch(world, chance.take(world.due), is_lost=chance.yes(0.2))
    elif world.overdue:
        await world.store.apply(Expire(world.overdue.pop()))
    elif world.unstarted and chance.yes(0.2):  # its type was held back
        await world.store.mark(RestartQueueTimeout(world.unstarted.pop()))
    elif world.unstarted:
        await world.store.apply(EndUnstarted(world.unstarted.pop()))
    elif world.unsealed:
        await world.store.apply(AbandonUpload(world.unsealed.pop()))
    else:
        return False
    return True


async def outlive_lease(world: World) -> bool:
    """A worker does not renew, and the reaper is quick; the worker does not know it yet."""
    if not world.attempts:
        return False
    await world.let_time_pass(world.chance.pick(world.attempts).fence.task_id, 2 * HOUR)
    await _look_for_leases(world)
    while world.expired:
        await reap(world, world.expired.pop())
    return True


async def dispatch(world: World, due: DueTask, *, is_lost: bool = False) -> None:
    """Reserve, then publish: a message that is lost is sent again when the reservation is over."""
    reservation = ReserveDispatch(due.task_id, due.dispatch_epoch, REDISPATCH, REDISPATCH_MAX)
    if await world.store.apply(reservation) is not None and not is_lost:
        world.send(due.task_id, due.task_type, due.dispatch_epoch)


async def reap(world: World, lease: DueTask) -> None:
    await world.ring(await world.store.apply(Reap(lease.task_id, lease.fencing_token, GRACE, MAX_CRASHES, DELAY)))


async def relay(world: World) -> bool:
    """One of two relays takes a task in hand, publishes an event of it, or dies; the broker may refuse."""
    if not world.task_ids:
        return False
    chance, at = world.chance, world.chance.pick((0, 1))
    publication = world.relays[at]
    if publication is None:
        world.relays[at] = await _take_in_hand(world, await world.any_task())
        return True
    if chance.yes(0.15):  # refused, or dead: before or after the confirm, and never marked
        world.relays[at] = None
    if publication.entries and chance.yes(0.95):
        world.events.append((publication.task_id, publication.entries.pop(0).sequence))
    if not publication.entries and world.relays[at] is not None:
        await _mark(world, publication)
        world.relays[at] = None
    return True


async def _take_in_hand(world: World, task: Task) -> Publication | None:
    entries = list(task.unpublished)
    if not entries:
        return None
    if world.chance.yes(0.5):  # the relay does, the bridge, which heard of it, does not
        await world.store.apply(PostponeRelay(task.task_id, DELAY))
    if world.without.confirms:
        await world.store.mark(MarkPublished(task.task_id, task.sequence))
    if world.without.backlog:
        entries = entries[-1:]
    return Publication(task.task_id, entries, task.sequence)


async def publish_all(world: World, task: Task) -> None:
    """What a relay does when nothing goes wrong."""
    if (publication := await _take_in_hand(world, task)) is not None:
        world.events.extend((task.task_id, entry.sequence) for entry in publication.entries)
        await _mark(world, publication)


async def _mark(world: World, publication: Publication) -> None:
    """The mark of a publication; none if it holds the end of a sub-task that its parent does not know of."""
    task = await world.task(publication.task_id)
    if task.sequence > publication.sequence or not is_unreported(world, task):
        await world.store.mark(MarkPublished(publication.task_id, publication.sequence))


async def hear(world: World) -> bool:
    """The subscriber takes the next event of its queue; a copy of it may come again later."""
    if not world.events:
        return False
    task_id, sequence = world.events.pop(0)
    world.watch.hear(task_id, sequence)
    if world.chance.yes(0.1):
        world.events.append((task_id, sequence))
    return True
