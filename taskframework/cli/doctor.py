"""`doctor`: the versions and servers in use, and what to do about each problem."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import typer
from rich.text import Text

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import API_VARIABLE, Apps, Config, Json
from taskframework.cli.output import facts, note, out, print_json, printable, run
from taskframework.cli.store_findings import Finding, find_in_store
from taskframework.clock import SystemClock
from taskframework.errors import ConfigurationError, SubmissionError, TaskframeworkError
from taskframework.model.wording import pluralize
from taskframework.schedules import require_zone
from taskframework.settings import LoadedSettings, Settings, redacted
from taskframework.settings.load import FILE_NAME, PROFILE_VARIABLE
from taskframework.stores.base import TaskStore
from taskframework.submission.schedules import ScheduleDefinition, parse_settings, settings_error
from taskframework.wiring.adapters import build_broker, build_buckets, build_store
from taskframework.wiring.extras import require_extras

_PACKAGES = ("aio-pika", "motor", "pymongo", "pydantic", "fastapi", "uvicorn", "uvloop")


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
        findings[1:1] = await find_in_store(store, settings)
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


def _print(finding: Finding) -> None:
    rows: list[tuple[str, str | Text]] = [(f"  {name}", value) for name, value in finding.facts.items()]
    # Other commands name `doctor` in the problem; here that would not help.
    problems = [problem.replace("; `taskframework doctor` tells more", "") for problem in finding.problems]
    rows += [("  problem", Text(printable(problem), style="red")) for problem in problems]
    console = out()
    console.print(Text(finding.part, style="bold red" if problems else "bold"))
    console.print(facts(rows))
    console.print()
