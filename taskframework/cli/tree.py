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
_MAX_SHOWN_SUBTASKS = 8
_MAX_LEVELS = 3
#: The statuses that a watching person wants to see first.
_SHOWN_STATUSES = (
    TaskStatus.RUNNING,
    TaskStatus.WAITING,
    TaskStatus.RETRYING,
    TaskStatus.FAILED,
    TaskStatus.DEAD_LETTER,
)


def describe_task(task: Task) -> Text:
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
    tree = Tree(describe_task(task), guide_style="dim")
    await _add_subtasks(tree, operations, task, _MAX_LEVELS)
    return tree


async def _add_subtasks(tree: Tree, operations: TaskOperations, task: Task, levels: int) -> None:
    if task.subtasks is None or levels == 0:
        return
    shown: list[Task] = []
    for status in _SHOWN_STATUSES:
        if len(shown) < _MAX_SHOWN_SUBTASKS:
            free_lines = _MAX_SHOWN_SUBTASKS - len(shown)
            shown += (await operations.subtasks(task.task_id, EVERYONE, limit=free_lines, status=status)).items
    for subtask in shown:
        slot = subtask.parent.slot if subtask.parent else 0
        line = Text(f"{slot} {subtask.task_type} ", style="dim").append_text(describe_task(subtask))
        await _add_subtasks(tree.add(line), operations, subtask, levels - 1)
