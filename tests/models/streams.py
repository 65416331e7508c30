"""Who passes on the turns of a serial stream in a walk, and who skips. Each may die between any two of its steps."""

from __future__ import annotations

from taskframework.model.options import StreamPlace
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.stream_moves import UNBLOCK_CHECK_INTERVAL, ClaimTurn, Skip, Unblock
from taskframework.model.streams import PassTurn, StreamKey, TakePositions, Turn, TurnState, position_of, turn_state
from taskframework.model.task import Task
from taskframework.model.transitions import Fence
from tests.models.world import DELAY, HOUR, LEASE, REDISPATCH, Attempt, World, may_plan

_KEY = StreamKey("alice", "orders")


def placed(world: World, task: Task) -> Task:
    """A task that is about to be stored, with its place in a stream. The submitter of another one died before that."""
    if world.chance.yes(0.2):
        return task.evolve(stream=StreamPlace("news", "ordered_results", len(world.task_ids)))
    taken = TakePositions(_KEY, HOUR, "serial", world.chance.pick((1, 1, 1, 2)))
    world.stream = taken.apply(world.stream)
    place = StreamPlace(_KEY.key, "serial", world.stream.next_position - 1, halts=world.chance.yes(0.3))
    blocked = {
        "status": TaskStatus.BLOCKED,
        "next_dispatch_at": None,
        "unblock_at": task.created_at + UNBLOCK_CHECK_INTERVAL,
    }
    return task.evolve(stream=place, **blocked)


async def look(world: World) -> bool:
    """A process reads whose turn it is; what it concludes from that it does later."""
    if not world.has_stream or world.without.turns:
        return False
    turn = world.stream.turn
    state = turn_state(turn, None if turn is None else await world.task(turn.task_id))
    if state is TurnState.WAITS and turn is not None:
        world.unblocking.append(turn)
        return True
    if state is TurnState.LIVE or (state is TurnState.FAILED and world.stream.is_halted):
        return False
    after = turn if state is TurnState.FAILED else await _next(world)
    if after is None:
        return False
    world.passing.append(PassTurn(_KEY, HOUR, turn, after, is_halted=state is TurnState.FAILED))
    return True


async def _next(world: World) -> Turn | None:
    tasks = [await world.task(task_id) for task_id in world.task_ids]
    turns = [Turn(task.task_id, task.generation, position_of(task)) for task in tasks if _is_blocked(task)]
    return min(turns, key=lambda turn: turn.position, default=None)


def _is_blocked(task: Task) -> bool:
    return task.status is TaskStatus.BLOCKED


async def go_on(world: World) -> bool:
    """Somebody does the next thing that was concluded: passes a turn on, or lets the task go that has it."""
    if world.passing and (not world.unblocking or world.chance.yes(0.5)):
        _pass_on(world, world.chance.take(world.passing))
        return True
    if not world.unblocking:
        return False
    turn = world.chance.take(world.unblocking)
    if world.chance.yes(0.7) or not await _claim(world, turn):
        await world.ring(await world.store.apply(Unblock(turn.task_id, turn.generation, REDISPATCH)))
    return True


async def _claim(world: World, turn: Turn) -> bool:
    """A worker starts the task that got the turn, as one like the task before it. It may die before it hears."""
    worker_id, claim_id = world.chance.pick(("worker-1", "worker-2")), world.new_claim_id()
    kind = await world.task(world.chance.pick(world.task_ids))
    claim = ClaimTurn(turn.task_id, turn.generation, claim_id, worker_id, LEASE, kind.task_type, kind.priority)
    task = await world.store.apply(claim)
    if task is not None and world.chance.yes(0.9):
        fence = Fence(task.task_id, task.fencing_token, claim_id)
        world.attempts.append(Attempt(fence, worker_id, None, may_plan(task)))
    return task is not None


def _pass_on(world: World, wanted: PassTurn) -> None:
    if world.without.turn_guard:
        world.stream = PassTurn(_KEY, HOUR, world.stream.turn, wanted.after, wanted.is_halted).apply(world.stream)
    else:
        world.stream = wanted.apply(world.stream)
    is_made = world.stream.turn == wanted.after
    if is_made and wanted.after is not None and not wanted.is_halted and world.chance.yes(0.9):  # else it dies
        world.unblocking.append(wanted.after)


async def let_go_on(world: World) -> bool:
    """An operator lets a halted stream go on."""
    if not world.stream.is_halted:
        return False
    world.stream = PassTurn(_KEY, HOUR, world.stream.turn, None).apply(world.stream)
    return True


async def skip(world: World) -> bool:
    """The readers of ordered results do not wait any longer; or somebody thinks so too early."""
    tasks = [await world.task(task_id) for task_id in world.task_ids]
    live = [task for task in tasks if task.stream and task.stream.mode == "ordered_results" and task.status in LIVE]
    if not live:
        return False
    due = world.store.now() + world.chance.pick((-DELAY, -DELAY, DELAY))
    await world.store.apply(Skip(world.chance.pick(live).task_id, due))
    return True


async def settle_down(world: World) -> bool:
    """Everybody does what there is to do, and nobody dies.

    Returns:
        Whether a task was let go.
    """
    await let_go_on(world)
    while await look(world):
        while world.passing:
            _pass_on(world, world.passing.pop())
        if world.unblocking:
            turn = world.unblocking.pop()
            task = await world.store.apply(Unblock(turn.task_id, turn.generation, REDISPATCH))
            if task is not None:
                world.send(task.task_id, task.task_type, task.dispatch_epoch)
                return True
        await let_go_on(world)
    return False
