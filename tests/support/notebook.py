"""A task's steps in memory."""

from __future__ import annotations

from concurrent.futures import Future

from taskframework.model.task_fields import StepOutcome


class Notebook:
    """`Recorder` that keeps outcomes until told what became of them; unless `is_slow`, at once."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.is_open = True
        self.is_slow = is_slow
        self.kept: list[StepOutcome] = []
        self._recording: list[tuple[StepOutcome, Future[StepOutcome | None]]] = []

    def record(self, outcome: StepOutcome) -> Future[StepOutcome | None]:
        recorded: Future[StepOutcome | None] = Future()
        self._recording.append((outcome, recorded))
        if not self.is_open:
            self.lose()
        elif not self.is_slow:
            self.keep()
        return recorded

    @property
    def recording(self) -> list[str]:
        """The steps that are being written."""
        return [outcome.step for outcome, _ in self._recording]

    def keep(self) -> None:
        """What is being written gets through."""
        for outcome, recorded in self._taken():
            self.kept.append(outcome)
            recorded.set_result(outcome)

    def lose(self) -> None:
        """The lease is lost."""
        self.is_open = False
        for _, recorded in self._taken():
            recorded.set_result(None)

    def refuse(self, error: Exception) -> None:
        """The store refuses what is being written."""
        for _, recorded in self._taken():
            recorded.set_exception(error)

    def _taken(self) -> list[tuple[StepOutcome, Future[StepOutcome | None]]]:
        taken, self._recording = self._recording, []
        return taken
