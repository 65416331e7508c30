"""A task with the sub-tasks below it, as a tree for people."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from taskframework.cli.render import counts_text, progress_text, status_text
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.operations.tasks import TaskOperations

#: How many sub-tasks of one task have a line each; all others are only counted.
_MOST = 8
_LEVELS = 3
#: The statuses that a watching person wants to see first.
_SHOWN = (TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.RETRYING, TaskStatus.FAILED, TaskStatus.DEAD_LETTER)


def described(task: Task) -> Text:
    """The state of a task, on one line."""
    line = status_text(task.status)
    if task.attempts > 1:
        line.append(f" · attempt {task.attempts} of {task.max_attempts}", style="default")
    if task.progress is not None:
        line.append(" · ", style="default").append(progress_text(task.progress))
    if task.status is TaskStatus.WAITING and task.waits_for is not None:
        line.append(f" · for the signal {task.waits_for.name}", style="default")
    if task.subtasks is not None:
        line.append(f" · {counts_text(task.subtasks)}", style="default")
    return line


async def task_tree(operations: TaskOperations, task: Task) -> Tree:
    """The task and the most important sub-tasks of its newest round, some levels deep."""
    tree = Tree(described(task), guide_style="dim")
    await _grow(tree, operations, task, _LEVELS)
    return tree


async def _grow(tree: Tree, operations: TaskOperations, task: Task, levels: int) -> None:
    if task.subtasks is None or levels == 0:
        return
    shown: list[Task] = []
    for status in _SHOWN:
        if len(shown) < _MOST:
            left = _MOST - len(shown)
            shown += (await operations.subtasks(task.task_id, EVERYONE, limit=left, status=status)).items
    for subtask in shown:
        slot = subtask.parent.slot if subtask.parent else 0
        line = Text(f"{slot} {subtask.task_type} ", style="dim").append_text(described(subtask))
        await _grow(tree.add(line), operations, subtask, levels - 1)
