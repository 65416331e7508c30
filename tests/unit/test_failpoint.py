"""The failpoints: what arming does, what is refused, and that the table and the code name the same points."""

from __future__ import annotations

import ast
import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from taskframework import failpoint
from taskframework.failpoint import POINTS, FailpointError
from tests.architecture.sources import PACKAGE, modules

_NAME = re.compile(r"[a-z_]+\.(before|after|middle|postponed|reply)(_[a-z]+)?")


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


def arm(text: str) -> None:
    failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": text})


class DriverError(Exception):
    """What a driver would raise."""


async def test_an_unarmed_point_does_nothing() -> None:
    def names() -> Iterator[str]:
        raise AssertionError("nobody looks at the names")
        yield

    arm("")
    await failpoint.reached("claim.after_write")
    await failpoint.replied(names(), DriverError)


async def test_an_armed_point_acts_until_it_is_disarmed(caplog: pytest.LogCaptureFixture) -> None:
    arm("claim.after_write=raise, settle.before_ack=raise")
    with pytest.raises(FailpointError, match=r"claim\.after_write"):
        await failpoint.reached("claim.after_write")
    assert caplog.messages == ["failpoint claim.after_write: raise"]
    await failpoint.reached("execute.before")
    failpoint.disarm("claim.after_write")
    await failpoint.reached("claim.after_write")
    with pytest.raises(FailpointError):
        await failpoint.reached("settle.before_ack")


async def test_a_numbered_point_acts_on_that_passage_only(caplog: pytest.LogCaptureFixture) -> None:
    arm("claim.after_write@2=raise")
    await failpoint.reached("claim.after_write")
    assert caplog.messages == []
    with pytest.raises(FailpointError):
        await failpoint.reached("claim.after_write")
    await failpoint.reached("claim.after_write")


async def test_a_pause_lets_everything_else_go_on() -> None:
    arm("execute.before=pause:30")
    passing = asyncio.create_task(failpoint.reached("execute.before"))
    done, _ = await asyncio.wait([passing], timeout=0.05)
    assert not done
    passing.cancel()


async def test_a_dropped_reply_is_the_drivers_error() -> None:
    arm("claim.reply@2=drop")
    await failpoint.replied(["settle.reply", "claim.reply", "claim.reply"], DriverError)  # a group passes once
    with pytest.raises(DriverError):
        await failpoint.replied(iter(["settle.reply", "claim.reply"]), DriverError)
    await failpoint.replied(["claim.reply"], DriverError)


def test_a_killed_process_dies_at_once_and_says_where() -> None:
    program = (
        "import asyncio, os; from taskframework import failpoint; failpoint.arm_from(os.environ); "
        "asyncio.run(failpoint.reached('claim.after_write')); print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"TASKFRAMEWORK_FAILPOINTS": "claim.after_write=kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert "failpoint claim.after_write: kill" in done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("claim.after_wrote=kill", r"no failpoint 'claim\.after_wrote'; the nearest is 'claim\.after_write'"),
        ("nonsense=kill", r"no failpoint 'nonsense'; the nearest is '\w+\.\w+'"),
        ("claim.after_write=die", r"unknown action 'die'; use kill, raise, pause:SECONDS$"),
        ("claim.after_write=drop", r"unknown action 'drop'; use kill, raise, pause:SECONDS$"),
        ("claim.reply=lose", r"use kill, raise, pause:SECONDS or drop$"),
        ("claim.after_write", "unknown action ''"),
        ("claim.after_write=pause", "could not convert"),
        ("claim.after_write@x=kill", "invalid literal"),
    ],
)
def test_a_failpoint_that_cannot_be_armed_is_refused_with_the_next_step(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        arm(text)


def test_every_point_is_reached_in_the_code_and_every_reached_point_is_in_the_table() -> None:
    named = {text for text in _texts() if _NAME.fullmatch(text)}
    assert POINTS.keys() - named == set(), "points that the code never reaches"
    assert _passed() - POINTS.keys() == set(), "points that are not in the table"
    assert named - POINTS.keys() == set(), "names of points, such as in a table of replies, that do not exist"


def test_every_point_has_a_name_of_the_form_and_a_meaning() -> None:
    assert [name for name, meaning in POINTS.items() if not _NAME.fullmatch(name) or not meaning] == []


def _texts() -> Iterator[str]:
    """Every text in the code, except the table itself."""
    for path in modules():
        if path != PACKAGE / "failpoint.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def _passed() -> set[str]:
    """Every text in a call of `reached` or `replied`."""
    calls = (
        node
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("failpoint.reached", "failpoint.replied")
    )
    arguments = (inner for call in calls for argument in call.args for inner in ast.walk(argument))
    return {node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)}
