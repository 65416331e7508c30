"""Who works in a walk: submitter, broker, workers, operator. Each step does a few writes at most.

A step returns whether there was anything to do.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from taskframework.model.attempts import Claim, Complete, Fail, RecordStep, Release, ReportProgress
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.interventions import Cancel, Discard, NewParameters, Postpone, Replay, RetryNow
from taskframework.model.marks import EndPutOff, ForgetDispatch, MakeDue
from taskframework.model.options import Debounce, StartLimit, start_by
from taskframework.model.outcome import describe
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.signals import SendSignal
from taskframework.model.status import FINAL, REPLAYABLE, TaskStatus
from taskframework.model.task import initial_fields
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.model.transitions import Fence, Transition
from taskframework.model.waiting import Reopen, Wait
from taskframework.testing.factories import new_task
from tests.models import streams
from tests.models.world import DELAY, HOUR, LEASE, MAX_POSTPONED, REDISPATCH, Attempt, World, may_plan

ALICE, BOB = Scope.of("alice"), Scope.of("bob")
_TEMPLATE = new_task(parameters={"n": 1})
_ERROR = describe(ValueError("it broke"), retryable=True)
_AT_ONCE = DELAY * 0
_DELAY_MS = DELAY // timedelta(milliseconds=1)
_LONG_AGO = -DELAY  # so that no two clocks disagree whether it is due
#: Some tasks have a queue timeout, and some are debounced: in all they wait no longer than for ten delays.
_START_LIMITS = (None, None, None, StartLimit(_DELAY_MS), StartLimit(_DELAY_MS, counts_limits=True))
_DEBOUNCED = (None, None, None, Debounce("key", _DELAY_MS, 10 * _DELAY_MS))
_VALUES = (None, 1, 1.0, True, {"$set": {"status": "COMPLETED"}}, ["$$ROOT"], {"a": {"b": "c"}})


async def submit(world: World) -> bool:
    """A new task, or the same request once more. The submitter may die before it publishes."""
    chance, now = world.chance, world.store.now()
    is_new = await world.living() < world.group
    if not is_new and chance.yes(0.8):
        return False
    task_id = f"{world.name}-task-{len(world.task_ids)}" if is_new else chance.pick(world.task_ids)
    task = _TEMPLATE.evolve(
        task_id=task_id,
        max_attempts=chance.pick((1, 2, 2, 3)),
        parent=chance.pick((None, None, ParentLink("parent", 0, 1))),
        not_before=now + chance.pick((_LONG_AGO, _LONG_AGO, DELAY)),
        deadline=chance.pick((None, None, None, now + LEASE, now + 10 * LEASE)),
        start_limit=chance.pick(_START_LIMITS),
        debounce=chance.pick(_DEBOUNCED),
        created_at=now,
        updated_at=now,
    )
    task = task.evolve(**initial_fields(task.not_before, now, REDISPATCH))
    task = task.evolve(start_by=start_by(task.start_limit, max(now, task.not_before)))
    if world.has_stream and is_new and chance.yes(0.7):
        task = streams.placed(world, task.evolve(parent=None, debounce=None))
    inserted = await world.store.insert(task)
    assert inserted.is_new is is_new
    if is_new:
        world.task_ids.append(task_id)
    await world.ring(inserted.task)
    return True


async def time_passes(world: World) -> bool:
    if not world.task_ids:
        return False
    await world.let_time_pass((await world.any_task()).task_id, world.chance.pick((1, 2, 2, 12)) * HOUR)
    return True


async def lose_message(world: World) -> bool:
    if not world.messages:
        return False
    world.chance.take(world.messages)
    return True


async def double_message(world: World) -> bool:
    if not world.messages or len(world.messages) > 6:
        return False
    world.messages.append(world.chance.pick(world.messages))
    return True


async def deliver(world: World) -> bool:
    """A worker takes a message: it claims the task, dies over it, or cannot run it."""
    if not world.messages:
        return False
    chance, message = world.chance, world.chance.take(world.messages)
    if chance.yes(0.06):  # a worker that does not know the type
        await world.store.apply(Postpone(message.task_id, message.dispatch_epoch, REDISPATCH, MAX_POSTPONED))
        return True
    if chance.yes(0.06):  # no slot in time, or a limit: left to the sweeper, if the worker lives
        if chance.yes(0.7):
            await world.store.mark(MakeDue(message.task_id, message.dispatch_epoch, chance.pick((_AT_ONCE, DELAY))))
        else:
            world.messages.append(message)
        return True
    worker_id, claim_id = chance.pick(("worker-1", "worker-2")), world.new_claim_id()
    claim = Claim(message.task_id, message.dispatch_epoch, claim_id, worker_id, LEASE, message.task_type)
    task = await world.store.apply(claim)
    if chance.yes(0.1):  # dies before it hears
        world.messages.append(message)
    elif task is not None:
        fence = Fence(task.task_id, task.fencing_token, claim_id)
        world.attempts.append(Attempt(fence, worker_id, message, may_plan(task)))
    return True


async def report(world: World) -> bool:
    """A worker renews its lease, reports progress or records a step; a refusal tells it that the lease is lost."""
    if not world.attempts:
        return False
    chance, attempt = world.chance, world.chance.pick(world.attempts)
    fence = attempt.fence
    what = chance.pick(("renew", "renew", "progress", "step"))
    if what == "renew":
        held = bool(await world.store.renew([fence], LEASE))
    elif what == "progress":
        held = await world.store.apply(ReportProgress(fence, chance.pick(_VALUES))) is not None
    else:
        step = RecordStep(fence, chance.pick(("charge", "mail")), chance.pick(_VALUES))
        held = await world.store.apply(step) is not None
    if not held and chance.yes(0.5):  # else it does not listen and will write again
        world.attempts.remove(attempt)
    return True


async def acknowledge_early(world: World) -> bool:
    """A long attempt gives its message back before the end; from here on its lease alone carries it."""
    if not world.attempts:
        return False
    world.chance.pick(world.attempts).message = None
    return True


async def kill_worker(world: World) -> bool:
    if not world.attempts:
        return False
    world.redeliver(world.chance.take(world.attempts))
    return True


async def cut_off_worker(world: World) -> bool:
    """Paused, or without its broker: the message comes again, and the attempt goes on all the same."""
    if not world.attempts:
        return False
    world.redeliver(world.chance.pick(world.attempts))
    return True


async def settle(world: World) -> bool:
    """A worker writes an outcome, perhaps twice, and acknowledges; or dies in between."""
    if not world.attempts:
        return False
    chance, attempt = world.chance, world.chance.take(world.attempts)
    outcome = outcome_of(world, attempt)
    task = await world.store.apply(outcome)
    if chance.yes(0.1):  # the reply was lost: asked again
        await world.store.apply(outcome)
    if chance.yes(0.1):  # code that did not hear that it is over
        world.attempts.append(replace(attempt, message=None))
    if chance.yes(0.15):
        world.redeliver(attempt)
    else:
        await world.ring(task)
    return True


def outcome_of(world: World, attempt: Attempt) -> Transition:
    chance, fence, worker_id = world.chance, attempt.fence, attempt.worker_id
    kind = chance.pick((*["complete"] * 3, *["fail"] * 4, *["release"] * 2, *["wait"] * 4))
    if kind == "wait" and fence.task_id != world.batch_id:  # the end of a batch can do neither
        return _wait(world, attempt)
    if kind == "complete":
        return Complete(fence, worker_id, chance.pick(_VALUES))
    if kind == "release":
        return Release(fence, worker_id)
    return Fail(fence, worker_id, _ERROR, chance.yes(0.75), chance.pick((_AT_ONCE, DELAY)))


def _wait(world: World, attempt: Attempt) -> Wait:
    chance = world.chance
    planned = chance.pick((0, 1, 2, 2, 2)) if attempt.may_plan else 0
    subtasks = None
    if planned:
        items = [[chance.pick(_VALUES), "hash"] for _ in range(planned)]
        plan = [{"task_type": _TEMPLATE.task_type, "priority": "normal", "max_attempts": 2, "items": items}]
        policy = chance.pick(("all_must_succeed", "allow_failures", "first_success", "at_least(2)"))
        subtasks = Subtasks(planned, plan, policy=policy, resumes=chance.yes(0.5))
    signal = None if planned and chance.yes(0.6) else "approved"
    timeout = chance.pick((None, DELAY, 10 * DELAY))
    return Wait(attempt.fence, attempt.worker_id, subtasks, signal, timeout, chance.pick(_VALUES))


async def signal(world: World) -> bool:
    """Somebody tells a task something, perhaps again."""
    if not world.task_ids:
        return False
    chance, task = world.chance, await world.any_task()
    key, name = chance.pick(("a", "b", "c")), chance.pick(("approved", "approved", "rejected"))
    scope = chance.pick((EVERYONE, ALICE, BOB))
    await world.ring(await world.store.apply(SendSignal(task.task_id, scope, key, name, chance.pick(_VALUES))))
    return True


async def cancel(world: World) -> bool:
    if not world.task_ids or world.chance.yes(0.5):
        return False
    chance = world.chance
    scope, reason = chance.pick((EVERYONE, ALICE, ALICE, BOB)), chance.pick((None, "$why"))
    await world.store.apply(Cancel((await world.any_task()).task_id, scope, "alice", reason))
    return True


async def replay(world: World) -> bool:
    """An operator queues a task anew, or has it tried again now, from a list that may be old."""
    if not world.task_ids:
        return False
    chance, task = world.chance, await world.any_task()
    if task.status not in REPLAYABLE and chance.yes(0.8):
        return False
    revision = chance.pick((None, task.revision, task.revision, task.revision - 1))
    scope = chance.pick((EVERYONE, EVERYONE, ALICE, BOB))
    edited = chance.pick((None, None, NewParameters({"n": 2})))
    request: Transition = Replay(task.task_id, scope, "operator", REDISPATCH, revision, edited)
    if task.status is TaskStatus.RETRYING and edited is None:
        request = RetryNow(task.task_id, scope, "operator", REDISPATCH, task.dispatch_epoch)
    await world.ring(await world.store.apply(request))
    return True


async def discard(world: World) -> bool:
    """An operator gives a dead letter up."""
    if not world.task_ids or world.chance.yes(0.5):
        return False
    scope = world.chance.pick((EVERYONE, ALICE, BOB))
    await world.store.apply(Discard((await world.any_task()).task_id, scope, "operator", None))
    return True


async def replace_parameters(world: World) -> bool:
    """Another submission of a debounced key."""
    tasks = [await world.task(task_id) for task_id in world.task_ids]
    debounced = [task for task in tasks if task.debounce is not None]
    if not debounced:
        return False
    chance = world.chance
    task = chance.pick([task for task in debounced if task.status not in FINAL] or debounced)
    newer = ReplaceParameters(
        task.task_id, chance.pick(_VALUES), chance.pick(("a", "b")), chance.pick((_AT_ONCE, DELAY))
    )
    await world.ring(await world.store.apply(newer))
    return True


async def lose_messages(world: World) -> bool:
    """A queue is gone, and somebody who knows it says so of a task."""
    if not world.task_ids:
        return False
    task = await world.any_task()
    world.messages = [message for message in world.messages if message.task_id != task.task_id]
    await world.store.mark(ForgetDispatch(task.task_id))
    return True


async def resume_type(world: World) -> bool:
    """A pause is over, and somebody makes a task due that was put off during the pause."""
    if not world.task_ids:
        return False
    task = await world.any_task()
    await world.store.mark(EndPutOff(task.task_id, world.store.now() - DELAY))
    return True


async def reopen(world: World) -> bool:
    """An operator lets a parent wait again, from a list that may be old; a sub-task only while its parent waits."""
    chance = world.chance
    tasks = {task_id: await world.task(task_id) for task_id in world.task_ids}
    parents = [task for task in tasks.values() if task.status in FINAL and task.subtasks is not None]
    if not parents and chance.yes(0.9):
        return False
    task = chance.pick(parents or list(tasks.values())) if tasks else None
    above = tasks.get(task.parent.task_id) if task and task.parent else None
    if task is None or (above is not None and not (above.status is TaskStatus.WAITING and task.status in REPLAYABLE)):
        return False
    if await world.store.apply(Reopen(task.task_id, chance.pick((EVERYONE, ALICE, BOB)), "operator")) is not None:
        world.reopened.add(task.task_id)
    return True
