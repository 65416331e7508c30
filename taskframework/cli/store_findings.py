"""What `doctor` finds in the store: work that nobody does, wrong counts, and what cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskframework.clock import SystemClock
from taskframework.errors import TaskframeworkError, TaskUnreadableError, UnknownTaskTypeError
from taskframework.model.drivers import missing_drivers
from taskframework.model.records import RecordUnreadableError
from taskframework.model.schedules import SCHEDULE, RunProblem
from taskframework.model.scope import EVERYONE
from taskframework.model.view import format_time
from taskframework.model.wording import pluralize
from taskframework.operations.overview import OverviewOperations
from taskframework.operations.parents import Miscounted, Overdue, find_miscounted, find_overdue
from taskframework.operations.unpublished import find_unpublished
from taskframework.operations.unreadable import find_unreadable_records, find_unreadable_tasks
from taskframework.settings import Settings
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents
from taskframework.submission.types import TaskTypes, declared_types
from taskframework.tasks.registry import TaskRegistry

#: How many undriven tasks are named at most; there should be none.
_MAX_NAMED = 20
#: How many waiting parents are counted again: with 100,000 sub-tasks each, that takes a few seconds.
_MAX_RECOUNTED_PARENTS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: the facts about it, and its problems, each with its remedy."""

    part: str
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()


async def find_in_store(store: TaskStore, settings: Settings) -> list[Finding]:
    """The problems in the contents of the store."""
    try:
        await store.open()
        try:
            return [
                await _check_tasks(store, settings.concurrency.limits),
                await _check_workers(store, is_embedded=settings.broker.scheme == "embedded"),
                await _check_parents(store),
                await _check_schedules(store),
                await _check_records(store),
            ]
        finally:
            await store.close()
    except TaskframeworkError as error:
        return [Finding("tasks", problems=[str(error)])]


async def _check_tasks(store: TaskStore, concurrency_limits: Mapping[str, int]) -> Finding:
    """The tasks by status, and limits for unknown types. Before a worker has started, no types are known."""
    counts = await store.count_by_status()
    undriven = [await _describe_undriven(store, task_id) for task_id in await store.undriven(_MAX_NAMED)]
    declared = sorted(declaration.task_type for declaration in await declared_types(store))
    found = {status.value: f"{count:,}" for status, count in counts.items() if count} or {"tasks": "none"}
    found["declared types"] = ", ".join(declared) or "none"
    problems = [_undriven_problem(undriven)] if undriven else []
    problems += [_unreadable_task_problem(unreadable)] if (unreadable := await find_unreadable_tasks(store)) else []
    unknown = sorted(concurrency_limits.keys() - set(declared)) if declared else []
    problems += [f"concurrency.limits: {UnknownTaskTypeError(name, declared)}" for name in unknown]
    return Finding("tasks", found, problems)


async def _check_workers(store: TaskStore, *, is_embedded: bool) -> Finding:
    """The workers, those that are lost, types whose tasks wait without a worker, and events that nobody takes."""

    async def not_counted() -> None: ...

    types = TaskTypes(TaskRegistry(), store)
    overview = await OverviewOperations(store, types, not_counted, is_embedded=is_embedded).read()
    found = {"live workers": str(overview.worker_count or "none")}
    problems = [problem.text for problem in overview.problems() if problem.code in ("no_worker", "worker_lost")]
    # Without a worker, events wait for that reason alone.
    unpublished = await find_unpublished(store, SystemClock(), _MAX_NAMED) if overview.worker_count else []
    return Finding("workers", found, [*problems, _unpublished_problem(unpublished)] if unpublished else problems)


def _unpublished_problem(task_ids: Sequence[str]) -> str:
    names = ", ".join(task_ids[:_MAX_NAMED])
    return (
        f"Workers run, but events of {pluralize(len(task_ids), 'task')} have waited for more than a minute: {names}. "
        "The broker is away, or it refuses messages: the log of the api and worker processes and their /readyz say why."
    )


async def _check_schedules(store: TaskStore) -> Finding:
    """The number of schedules, and those whose last run could not be submitted."""
    schedules = await read_all_contents(store, SCHEDULE)
    found = {
        "schedules": str(len(schedules) or "none"),
        "paused": str(sum(schedule.is_paused for schedule in schedules)),
    }
    problems = [_skipped_run_problem(schedule.name, schedule.problem) for schedule in schedules if schedule.problem]
    return Finding("schedules", found if schedules else {"schedules": "none"}, problems)


def _skipped_run_problem(name: str, problem: RunProblem) -> str:
    return f"The run of schedule {name} at {format_time(problem.at)} was skipped: {problem.message}"


async def _check_records(store: TaskStore) -> Finding:
    unreadable = await find_unreadable_records(store)
    shown = {} if unreadable else {"records": "readable"}
    return Finding("records", shown, [str(RecordUnreadableError(record_id)) for record_id in unreadable[:_MAX_NAMED]])


def _unreadable_task_problem(task_ids: Sequence[str]) -> str:
    names = ", ".join(task_ids[:_MAX_NAMED])
    return (
        f"{pluralize(len(task_ids), 'task')} that cannot be read, so that lists leave them out: {names}. "
        "A newer release wrote them, or they were changed by hand or are damaged: `taskframework tasks show ID` says "
        "which, and what to do."
    )


async def _describe_undriven(store: TaskStore, task_id: str) -> str:
    """Describe an undriven task, with its missing drivers."""
    try:
        task = await store.get(task_id, EVERYONE)
    except TaskUnreadableError:
        return f"{task_id} (cannot be read)"
    if task is None or not (missing := missing_drivers(task)):
        return f"{task_id} (continued since)"
    names = " and ".join(f"{driver.name} ({driver.field})" for driver in missing)
    return f"{task_id} ({task.status}, without {names})"


def _undriven_problem(undriven: Sequence[str]) -> str:
    number = f"{len(undriven)} or more" if len(undriven) == _MAX_NAMED else str(len(undriven))
    tasks = "task" if len(undriven) == 1 else "tasks"
    return (
        f"{number} unfinished {tasks} without a driver, so nothing will ever continue them: {', '.join(undriven)}. "
        "This is a bug in taskframework: save their documents for a bug report, then cancel them and submit them "
        "again. No worker can end a RUNNING one after a cancel: delete its document from the store instead."
    )


async def _check_parents(store: TaskStore) -> Finding:
    overdue_repairs = await find_overdue(store, _MAX_NAMED)
    miscounted_parents, looked_at = await find_miscounted(store, SystemClock(), _MAX_RECOUNTED_PARENTS)
    looked_at_text = (
        f"{looked_at}, those not counted for longest" if looked_at == _MAX_RECOUNTED_PARENTS else f"{looked_at}"
    )
    problems = [_overdue_problem(overdue_repairs)] if overdue_repairs else []
    problems += map(_miscounted_problem, miscounted_parents[:_MAX_NAMED])
    return Finding("parents", {"waiting tasks that were looked at": looked_at_text}, problems)


def _overdue_problem(overdue_repairs: Sequence[Overdue]) -> str:
    names = ", ".join(
        f"{repair.task_id} ({repair.driver.name} since {format_time(repair.since)})"
        for repair in overdue_repairs[:_MAX_NAMED]
    )
    return (
        f"{pluralize(len(overdue_repairs), 'repair')} of parents and batches more than a minute overdue: {names}. "
        "Every api and worker process makes repairs, on a SQLite file `dev`: start one. If one is running, its /readyz "
        "says which repair is late (parents, batches), and its log says why."
    )


def _miscounted_problem(found: Miscounted) -> str:
    parent, true_counts = found.parent, found.counts
    assert parent.subtasks is not None, "only a task with sub-tasks is counted"
    decided = ", which decides its policy" if found.is_decided else ""
    sentence = (
        f"{parent.task_id} waits, but its counts of sub-tasks are wrong: its document says {parent.subtasks.succeeded} "
        f"succeeded, {parent.subtasks.failed} failed and {parent.subtasks.cancelled} were cancelled; the true numbers "
        f"are {true_counts.succeeded}, {true_counts.failed} and {true_counts.cancelled}{decided}."
    )
    if found.missing:
        return (
            f"{sentence} {found.missing} of {parent.subtasks.planned} are not in the store, and no process will store "
            "them, so it would wait forever. Cancel it and submit it again."
        )
    return (
        f"{sentence} An api or worker process counts them again when another sub-task ends, and by "
        f"{format_time(parent.check_at)} in any case: check that one is running. If one is, its log says why it did "
        'not count ("are left to the repair").'
    )
