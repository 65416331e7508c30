"""`doctor`: the versions and servers in use, and what to do about each problem."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version

import typer
from rich.text import Text

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import API_VARIABLE, Apps, Config, Json
from taskframework.cli.output import facts, note, out, print_json, printable, run
from taskframework.clock import SystemClock
from taskframework.errors import (
    ConfigurationError,
    SubmissionError,
    TaskframeworkError,
    TaskUnreadableError,
    UnknownTaskTypeError,
)
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
from taskframework.schedules import require_zone
from taskframework.settings import LoadedSettings, Settings, redacted
from taskframework.settings.load import FILE_NAME, PROFILE_VARIABLE
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents
from taskframework.submission.schedules import ScheduleDefinition, parse_settings, settings_error
from taskframework.submission.types import TaskTypes, declared_types
from taskframework.tasks.registry import TaskRegistry
from taskframework.wiring.adapters import build_broker, build_buckets, build_store
from taskframework.wiring.extras import require_extras

#: How many undriven tasks are named at most; there should be none.
_MAX_NAMED = 20
#: How many waiting parents are counted again: with 100,000 sub-tasks each, that takes a few seconds.
_MAX_RECOUNTED_PARENTS = 100
_PACKAGES = ("aio-pika", "motor", "pymongo", "pydantic", "fastapi", "uvicorn", "uvloop")


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: the facts about it, and its problems, each with its remedy."""

    part: str
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()


def doctor(context: typer.Context, config: Config = None, app: Apps = None, as_json: Json = False) -> None:
    """Check versions, settings, program, servers, and what the store contains. Exit code 1 if something is wrong."""
    if api := os.environ.get(API_VARIABLE):
        note(
            f"doctor checks the store and the broker in the settings of this machine, not the API in {API_VARIABLE}. "
            f"To check that one: {redacted(api).rstrip('/')}/readyz, or run doctor on its machine."
        )
    findings = _examine(Invocation.of(context, config, app))
    problems = sum(len(finding.problems) for finding in findings)
    if as_json:
        print_json({"ok": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
        verdict = f"{pluralize(problems, 'problem')} found" if problems else "No problem found"
        out().print(Text(verdict, style="bold red" if problems else "bold green"))
    if problems:
        raise typer.Exit(1)


def _examine(invocation: Invocation) -> list[Finding]:
    findings = [_check_versions()]
    try:
        loaded = invocation.load()
    except TaskframeworkError as error:
        return [*findings, Finding("settings", problems=[str(error)])]
    findings.append(_check_settings(invocation, loaded))
    try:
        require_extras(loaded.settings)
    except TaskframeworkError as error:
        return [*findings, Finding("packages", problems=[str(error)])]
    program, settings, task_types = _check_program(invocation, loaded.settings)
    return [*findings, program, *run(_check_servers(settings, task_types))]


def _check_versions() -> Finding:
    found = {
        "taskframework": _version("taskframework"),
        "python": f"{platform.python_version()}, {platform.platform()}",
    }
    return Finding("versions", found | {name: _version(name) for name in _PACKAGES})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _check_settings(invocation: Invocation, loaded: LoadedSettings) -> Finding:
    file = str(invocation.config or "") or (FILE_NAME if os.path.exists(FILE_NAME) else "none")
    changed = {key: origin for key, origin in loaded.origins.items() if origin != "default"}
    found = {"file": file, "given by it or the environment": ", ".join(changed) or "nothing"}
    if profile := os.environ.get(PROFILE_VARIABLE):
        found["profile"] = profile
    try:
        parse_settings(loaded.settings.schedules.named)
    except ConfigurationError as error:
        return Finding("settings", found, [str(error)])
    return Finding(
        "settings", found, _wrong_schedules(loaded.settings, lambda definition: require_zone(definition.timezone))
    )


def _wrong_schedules(settings: Settings, check: Callable[[ScheduleDefinition], object]) -> list[str]:
    """The problems of schedules in the settings that a check refuses, as a worker refuses them at its start."""
    problems = []
    with contextlib.suppress(ConfigurationError):  # reported with the settings
        for name, definition in parse_settings(settings.schedules.named).items():
            try:
                check(definition)
            except SubmissionError as error:
                problems.append(str(settings_error(name, error)))
    return problems


def _check_program(invocation: Invocation, settings: Settings) -> tuple[Finding, Settings, Sequence[str]]:
    """The user's program; the settings in force, because a program may bring its own; and its task types."""
    module_names = ", ".join([*settings.app.modules, *invocation.apps])
    try:
        framework = invocation.framework()
    except TaskframeworkError as error:
        return Finding("program", {"modules": module_names}, [str(error)]), settings, ()
    types = ", ".join(framework.registry.task_types)
    found = {"modules": module_names or "none (give them with --app)", "task types": types or "none"}
    registry = framework.registry

    def accept(definition: ScheduleDefinition) -> None:
        if (registration := registry.get(definition.task_type)) is not None:
            registration.accept(definition.parameters)

    problems = _wrong_schedules(framework.settings, accept)
    return Finding("program", found, problems), framework.settings, registry.task_types


async def _check_servers(settings: Settings, task_types: Sequence[str]) -> list[Finding]:
    try:
        store = build_store(settings, SystemClock())
    except TaskframeworkError as error:  # such as a missing certificate file
        return [Finding("store", problems=[str(error)]), await _check_broker(settings, task_types)]
    found = await _check_store(store, settings)
    findings = [found, await _check_broker(settings, task_types)]
    if settings.rate_limiter.type == "redis":
        findings.append(await _check_rate_limits(store, settings))
    if (jwt_keys := settings.security.jwt_keys) is not None:
        findings.append(await _check_token_keys(jwt_keys))
    if not found.problems and "state" not in found.facts:
        findings[1:1] = await _check_store_contents(store, settings)
    return findings


async def _check_store(store: TaskStore, settings: Settings) -> Finding:
    target = {"url": redacted(settings.store.url)}
    try:
        report = await store.inspect()
    except TaskframeworkError as error:
        return Finding("store", target, [str(error)])
    return Finding("store", target | report.facts, report.problems)


async def _check_broker(settings: Settings, task_types: Sequence[str]) -> Finding:
    target = {"url": redacted(settings.broker.url)}
    if settings.broker.scheme != "embedded":
        target["delay strategy"] = settings.broker.delay
    try:
        broker = build_broker(settings, SystemClock())
        try:
            report = await broker.inspect(task_types)
        finally:
            await broker.close()
    except TaskframeworkError as error:
        return Finding("broker", target, [str(error)])
    return Finding("broker", target | report.facts, report.problems)


async def _check_rate_limits(store: TaskStore, settings: Settings) -> Finding:
    """Check whether the buckets in Redis can be reached."""
    limiter = settings.rate_limiter
    target = {"url": redacted(limiter.redis_url), "while it is away": limiter.on_unavailable}
    try:
        buckets = build_buckets(settings, store, SystemClock())
        try:
            await buckets.list_known(1)
        finally:
            await buckets.close()
    except TaskframeworkError as error:
        return Finding("rate limits", target, [str(error)])
    return Finding("rate limits", target)


async def _check_token_keys(place: str) -> Finding:
    """Check whether the keys of the issuer of tokens can be read, as the API reads them at its first token."""
    from taskframework.operations.token_keys import TokenKeys  # needs an extra

    found = {"keys": redacted(place)}
    try:
        keys = await TokenKeys.at(place).read()
    except TaskframeworkError as error:
        return Finding("tokens", found, [str(error)])
    return Finding("tokens", found | {"ids": ", ".join(str(key.id or "a key without an id") for key in keys)})


async def _check_store_contents(store: TaskStore, settings: Settings) -> list[Finding]:
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


def _print(finding: Finding) -> None:
    rows: list[tuple[str, str | Text]] = [(f"  {name}", value) for name, value in finding.facts.items()]
    # Other commands name `doctor` in the problem; here that would not help.
    problems = [problem.replace("; `taskframework doctor` tells more", "") for problem in finding.problems]
    rows += [("  problem", Text(printable(problem), style="red")) for problem in problems]
    console = out()
    console.print(Text(finding.part, style="bold red" if problems else "bold"))
    console.print(facts(rows))
    console.print()
