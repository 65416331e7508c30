"""Who looks after parents and their sub-tasks in a walk: spawner, reporters, cascade, and who wakes what waits.

Each may die between any two of its steps.
"""

from __future__ import annotations

from taskframework.model.drivers import CASCADE, CHECK, SPAWN
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkSpawned, MoveDriver
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.subtasks import Counts, planned_tasks
from taskframework.model.task import Task
from taskframework.model.waiting import CountSubtasks
from tests.models.world import ALL, DELAY, REDISPATCH, Report, Spawning, World


async def spawn(world: World) -> bool:
    """A process stores the next sub-task of a plan, or takes up a plan: another may be at it already."""
    chance = world.chance
    if world.spawning and chance.yes(0.8):
        spawning = chance.pick(world.spawning)
        if chance.yes(0.1):  # dies
            world.spawning.remove(spawning)
        else:
            await _go_on(world, spawning)
        return True
    parents = [task for task in await _tasks(world) if SPAWN.time_of(task) is not None]
    if not parents or world.without.spawner:
        return False
    await _take_plan(world, chance.pick(parents))
    return True


async def _take_plan(world: World, parent: Task) -> None:
    due = parent.spawn_at
    assert due is not None
    if await world.store.apply(MoveDriver(parent.task_id, SPAWN, due, DELAY)) is not None:
        world.spawning.append(_spawning(world, parent))


def _spawning(world: World, parent: Task) -> Spawning:
    assert parent.subtasks is not None
    # Long ago, so that no two clocks disagree whether a sub-task may start.
    tasks = planned_tasks(parent, parent.subtasks.plan or [], lambda: world.store.now() - DELAY, REDISPATCH)
    return Spawning(parent, list(tasks))


async def _go_on(world: World, spawning: Spawning) -> None:
    if spawning.tasks:
        inserted = await world.store.insert(spawning.tasks.pop(0))
        if inserted.is_new:
            world.task_ids.append(inserted.task.task_id)
        await world.ring(inserted.task)
        return
    world.spawning.remove(spawning)
    parent = spawning.parent
    assert parent.subtasks is not None
    await world.store.mark(MarkSpawned(parent.task_id, parent.generation, parent.subtasks.round))


async def report(world: World) -> bool:
    """One of two reporters does its next step, or dies."""
    at = world.chance.pick((0, 1))
    current = world.reports[at]
    if current is None:
        world.reports[at] = await _hear(world)
        return world.reports[at] is not None
    if world.chance.yes(0.1) or await _step(world, current):
        world.reports[at] = None
    return True


async def _hear(world: World) -> Report | None:
    """What a reporter knows of: some ends that are marked, of one parent."""
    marked = [task for task in await _tasks(world) if is_unreported(world, task)]
    if not marked:
        return None
    first = world.chance.pick(marked)
    assert first.parent is not None
    parent_id = first.parent.task_id
    others = [task for task in marked if task.parent and task.parent.task_id == parent_id and world.chance.yes(0.5)]
    return Report(parent_id, {task.task_id: task.sequence for task in (first, *others)})


async def _step(world: World, report: Report) -> bool:
    """Count, write the count, clear the markers; whether that was the last step."""
    if world.without.count_first and not report.is_written and report.counted is None:
        await _clear(world, report)
    if report.is_written:
        await _clear(world, report)
        return True
    if report.counted is None:
        report.counted = await _count(world, report.parent_id)
        report.is_written = report.counted is None
        return False
    counted = await world.store.apply(report.counted)
    await world.ring(counted)
    report.counted, report.is_written = None, counted is not None
    return False


async def _count(world: World, parent_id: str) -> CountSubtasks | None:
    """The count that follows a look at the parent; None if that does not wait."""
    parent = await world.store.get(parent_id)
    if parent is None or parent.subtasks is None or parent.status is not TaskStatus.WAITING:
        return None
    if not parent.subtasks.is_awaited:
        return None
    round = RoundOfSubtasks(parent_id, parent.generation, parent.subtasks.round)
    return CountSubtasks.of(parent, Counts.of(await world.store.count_subtasks(round)))


async def _clear(world: World, report: Report) -> None:
    ended = report.ended
    if world.without.knowledge:
        siblings = [task for task in await _tasks(world) if task.parent and task.parent.task_id == report.parent_id]
        ended = {task.task_id: task.sequence for task in siblings if is_unreported(world, task)}
    world.reported |= ended


def is_unreported(world: World, task: Task) -> bool:
    """Whether it is a sub-task whose end is not known to be counted: nobody may mark it as published."""
    is_end = task.parent is not None and task.status.is_final and task.published_sequence < task.sequence
    return is_end and world.reported.get(task.task_id) != task.sequence


async def cascade(world: World) -> bool:
    """A process cancels what nobody waits for: one sub-task a step, and when none is left it says so."""
    parents = [task for task in await _tasks(world) if task.cascade_at is not None]
    if not parents or world.without.cascade:
        return False
    await _cancel_next(world, world.chance.pick(parents))
    return True


async def _cancel_next(world: World, parent: Task) -> bool:
    """Whether there was one to cancel."""
    for task in await _tasks(world):
        if _is_left_behind(task, parent) and task.status in LIVE and task.cancel is None:
            await world.store.apply(Cancel(task.task_id, EVERYONE, "parent", None))
            return True
    assert parent.cascade_at is not None
    await world.store.apply(MoveDriver(parent.task_id, CASCADE, parent.cascade_at, None))
    return False


def _is_left_behind(task: Task, parent: Task) -> bool:
    link, subtasks = task.parent, parent.subtasks
    if link is None or subtasks is None or (link.task_id, link.generation) != (parent.task_id, parent.generation):
        return False
    is_awaited = parent.status is TaskStatus.WAITING and subtasks.is_awaited
    return not is_awaited or link.round < subtasks.round


async def wake(world: World) -> bool:
    """Somebody looks at what waits and is due; only a batch and a reopened parent are counted for that."""
    due = [found for found in await world.store.due(CHECK, ALL) if found.task_id in world.task_ids]
    if not due:
        return False
    await _wake(world, world.chance.pick(due).task_id)
    return True


async def _wake(world: World, task_id: str) -> None:
    task = await world.store.apply(Wake(task_id))
    await world.ring(task)
    if task is not None and task.status is TaskStatus.WAITING and _is_counted(world, task_id):
        count = await _count(world, task_id)
        if count is not None:
            await world.ring(await world.store.apply(count))


def _is_counted(world: World, task_id: str) -> bool:
    return task_id in world.reopened or task_id == world.batch_id


async def settle_down(world: World) -> None:
    """Everybody does all there is to do, and nobody dies."""
    world.reports, world.spawning = [None, None], []
    for task in await _tasks(world):
        if SPAWN.time_of(task) is not None and not world.without.spawner:
            spawning = _spawning(world, task)
            world.spawning.append(spawning)
            while spawning in world.spawning:
                await _go_on(world, spawning)
        if task.cascade_at is not None and not world.without.cascade:
            while await _cancel_next(world, task):
                pass
        if task.status is TaskStatus.WAITING and task.waits_for is not None:
            await world.store.apply(SendSignal(task.task_id, EVERYONE, f"end-{task.revision}", "approved", None))
    while (report := await _hear(world)) is not None:
        while not await _step(world, report):
            pass
    for found in await world.store.due(CHECK, ALL):
        if found.task_id in world.task_ids:
            await _wake(world, found.task_id)


async def _tasks(world: World) -> list[Task]:
    return [await world.task(task_id) for task_id in world.task_ids]
