"""What this process knows of the tasks it claimed, so that their ends need no reading back.

Only the holder of a claim writes a running task's progress and steps; what others may do to it shows in its revision,
its published mark or its times. An end that is guarded by these is therefore known by the rule alone, but for the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taskframework.model.marks import Mark, MarkPublished
from taskframework.model.task import Task
from taskframework.model.transitions import Complete, Fail, RecordStep, Release, ReportProgress, Transition

_ENDINGS = (Complete, Fail, Release)
_SETTLEMENTS = (*_ENDINGS, ReportProgress, RecordStep)
#: How many of the last endings are remembered: far more than can wait for a reply at once.
_ENDINGS_REMEMBERED = 20_000
#: As many as a process runs at once, and what it lost the lease of. The state of one more is read back.
_MOST_HELD = 1_000


class HeldTasks:
    """Running tasks under claims of this process, as they were read last, and which claims were asked to end."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._asked_to_end: dict[str, None] = {}

    def hold(self, tasks: Iterable[object]) -> None:
        """Take note of replies; what is no running task is passed over."""
        for task in tasks:
            if isinstance(task, Task) and task.lease is not None:
                self._tasks[task.task_id] = task
        while len(self._tasks) > _MOST_HELD:
            del self._tasks[next(iter(self._tasks))]

    def take(self, transitions: Sequence[Transition]) -> dict[str, Task]:
        """The states before these transitions, as far as they are known; from now on they are not."""
        taken = {asked.task_id: self._tasks.pop(asked.task_id, None) for asked in transitions}
        return {task_id: task for task_id, task in taken.items() if task is not None}

    def marked(self, marks: Iterable[Mark]) -> None:
        """Take note of marks that were written."""
        for mark in marks:
            if isinstance(mark, MarkPublished) and (task := self._tasks.get(mark.task_id)) is not None:
                self._tasks[mark.task_id] = mark.apply(task, task.updated_at) or task

    def asked_before(self, transitions: Sequence[Transition]) -> list[str]:
        """Which of these claims were asked to end before. A claim is known to one process alone, hence to this one."""
        settlements = [asked for asked in transitions if isinstance(asked, _SETTLEMENTS)]
        asked_before = [asked.fence.claim_id for asked in settlements if asked.fence.claim_id in self._asked_to_end]
        self._asked_to_end |= dict.fromkeys(
            asked.fence.claim_id for asked in settlements if isinstance(asked, _ENDINGS)
        )
        while len(self._asked_to_end) > _ENDINGS_REMEMBERED:
            del self._asked_to_end[next(iter(self._asked_to_end))]
        return asked_before
