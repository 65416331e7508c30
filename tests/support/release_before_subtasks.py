"""A worker as of the release before sub-tasks: `python -m tests.support.release_before_subtasks worker --app ...`.

It is today's code without what that release did not have: it claims no task above schema version 1, hears nothing of
parents and batches, repairs none of them, and tells of the end of a sub-task without any count. What it consumed is
part of it: the types of its application, as they were without sub-tasks.
"""

from __future__ import annotations

from collections.abc import Callable

from taskframework.model import task as model

model.SCHEMA_VERSION = 1  # before anything else reads it

from taskframework.aggregation.parent_work import ParentWork  # noqa: E402
from taskframework.aggregation.reporter import SubtaskReporter  # noqa: E402
from taskframework.cli.main import main  # noqa: E402
from taskframework.model.task import Task  # noqa: E402
from taskframework.recovery.batches import BatchRepair  # noqa: E402
from taskframework.recovery.parents import ParentRepair  # noqa: E402
from tests.chaos import tasks  # noqa: E402


class AsyncWork(tasks.AsyncWork):
    """What its application had."""


def _report_at_once(_: SubtaskReporter, __: Task, on_done: Callable[[], None] | None = None) -> None:
    if on_done is not None:
        on_done()


def _ignore(*_: object) -> None:
    """It does not know that there is something to do."""


async def _find_nothing(_: object) -> bool:
    return False


#: What came with sub-tasks, and what there was instead.
_WITHOUT = (
    (SubtaskReporter, "handle_task", _report_at_once),
    (SubtaskReporter, "request_count", _ignore),
    (ParentWork, "start", _ignore),
    (ParentRepair, "run_once", _find_nothing),
    (BatchRepair, "run_once", _find_nothing),
)

if __name__ == "__main__":
    for owner, name, instead in _WITHOUT:
        getattr(owner, name)  # a name that is no longer there would leave today's code in place
        setattr(owner, name, instead)
    main()
