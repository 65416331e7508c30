"""A walk: a random schedule of all actors, then a time without faults, then the reckoning.

To walk one again, over the reference or in step with a store (`python -m tests.support.servers` starts a MongoDB):

    .venv/bin/python -m tests.models.walk SEED [sqlite:///FILE | mongodb://...]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import timedelta

from taskframework.model import drivers
from taskframework.model.attempts import Claim, Complete
from taskframework.model.drivers import DISPATCH, OUTBOX
from taskframework.model.interventions import Expire
from taskframework.model.marks import Mark
from taskframework.model.status import FINAL
from taskframework.model.task import Task
from taskframework.model.transitions import Fence
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from tests.models import actors, batches, families, races, repairs, streams
from tests.models.invariants import Watch
from tests.models.lockstep import Lockstep
from tests.models.reference import Reference, Rule
from tests.models.world import ALL, GRACE, LEASE, Chance, Without, World

STEPS = 70
#: Half of them are enough for whatever can be under way.
ROUNDS = 12
_SHOWN = 60
_AGAIN = "again: .venv/bin/python -m tests.models.walk"
_NOTHING = Without()

Step = Callable[[World], Awaitable[bool]]
#: A step, and the seed of what it leaves to chance.
Turn = tuple[Step, int]

#: How often each step is drawn.
_WEIGHTS: Mapping[Step, int] = {
    actors.submit: 3,
    actors.time_passes: 3,
    actors.lose_message: 1,
    actors.double_message: 1,
    actors.deliver: 10,
    actors.report: 2,
    actors.acknowledge_early: 1,
    actors.kill_worker: 1,
    actors.cut_off_worker: 1,
    actors.settle: 6,
    actors.cancel: 1,
    actors.replay: 2,
    actors.discard: 1,
    actors.replace_parameters: 1,
    actors.lose_messages: 1,
    actors.resume_type: 1,
    races.race: 2,
    actors.signal: 1,
    actors.reopen: 1,
    batches.upload: 8,
    batches.retry_failed: 1,
    batches.retry: 2,
    families.spawn: 6,
    families.report: 6,
    families.cascade: 1,
    families.wake: 1,
    streams.look: 6,
    streams.go_on: 8,
    streams.let_go_on: 1,
    streams.skip: 1,
    repairs.look: 3,
    repairs.act: 6,
    repairs.outlive_lease: 2,
    repairs.relay: 5,
    repairs.hear: 4,
}
_STEPS: tuple[Step, ...] = tuple(step for step, weight in _WEIGHTS.items() for _ in range(weight))


async def walk(seed: int, rules: Mapping[type, Rule] | None = None, without: Without = _NOTHING) -> Watch:
    """Walk over the reference alone.

    Args:
        seed: chooses the schedule.
        rules: the rules of a mutant.
        without: what a mutant leaves out.

    Raises:
        AssertionError: an invariant was broken; the message tells the shortest schedule that breaks it.
    """

    def new_world() -> World:
        watch = Watch()
        return World(seed, Reference(watch, rules), watch, without)

    world, taken = new_world(), list[Turn]()
    try:
        await _run(world, _turns(seed), taken)
    except AssertionError as error:
        raise AssertionError(await _shortest(new_world, taken, error)) from error
    return world.watch


async def walk_in_step(seed: int, store: TaskStore) -> Watch:
    """Walk over a store and the reference, which must agree after each step.

    Raises:
        AssertionError: they do not, or an invariant was broken; the message tells the schedule.
    """
    watch = Watch()
    world = World(seed, Lockstep(store, watch), watch)
    try:
        await _run(world, _turns(seed), [])
    except AssertionError as error:
        url = "sqlite:///walk.db" if isinstance(store, SqliteStore) else "mongodb://..."
        raise AssertionError(f"{_told(error, world)} {url}") from error
    return watch


async def walk_together(seeds: Iterable[int], store: TaskStore) -> list[Watch]:
    """Many walks at once over one store, so that it writes in groups."""
    try:
        async with asyncio.TaskGroup() as group:
            walks = [group.create_task(walk_in_step(seed, store)) for seed in seeds]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [walk.result() for walk in walks]


def _turns(seed: int) -> Iterator[Turn]:
    chance = Chance(seed)
    while True:
        yield chance.pick(_STEPS), int(chance.next() * 2**32)


async def _run(world: World, turns: Iterable[Turn], taken: list[Turn]) -> None:
    """Take the turns, which may have no end; note those at which there was something to do."""
    for turn in turns:
        step, seed = turn
        world.chance.seed(seed)
        taken.append(turn)
        if not await step(world):
            taken.pop()
        if len(taken) == STEPS:
            break
    world.chance.seed(0)
    await _settle_down(world)
    world.watch.check_the_end([await world.task(task_id) for task_id in world.task_ids])


async def _shortest(new_world: Callable[[], World], turns: list[Turn], failure: AssertionError) -> str:
    """What there is to tell of the walk in which the same invariant breaks after as few turns as possible."""

    async def failing(turns: list[Turn]) -> str | None:
        world = new_world()
        try:
            await _run(world, turns, [])
        except AssertionError as error:
            return _told(error, world) if str(error)[:2] == str(failure)[:2] else None
        return None

    shortest = await failing(turns)
    assert shortest is not None, f"does not fail again: {failure}"
    at = len(turns)
    while at > 0:
        at -= 1
        fewer = turns[:at] + turns[at + 1 :]
        if (story := await failing(fewer)) is not None:
            turns, shortest, at = fewer, story, len(fewer)  # what went may have been all that needed another
    return shortest


async def _settle_down(world: World) -> None:
    """No more faults: all workers are gone, the broker and the repairs work, and everybody has time."""
    for attempt in world.attempts:
        world.redeliver(attempt)
    for _ in range(ROUNDS):
        await _round(world)
        if all([_is_over(await world.task(task_id)) for task_id in world.task_ids]):
            return


def _is_over(task: Task) -> bool:
    is_done = task.status in FINAL and task.cascade_at is None
    return is_done and task.published_sequence == task.sequence


async def _round(world: World) -> None:
    store = world.store
    for task_id in world.task_ids:
        if not _is_over(await world.task(task_id)):
            await world.let_time_pass(task_id, timedelta(hours=12))
    if not world.without.sweeper:
        for due in await store.due(DISPATCH, ALL):
            if due.task_id in world.task_ids:
                await repairs.dispatch(world, due)
    if not world.without.reaper:
        for lease in await store.due(drivers.LEASE, ALL, GRACE):
            if lease.task_id in world.task_ids:
                await repairs.reap(world, lease)
        for overdue in await store.due(drivers.DEADLINE, ALL):
            if overdue.task_id in world.task_ids:
                await store.apply(Expire(overdue.task_id))
    await _run_all(world)
    while await streams.settle_down(world):
        await _run_all(world)
    await batches.settle_down(world)
    await families.settle_down(world)
    for found in await store.due(OUTBOX, ALL):
        if found.task_id in world.task_ids:
            await repairs.publish_all(world, await world.task(found.task_id))
    while world.events:
        world.watch.hear(*world.events.pop(0))


async def _run_all(world: World) -> None:
    while world.messages:
        await _run_through(world)


async def _run_through(world: World) -> None:
    """A worker to which nothing happens."""
    message, claim_id = world.messages.pop(), world.new_claim_id()
    claim = Claim(message.task_id, message.dispatch_epoch, claim_id, "worker-1", LEASE, message.task_type)
    if (task := await world.store.apply(claim)) is not None:
        fence = Fence(task.task_id, task.fencing_token, claim_id)
        await world.store.apply(Complete(fence, "worker-1", None))


def told(watch: Watch) -> str:
    """The last requests of a walk, for people: number and status of the task, the request, what came of it."""
    first = max(0, len(watch.requests) - _SHOWN)
    lines = [_line(*entry) for entry in watch.requests[first:]]
    return "\n".join([f"... {first} requests before", *lines] if first else lines)


def _told(error: AssertionError, world: World) -> str:
    return f"{error}\n\n{told(world.watch)}\n\n{_AGAIN} {world.seed}"


def _line(request: Mark, before: Task, after: Task | None) -> str:
    outcome = "refused" if after is None else after.status.value
    return f"{before.task_id[-1]} {before.status} {type(request).__name__}({_arguments(request)}): {outcome}"


def _arguments(request: object) -> str:
    """The fields of a request that tell something."""
    values = {name: getattr(request, name) for name in getattr(request, "__slots__", ())}
    if (fence := values.pop("fence", None)) is not None:
        values["fencing_token"] = fence.fencing_token
    tiresome = {"task_id", "task_type", "error", "first", "longest", "lease"}
    return ", ".join(f"{name}={value}" for name, value in values.items() if name not in tiresome)


async def _main(seed: int, url: str = "") -> None:
    if not url:
        watch = await walk(seed)
    else:
        store = SqliteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else MongoStore(url)
        await store.open()
        try:
            watch = await walk_in_step(seed, store)
        finally:
            await store.close()
    sys.stdout.write(f"{told(watch)}\n")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), *sys.argv[2:]))
