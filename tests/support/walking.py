"""Walking through a page as its reader does: saving, typing, looking, in one folder and one shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from taskframework import load_settings
from taskframework.api.views import TaskView
from taskframework.brokers.base import ExternalMessage
from taskframework.events.external import SINGLE, read_events
from tests.support.command import Started, start_command, start_program
from tests.support.pages import Kind, Step, file_of
from tests.support.process import ServerFailed, wait_until

#: For one command on a crowded machine; pip takes longest.
_SECONDS = 180
_ID = r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
#: What stands in commands, as the pages say, for the id that was printed last: of anything, of a batch, of a worker.
_PLACEHOLDERS = {
    "TASK_ID": re.compile(_ID),
    "BATCH_ID": re.compile(rf'batch(?:_id":"| ){_ID}'),
    "WORKER_ID": re.compile(r"^(\S+:\d+:[0-9a-f]{6})\b", re.MULTILINE),
}
#: What a command prints that goes on, as soon as the reader may go on too; the last three are other systems' workers.
_READY = re.compile(
    r'"event": ?"ready"|\b[Ll]istening\b|[Ss]tartup complete|^(?:event|data|:)'
    r"|\w@\S+ ready\.|ready for action|Starting worker for",
    re.MULTILINE,
)
#: Not the traceback of a task's code, which is a part of a log line. Other systems' workers print it as it is.
_CRASH = re.compile(r"^Traceback", re.MULTILINE)
_OTHERS = ("arq", "celery", "dramatiq", "taskiq")
#: What a shell knows is kept from one command to the next: variables, and with them where it is.
_BEFORE, _AFTER = "set -a\n", '\ncode=$?; env -0 > "$STATE"; exit $code\n'
#: A command of ours in which nothing means anything to a shell: words, quoted or not, and a comment.
_PLAIN = re.compile(r"""taskframework(?:\s+(?:'[^']*'|"[^"$`\\]*"|[\w@%+=:,./-])+)*\s*(?:\s\#.*)?""")


class WalkFailed(AssertionError):  # noqa: N818 - as its neighbours in process.py
    """A step does not go as the page says."""


class Walk:
    """One reader with one page."""

    def __init__(
        self,
        page: Path,
        folder: Path,
        environment: Mapping[str, str],
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        *,
        forks: bool = False,
    ) -> None:
        """Begin.

        Args:
            page: what is read.
            folder: where the reader works; what is there was there before.
            environment: of every command, whole.
            elsewhere: addresses of the page, and where that is in this test.
            forks: our commands are forked from a process that has read the code, where no shell is needed for them.
        """
        self._page = page
        self._folder = folder
        self._state = folder.parent / f"{folder.name}.state"
        self._environment = {**environment, "STATE": str(self._state), "PWD": str(folder)}
        self._elsewhere = elsewhere
        self._forks = forks
        self._last_ids: dict[str, str] = {}
        self._going: list[tuple[Step, Started]] = []

    def take(self, step: Step) -> None:
        """Do what the page says.

        Raises:
            WalkFailed: if it does not come out as the page says.
        """
        try:
            self._take(step)
        except Exception as error:
            raise WalkFailed(f"line {step.line}: {step.text.strip()}\n{error}") from error

    def _take(self, step: Step) -> None:
        match step.kind:
            case Kind.SAVE:
                self._save(step.name, self._here(step.text))
            case Kind.COPY:
                self._save(step.name, file_of(self._page.parent / step.text, step.name))
            case Kind.PROGRAM:
                program = f"line_{step.line}.py"
                self._save(program, self._here(step.text))
                self._type(replace(step, text=f"python {program}"))
            case Kind.TYPE if step.goes_on:
                self._start(step)
            case Kind.TYPE:
                output = self._type(step)
                if not _shows(step.shown, output):
                    raise WalkFailed(f"it printed:\n{output}")
            case Kind.READ_JSON:
                _check_json(step.text)
            case Kind.STOP:
                self.stop(step.name)

    def stop(self, only: str = "") -> None:
        """Press Ctrl-C wherever something goes on, after it has shown what the page shows of it.

        Args:
            only: stop what has this in its command, and leave the rest.

        Raises:
            WalkFailed: if it did not, or had ended already, or printed a traceback; if nothing has that in its command.
        """
        stopping = [going for going in self._going if only in going[0].text]
        if only and not stopping:
            raise WalkFailed(f"no {only} goes on")
        for going in reversed(stopping):  # who listens, before whom it listens to
            step, started = going
            self._wait(started, lambda: _shows(step.shown, _said(started)), f"it shows {step.shown}")  # noqa: B023
            crashed = not step.text.startswith(_OTHERS) and _CRASH.search(_said(started))
            if not started.is_alive or crashed:
                raise WalkFailed(f"{step.text} did not go on:\n{_said(started)}")
            os.killpg(started.pid, signal.SIGINT)  # as a terminal does
            # Where Ctrl-C and the signal of its parent come together, a worker of gunicorn with threads may hang;
            # the parent ends it after half a minute.
            started.wait(timeout=_SECONDS)
            started.kill()  # closes its pipes
            self._going.remove(going)

    def close(self) -> None:
        """Leave nothing behind."""
        for _, started in self._going:
            started.kill()

    def _save(self, name: str, text: str) -> None:
        file = self._folder / name
        file.write_text(text)
        if name == "application.yml":
            load_settings(file, environ={})

    def _type(self, step: Step) -> str:
        """Run a command to its end and return what it printed."""
        started = self._started(step, _AFTER)
        try:
            code = started.wait(timeout=_SECONDS)
        finally:
            started.kill()
        if self._state.exists():
            known = self._state.read_text().removesuffix("\0").split("\0")
            self._environment = dict(variable.split("=", 1) for variable in known)
        if code != step.exit_code:
            raise WalkFailed(f"exit code {code}, not {step.exit_code}\n{_said(started)}")
        for placeholder, pattern in _PLACEHOLDERS.items():
            if ids := pattern.findall(_said(started)):
                self._last_ids[placeholder] = ids[-1]
        return _said(started)

    def _start(self, step: Step) -> None:
        """Begin what goes on in a terminal of its own, and wait until it serves or listens."""
        started = self._started(step)
        self._going.append((step, started))
        self._wait(started, lambda: _READY.search(_said(started)) is not None, "it serves or listens")

    def _started(self, step: Step, after: str = "") -> Started:
        text, folder = self._here(step.text), Path(self._environment["PWD"])
        if self._forks and _PLAIN.fullmatch(text.strip()):
            return start_command(shlex.split(text, comments=True)[1:], folder, self._environment)
        return start_program(["bash", "-c", f"{_BEFORE}{text}{after}"], folder, self._environment)

    @staticmethod
    def _wait(started: Started, true: Callable[[], bool], what: str) -> None:
        try:
            wait_until(true, what, timeout=_SECONDS, alive=lambda: started.is_alive)
        except ServerFailed as failure:
            raise WalkFailed(f"{failure}\n{_said(started)}") from None

    def _here(self, text: str) -> str:
        for there, here in {**self._elsewhere, **self._last_ids}.items():
            text = text.replace(there, here)
        return text


def _said(started: Started) -> str:
    return "".join([*started.out, *started.err])


def _shows(shown: Sequence[str], output: str) -> bool:
    """Whether the output has these lines, in this order; others may be between them."""
    return re.search(r"[\s\S]*?".join(map(_pattern, shown)), output) is not None


def _pattern(line: str) -> str:
    parts = (r"\s+".join(map(re.escape, part.split())) for part in line.split("…"))
    return ".*?".join(parts)


def _check_json(text: str) -> None:
    """An event as the subscriber reads it, or a task as the HTTP interface shows it."""
    example = json.loads(text)
    if "specversion" not in example:
        TaskView.model_validate(example)
        return
    [event] = read_events(ExternalMessage(text.encode(), SINGLE, {}))
    if unknown := event.data.keys() - TaskView.model_fields.keys():
        raise WalkFailed(f"a task has no {', '.join(sorted(unknown))}")
