"""Runs the demo's tasks to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from taskframework.cli.demo.display import DemoDisplay
from taskframework.cli.demo.executable import DigestDocument
from taskframework.cli.demo.state import DemoState, FileOutcome
from taskframework.errors import ValueNotStorableError
from taskframework.model.events import TaskEvent
from taskframework.runtime import TaskFramework
from taskframework.submission.service import SubmitRequest

#: Tasks submitted together; the first ones are done before the last ones are stored.
_TOGETHER = 500
#: Seconds without an end after which we look whether the store still answers.
_PATIENCE = 5.0


async def digest_all(
    framework: TaskFramework, files: Sequence[Path], display: DemoDisplay
) -> tuple[list[FileOutcome], float]:
    """Submit a task for each file and wait for them all.

    Returns:
        What became of each file, in the order given, and how many seconds it took.

    Raises:
        StoreError: if the store fails.
    """
    state = display.state
    names = [str(file) for file in files]
    async with framework.running(worker=True):
        framework.desk.bus.listen(TaskEvent, state.hear, name="demo")
        with display.shown():
            for start in range(0, len(names), _TOGETHER):
                await _submit(framework, names[start : start + _TOGETHER], state)
            await _until_finished(framework, state)
    return [state.outcomes[name] for name in names], display.seconds


async def _submit(framework: TaskFramework, names: Sequence[str], state: DemoState) -> None:
    requests = [SubmitRequest(task_type=DigestDocument.task_type, parameters={"path": name}) for name in names]
    for name, outcome in zip(names, await framework.submit_many(requests), strict=True):
        if isinstance(outcome, ValueNotStorableError):
            state.refuse(name, "its name is not valid text")
        elif isinstance(outcome, Exception):
            raise outcome


async def _until_finished(framework: TaskFramework, state: DemoState) -> None:
    while not state.finished.is_set():
        try:
            async with asyncio.timeout(_PATIENCE):
                await state.finished.wait()
        except TimeoutError:
            await framework.desk.store.ping()
