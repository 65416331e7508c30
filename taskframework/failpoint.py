"""Named points in the code where a test can make a process die, fail or wait.

Unarmed, a point is one look into an empty dict. Points are armed by `arm` inside a test or, for a process of its
own, by the environment: `TASKFRAMEWORK_FAILPOINTS="claim.after_write=kill"` (comma-separated; the actions are
`kill`, `raise`, and `pause:SECONDS`; `name@3=kill` fires on the third passage only).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping

Action = Callable[[], Awaitable[None]]

_armed: dict[str, Action] = {}


class FailpointError(ConnectionError):
    """A test armed this point to fail."""


async def reached(name: str) -> None:
    """Say that the code got here.

    Args:
        name: `<step>.<moment>`, for example `claim.after_write`.

    Raises:
        FailpointError: if a test armed the point to raise.
    """
    if _armed and (action := _armed.get(name)) is not None:
        await action()


def arm(name: str, action: Action) -> None:
    """Run `action` each time the point is reached, until `disarm`."""
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Disarm one point, or all."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def arm_from(environment: Mapping[str, str]) -> None:
    """Arm what `TASKFRAMEWORK_FAILPOINTS` names.

    Raises:
        ValueError: for an action that does not exist.
    """
    for entry in filter(None, environment.get("TASKFRAMEWORK_FAILPOINTS", "").split(",")):
        point, _, action = entry.strip().partition("=")
        name, _, passage = point.partition("@")
        arm(name, _on_passage(_parse(name, action), int(passage or 0)))


def _parse(name: str, action: str) -> Action:
    verb, _, argument = action.partition(":")
    if verb == "kill":
        return _kill
    if verb == "raise":
        return lambda: _raise(name)
    if verb == "pause":
        return lambda: asyncio.sleep(float(argument))
    raise ValueError(f"failpoint {name}: unknown action {action!r}; use kill, raise or pause:SECONDS")


def _on_passage(action: Action, number: int) -> Action:
    passed = 0

    async def act() -> None:
        nonlocal passed
        passed += 1
        if number in (0, passed):
            await action()

    return act


async def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _raise(name: str) -> None:
    raise FailpointError(f"failpoint {name}")
