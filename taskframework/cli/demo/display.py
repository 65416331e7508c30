"""What the demo shows while it runs, and the table at its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskframework.cli.demo.state import DemoState, FileOutcome
from taskframework.cli.output import counted, printable, table
from taskframework.cli.render import status_text

_MOST_RUNNING = 6
_MOST_ROWS = 200
_BAR = 30


class DemoDisplay:
    """Bars on a terminal, a line for each file elsewhere."""

    def __init__(self, console: Console, files: Iterable[str]) -> None:
        self.state = DemoState(files, self._tell)
        self._console = console
        self._started = time.monotonic()
        self._is_shown = False

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show while the context lasts; what ends after it, because of Ctrl-C, is not news any more."""
        live = Live(console=self._console, get_renderable=self._bars, transient=True, refresh_per_second=10)
        self._is_shown = True
        try:
            with live if self._console.is_terminal else nullcontext():
                yield
        finally:
            self._is_shown = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def _tell(self, outcome: FileOutcome) -> None:
        if self._console.is_terminal or not self._is_shown:
            return
        total = self.state.total
        number = f"[{len(self.state.outcomes):>{len(str(total))}}/{total}]"
        said = counted(outcome.digest.words, "word") if outcome.digest else f"{outcome.status}: {outcome.reason}"
        self._console.print(Text(printable(f"{number} {outcome.file}: {said}")), soft_wrap=True)

    def _bars(self) -> Group:
        files = Table.grid(padding=(0, 2, 0, 0))
        for running in list(self.state.running.values())[:_MOST_RUNNING]:
            bar = ProgressBar(100, running.percent or 0, width=_BAR // 2, pulse=running.percent is None)
            files.add_row("", bar, Text(printable(running.file), overflow="ellipsis", no_wrap=True), running.step)
        return Group(self._overall(), files)

    def _overall(self) -> Table:
        done, total, failed = len(self.state.outcomes), self.state.total, self.state.failed
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(
            "Digesting",
            ProgressBar(total, done, width=_BAR, complete_style="cyan", finished_style="green"),
            f"{done:,} of {total:,}",
            Text(f"{failed:,} failed" if failed else "", style="red"),
            Text(f"{self.seconds:.1f} s", style="dim"),
        )
        return grid


def outcome_table(outcomes: Sequence[FileOutcome]) -> tuple[Table, int]:
    """The files below each other, one line each; and how many digested ones were left out because there are many."""
    left_out = 0
    if len(outcomes) > _MOST_ROWS:
        failed = sum(outcome.digest is None for outcome in outcomes)
        room = max(0, _MOST_ROWS - failed)
        digested = [outcome for outcome in outcomes if outcome.digest is not None]
        left_out = len(digested) - room
        hidden = {outcome.file for outcome in digested[room:]}
        outcomes = [outcome for outcome in outcomes if outcome.file not in hidden]
    made = table("File", "Status", "Words", "Sentences", "Key words or reason")
    made.columns[0].overflow = "fold"
    made.columns[1].no_wrap = True
    made.columns[2].justify = made.columns[3].justify = "right"
    for outcome in outcomes:
        made.add_row(Text(printable(outcome.file)), status_text(outcome.status), *_cells(outcome))
    return made, left_out


def _cells(outcome: FileOutcome) -> Iterator[str | Text]:
    digest = outcome.digest
    if digest is None:
        yield from ("", "", Text(printable(outcome.reason), style="red"))
        return
    words = ", ".join(key_word.word for key_word in digest.key_words)
    yield from (f"{digest.words:,}", f"{digest.sentences:,}", Text(printable(words), overflow="ellipsis", no_wrap=True))
