"""`queues`: the wait for running tasks of a type that was paused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskframework.cli.queues import _may_be_running
from taskframework.errors import ApiUnavailableError, StoreUnavailableError, UnknownTaskTypeError


class FakeFramework:
    """Answers each question about a queue with the next answer."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.services = SimpleNamespace(queues=self)

    async def get(self, _: str) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(is_running=answer)


async def test_the_wait_goes_on_while_nobody_can_tell(capsys: pytest.CaptureFixture[str]) -> None:
    away = StoreUnavailableError("MongoDB did not answer."), ApiUnavailableError("No answer.", status=None)
    framework = cast(Any, FakeFramework(True, *away, False))
    assert [await _may_be_running(framework, "t") for _ in range(4)] == [True, True, True, False]
    told = capsys.readouterr().err.splitlines()
    assert told == [f"{error.message} Still waiting; the pause is in force." for error in away]


async def test_a_type_that_is_gone_ends_the_wait() -> None:
    with pytest.raises(UnknownTaskTypeError):
        await _may_be_running(cast(Any, FakeFramework(UnknownTaskTypeError("t", []))), "t")
