"""Named points in the code where a test can make a process die, fail or wait, or lose a reply.

An unarmed point costs one check of an empty dict. Points are armed by `arm` inside a test or, for a separate process,
by the environment: `TASKFRAMEWORK_FAILPOINTS="claim.after_write=kill,mark.reply@3=drop"`. The actions are

    kill             SIGKILL, as from `kill -9` or the kernel's out-of-memory killer
    raise            an unexpected error in the code that reaches the point
    pause:SECONDS    the code that reaches the point hangs, everything else continues
    drop             the reply is lost after the write was applied; only for the points whose name ends in `.reply`

and `name@3=kill` acts only on the third passage. Each action is logged before it is taken, and so is the end of a
pause, so that a test can show that its fault happened. `POINTS` lists all points; arming another name is an error.

A point is between two writes or messages, so that all points together are the places where a crash leaves work half
done. A reply point is directly after the driver's call, where the adapter translates the driver's errors: to the code,
a dropped reply looks like a connection that broke at this moment.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping

logger = logging.getLogger(__name__)

Action = Callable[[], Awaitable[None]]

#: Every point, and what is done and what is not done when the code reaches it.
POINTS: Mapping[str, str] = {
    "submit.before_insert": "the request is checked, nothing is stored",
    "version.after_insert": "a version of a key is stored, its record names an older version or none",
    "version.after_record": "the record of a key names a newer version, the older one has yet to be ended",
    "stream.after_position": "a task has a position in its stream and is not stored yet",
    "stream.after_insert": "a task of a stream is stored, no process has looked whose turn it is",
    "stream.before_turn": "a turn of a stream is over, the next task is chosen and does not have the turn yet",
    "stream.after_turn": "a task has the turn of its stream and is not unblocked yet",
    "stream.after_gap": "a reader gave up a position of a stream, no results after it are read",
    "unblock.after_write": "a task of a stream is unblocked, no listener has the event",
    "skip.after_write": "a stream continues without a task, no listener has the event",
    "move_position.after_write": "a task that came too late has a later position in its stream",
    "supersede.after_write": "an older version of a key has ended, no listener has the event",
    "debounce.after_record": "the record of a debounced key names a task that is not stored yet",
    "debounce.after_replace": "a waiting task has newer parameters, no listener has the event, the caller no reply",
    "submit.after_key": "an idempotency key names a task that is not stored yet",
    "submit.after_insert": "the task is stored, no listener has the event and the caller has no reply",
    "dispatch.before_publish": "a task is about to be sent to the broker",
    "dispatch.after_publish": "the broker confirmed the message",
    "dispatch.before_mark": "the message of a new task is confirmed, its mark not written",
    "sweep.after_reserve": "the sweeper reserved a due task, its message is not sent",
    "retry.after_reserve": "a local timer reserved a task that is due again, its message is not sent",
    "limits.after_take": "permits of a rate limit are taken, no attempt has begun with them",
    "limits.after_hold": "a bucket is held, the outcome of the attempt that asked for it is not stored",
    "slots.after_take": "a slot of a concurrency limit is taken for a claim, nothing is claimed",
    "slots.before_release": "an attempt has ended, its slot is not given back",
    "slots.after_release": "a slot is given back, no waiting task is woken",
    "slots.after_announce": "the record says that tasks wait for a slot, they are not put off yet",
    "slots.after_promise": "a task that waits for a slot has a place in the line and is not due yet",
    "deliver.before_claim": "a worker read a message, nothing is written",
    "hand_over.after_write": "a message that waited for too long is left to the sweeper and not acknowledged",
    "claim.after_write": "the task is RUNNING, its code has not begun",
    "claim.postponed": "a task that this worker cannot run is put off, its message not acknowledged",
    "execute.before": "the heartbeat knows the attempt, its code has not begun",
    "execute.middle": "the code runs and its progress is written",
    "step.before_write": "a step of `context.once` is done, its outcome is not recorded",
    "step.after_write": "the outcome of a step is recorded, the code does not know it yet",
    "heartbeat.before_write": "a worker is about to renew its leases",
    "heartbeat.after_write": "the leases of a worker are renewed",
    "early_ack.before": "the consumer timeout is near, the message of a long task is not acknowledged",
    "early_ack.after": "the message of a task that still runs is acknowledged",
    "settle.before_write": "the code has ended, its outcome is not stored",
    "settle.after_write": "the outcome is stored, no listener has the event",
    "spawn.after_insert": "some planned sub-tasks are stored, the plan is not finished",
    "report.after_count": "sub-tasks are counted, the count is not written",
    "report.after_write": "a count is written into the parent, no listener has the event",
    "report.before_mark": "a count is written, the ends that it counted are not known to be reported",
    "wake.after_write": "a waiting task continues, no listener has the event",
    "signal.after_write": "a signal is stored, no listener has the event and the caller has no reply",
    "reopen.after_write": "a finished parent waits again, its sub-task is not replayed yet",
    "batch.after_announce": "the number of the next items is in the batch, the items are not stored",
    "batch.after_insert": "some items of a batch are stored, the upload continues",
    "seal.after_write": "the upload of a batch is complete, no listener has the event and the caller has no reply",
    "abandon.after_write": "a batch whose upload was not finished is cancelled, no listener has the event",
    "reopen_batch.after_write": "a batch waits again, none of its failed sub-tasks is replayed yet",
    "retry.after_replay": "some of the failed sub-tasks of a batch are replayed",
    "cascade.after_cancel": "some sub-tasks of a parent that does not wait are cancelled",
    "schedule.after_submit": "the task of a schedule is submitted, the schedule is still due",
    "settle.before_ack": "the outcome is stored and its event published, the message not acknowledged",
    "release.after_write": "a stopping worker handed an attempt back, no listener has the event",
    "reap.after_read": "expired leases are found, nothing is written",
    "reap.after_write": "a task is taken from a dead worker, no listener has the event",
    "cancel.after_write": "a cancel is stored, no listener has the event and the caller has no reply",
    "retry_now.after_write": "the next attempt of a task is due, no listener has the event and the caller has no reply",
    "replay.after_write": "a finished task is queued again, no listener has the event and the caller has no reply",
    "replays.after_take": "a handful of an action on many is taken, none of its tasks is done",
    "replays.after_one": "some tasks of a handful are done, the action has no outcomes yet",
    "replays.before_settle": "a handful is done, the action has no outcomes yet",
    "discard.after_write": "a dead letter is discarded, no listener has the event and the caller has no reply",
    "expire.after_write": "a deadline is enforced, no listener has the event",
    "queue_timeout.after_write": "a task that no worker began in time is ended, no listener has the event",
    "relay.after_reserve": "the relay reserved tasks with unpublished events, nothing is published",
    "relay.before_publish": "events are about to be published",
    "relay.after_confirm": "the broker confirmed events, the published mark is not written",
    "relay.after_mark": "the published marks are written",
    "collect.after_keep": "a dead letter is known to the store, its message not acknowledged",
    "submit.reply": "the store inserted tasks",
    "claim.reply": "the store made claims",
    "progress.reply": "the store wrote progress",
    "step.reply": "the store recorded the outcome of a step",
    "settle.reply": "the store wrote outcomes",
    "renew.reply": "the store renewed the leases of a worker",
    "reserve.reply": "the store reserved a due task",
    "mark.reply": "the store wrote dispatch, published or relay marks",
    "reap.reply": "the store took a task from a dead worker",
    "cancel.reply": "the store wrote a cancel",
    "replay.reply": "the store queued a finished task again",
    "expire.reply": "the store enforced a deadline",
    "postpone.reply": "the store put off a task that a worker cannot run",
    "record.reply": "the store wrote or deleted records",
    "keep.reply": "the store kept a dead letter's message",
    "dispatch.reply": "RabbitMQ took a task's message",
    "relay.reply": "RabbitMQ took a message with events",
}

_REPLY = ".reply"
_armed: dict[str, Action] = {}


class FailpointError(ConnectionError):
    """A test armed this point to fail."""


class _ReplyLost(FailpointError):  # noqa: N818 - what happened; the driver's error says it in its own words
    """A test armed this point to lose the reply."""


async def reached(name: str) -> None:
    """Take the action of a point, if it is armed; the code calls this when it reaches the point.

    Args:
        name: a name in `POINTS`, `<step>.<moment>`.

    Raises:
        FailpointError: if a test armed the point to raise.
    """
    if _armed and (action := _armed.get(name)) is not None:
        await action()


async def replied(names: Iterable[str], lost: Callable[[], Exception]) -> None:
    """Take the actions of reply points; the code calls this when the driver's call succeeded and its reply is here.

    Args:
        names: the reply points of the writes, one for each write of a group; only read while a point is armed.
        lost: makes the error that the driver raises when the connection breaks before the reply.

    Raises:
        Exception: `lost()`, if a test armed one of the points to drop.
        FailpointError: if a test armed one of the points to raise.
    """
    if _armed:
        try:
            for name in dict.fromkeys(names):
                await reached(name)
        except _ReplyLost as error:
            raise lost() from error


def arm(name: str, action: Action) -> None:
    """Run `action` each time the point is reached, until `disarm`.

    Raises:
        ValueError: if there is no such point.
    """
    if name not in POINTS:
        nearest = difflib.get_close_matches(name, POINTS, n=1, cutoff=0)
        raise ValueError(f"there is no failpoint {name!r}; the nearest is {nearest[0]!r}")
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Disarm one point, or all."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def arm_from(environment: Mapping[str, str]) -> None:
    """Arm the points that `TASKFRAMEWORK_FAILPOINTS` names.

    Raises:
        ValueError: for a point or an action that does not exist.
    """
    for entry in filter(None, environment.get("TASKFRAMEWORK_FAILPOINTS", "").split(",")):
        point, _, action = entry.strip().partition("=")
        name, _, passage = point.partition("@")
        arm(name, _on_passage(name, action, _parse(name, action), int(passage or 0)))


def _parse(name: str, action: str) -> Action:
    verb, _, argument = action.partition(":")
    if verb == "kill":
        return _kill
    if verb == "raise":
        return lambda: _raise(FailpointError(f"failpoint {name}"))
    if verb == "pause":
        seconds = float(argument)
        return lambda: _pause(name, seconds)
    if verb == "drop" and name.endswith(_REPLY):
        return lambda: _raise(_ReplyLost(f"failpoint {name}"))
    known = f"kill, raise, pause:SECONDS{' or drop' if name.endswith(_REPLY) else ''}"
    raise ValueError(f"failpoint {name}: unknown action {action!r}; use {known}")


def _on_passage(name: str, verb: str, action: Action, number: int) -> Action:
    passed = 0

    async def act() -> None:
        nonlocal passed
        passed += 1
        if number in (0, passed):
            logger.warning("failpoint %s: %s", name, verb)
            await action()

    return act


async def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _pause(name: str, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:  # also if the code was cancelled during the pause
        logger.warning("failpoint %s: goes on", name)


async def _raise(error: FailpointError) -> None:
    raise error
