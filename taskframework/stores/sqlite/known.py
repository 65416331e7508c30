"""Tasks as they were last read or written, so that an unchanged row need not be taken apart again.

Another process may write to the file at any time, so what is remembered counts only for exactly the text that is there.
"""

from __future__ import annotations

from collections import OrderedDict

import orjson

from taskframework.model.task import Task
from taskframework.stores.sqlite.rows import Stored, TaskRow, read_row

#: A few kilobytes each; a task that is being worked on is written again within moments.
_REMEMBERED = 5_000
#: Characters of the longest document that is remembered: a result alone may have a megabyte.
_LONGEST = 10_000


class KnownTasks:
    """The last tasks that were seen, by the text of their documents."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, tuple[str, Task]] = OrderedDict()

    def read(self, row: TaskRow, *, with_parameters: bool = True) -> Stored:
        """`read_row`, with less work for a row that is known.

        Raises:
            TaskUnreadableError: if the document is none this release can read.
        """
        text, task = self._tasks.get(row.task_id, (None, None))
        if task is None or text != row.document:
            return read_row(row, with_parameters=with_parameters)
        document = orjson.loads(row.document)
        # What belongs to a user is read anew: whoever got it before may have changed it in place.
        parameters = orjson.loads(row.parameters) if with_parameters else None
        fresh = task.evolve(parameters=parameters, progress=document["progress"], result=document["result"])
        return Stored(fresh, document, row.parameters)

    def keep(self, task: Task, text: str) -> None:
        """Remember what is in the file since the last commit."""
        self._tasks.pop(task.task_id, None)
        if not task.steps and len(text) <= _LONGEST:  # steps hold a user's values too, one level deeper
            self._tasks[task.task_id] = text, task.evolve(parameters=None, progress=None, result=None)
        if len(self._tasks) > _REMEMBERED:
            self._tasks.popitem(last=False)
