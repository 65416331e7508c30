"""The moves by which a task gets a signal, and continues with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from taskframework.model import drivers
from taskframework.model.scope import Scope
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Signal
from taskframework.model.transitions import UngroupedWrite, with_event
from taskframework.model.values import Json
from taskframework.model.waiting import RECOUNT_AFTER, next_check_of, resumed

#: How many signals a task keeps. A signal that it has used is kept without payload, and makes room for a new signal.
#: A list that is full of unused signals may have one used signal more.
MAX_SIGNALS = 100


@dataclass(frozen=True, slots=True)
class SendSignal(UngroupedWrite):
    """Send a signal to a live task. A task that waits for it continues; any other task keeps it until it waits for it.

    A task with a full list takes only the signal that it waits for, which needs no room: it is used at once. A second
    signal with the same key changes nothing as long as the task remembers the key: when the list is full, the task
    forgets the oldest signal that it has used.
    """

    failpoint: ClassVar[str] = "signal.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    scope: Scope
    key: str
    name: str
    payload: Json = field(repr=False)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in LIVE or task.batch is not None or not self.scope.covers(task.user_id):
            return None
        kept = _without_oldest_used(task.signals)
        is_waited_for = (
            task.status is TaskStatus.WAITING and task.waits_for is not None and task.waits_for.name == self.name
        )
        if (len(kept) >= MAX_SIGNALS and not is_waited_for) or any(signal.key == self.key for signal in task.signals):
            return None
        signalled = task.evolve(signals=(*kept, Signal(self.key, self.name, now, self.payload)))
        if is_waited_for:
            return resumed_by_signal(signalled, now)
        return with_event(signalled, "signalled", now, data={"signal": self.name, "key": self.key})


@dataclass(frozen=True, slots=True)
class Wake(UngroupedWrite):
    """Check a waiting task: it continues if it has its signal already, or if the time for the signal is over. If not,
    it is checked again later.
    """

    failpoint: ClassVar[str] = "wake.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not drivers.CHECK.is_due(task, now):
            return None
        if task.waits_for is not None:
            if _unused_signal(task) is not None:
                return resumed_by_signal(task, now)
            if task.waits_for.until is not None and task.waits_for.until <= now:
                late = Signal("", task.waits_for.name, now, timed_out=True)
                data = {"signal": late.name, "timed_out": True}
                return resumed(task.evolve(woken_by=late), "signal", now, data)
        next_check = next_check_of(task, task.waits_for, now)
        if task.subtasks is not None and task.subtasks.is_awaited:
            next_check = min(next_check, now + RECOUNT_AFTER)
        return task.evolve(check_at=next_check, revision=task.revision + 1)


def resumed_by_signal(task: Task, now: datetime) -> Task:
    """The task after it continues with the signal that it waits for and already has.

    The signal stays in the list without its payload, so that its key is known.
    """
    kept = _unused_signal(task)
    assert kept is not None, "this is called only for a task that has its signal"
    used = replace(kept, payload=None, is_heard=True)
    signals = tuple(used if signal is kept else signal for signal in task.signals)
    return resumed(task.evolve(signals=signals, woken_by=kept), "signal", now, {"signal": kept.name, "key": kept.key})


def _without_oldest_used(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """The signals; if the list is full, without the oldest signal that was used."""
    if len(signals) < MAX_SIGNALS:
        return signals
    oldest = next((signal for signal in signals if signal.is_heard), None)
    return tuple(signal for signal in signals if signal is not oldest)


def has_its_signal(task: Task) -> bool:
    """Return whether a task waits for a signal that it has already."""
    return task.waits_for is not None and _unused_signal(task) is not None


def _unused_signal(task: Task) -> Signal | None:
    """The first signal in the list that the task waits for and has not used yet."""
    name = task.waits_for.name if task.waits_for else None
    return next((signal for signal in task.signals if signal.name == name and not signal.is_heard), None)
