"""Prints batches for people, and follows one to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from rich.text import Text

from taskframework.cli.output import err, facts, note, out
from taskframework.cli.render import error_text, print_rows, result_text, status_text
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.batches import purpose_of_retry
from taskframework.model.message import rfc3339
from taskframework.model.status import TaskStatus
from taskframework.model.wording import duration_text
from taskframework.operations.batch_handle import BatchHandle

#: Seconds between two counts of a watched batch.
_POLL_SECONDS = 0.5


async def follow(handle: BatchHandle) -> BatchStatus:
    """Wait until a batch is final, with a live line on a terminal.

    Raises:
        TaskNotFoundError: if there is no such batch.
    """
    status = await handle.status()
    console = err()
    line = console.status(_progress(status)) if console.is_terminal else nullcontext()
    with line as shown:
        while not status.status.is_final:
            await asyncio.sleep(_POLL_SECONDS)
            status = await handle.status()
            if shown is not None:
                shown.update(_progress(status))
    return status


def print_batches(batches: Iterable[BatchStatus]) -> None:
    """Print batches below each other."""
    rows = []
    for status in batches:
        batch = status.batch
        identity = Text(batch.task_id), Text(batch.task_type), status_text(batch.status)
        rows.append(
            (*identity, Text(_done_text(status)), Text(f"{status.ended.failed:,}"), Text(rfc3339(batch.created_at)))
        )
    print_rows(("Batch", "Type", "Status", "Done", "Failed", "Submitted"), rows)


def print_batch(status: BatchStatus) -> None:
    """Print everything about one batch."""
    out().print(facts(_facts(status)))


def print_results(results: Sequence[BatchResult]) -> None:
    """Print results below each other."""
    rows = []
    for result in results:
        text = result_text(result.result, result.error)
        rows.append((Text(str(result.index)), status_text(result.status), Text(text)))
    print_rows(("Item", "Status", "Result"), rows)


def print_end(status: BatchStatus) -> None:
    """Print how a batch ended, if it has ended, and what a person may do now."""
    batch, batch_id = status.batch, status.batch_id
    if not status.status.is_final:
        note(f"To follow it: taskframework batch watch {batch_id}")
        return
    line = status_text(status.status)
    if batch.finished_at:
        line.append(f" after {duration_text(batch.finished_at - batch.created_at)}", style="default")
    out().print(line.append(f", {_done_text(status)}{_unsuccessful_text(status)}", style="default"), soft_wrap=True)
    if batch.error is not None:
        out().print(Text(error_text(batch.error), style="red"), soft_wrap=True)
    note(f"Results: taskframework batch results {batch_id}")
    if status.is_sealed and status.status is not TaskStatus.COMPLETED:
        note(f"To {purpose_of_retry(batch)}: taskframework batch retry-failed {batch_id}")


def _facts(status: BatchStatus) -> Iterator[tuple[str, str | Text]]:
    batch = status.batch
    yield "Batch", Text(batch.task_id, style="bold")
    yield "Type", batch.task_type
    yield "Status", status_text(batch.status)
    yield "Upload", _upload_text(status)
    yield "Done", f"{_done_text(status)}{_unsuccessful_text(status)}"
    for name, number in (status.counts or {}).items():
        yield name, f"{number:,}"
    if status.rate:
        yield "Rate", f"{status.rate:g} per second"
    if status.estimated_end:
        yield "Time left", duration_text(status.estimated_end - status.at)
    yield "Submitted", rfc3339(batch.created_at)
    if batch.batch and batch.batch.first_result_at:
        first = batch.batch.first_result_at
        yield "First result", f"{rfc3339(first)}, after {duration_text(first - batch.created_at)}"
    if batch.finished_at:
        yield "Finished", rfc3339(batch.finished_at)
    yield "User", batch.user_id


def _upload_text(status: BatchStatus) -> str:
    if status.is_sealed:
        return "complete"
    return "not complete when the batch ended" if status.status.is_final else "in progress"


def _progress(status: BatchStatus) -> Text:
    line = status_text(status.status).append(f" · {_done_text(status)}{_unsuccessful_text(status)}", style="default")
    if status.rate:
        line.append(f" · {status.rate:,.1f} per second", style="default")
    if status.estimated_end:
        line.append(f" · {duration_text(status.estimated_end - status.at)} left", style="default")
    return line


def _done_text(status: BatchStatus) -> str:
    """`40 of 100 (40 %)`, or `40 of 100 so far` while the upload goes on."""
    so_far = "" if status.status.is_final else " so far"
    percent = so_far if status.percent is None else f" ({status.percent:g} %)"
    return f"{min(status.ended.done, status.total):,} of {status.total:,}{percent}"


def _unsuccessful_text(status: BatchStatus) -> str:
    """The numbers of items that did not succeed."""
    ended = status.ended
    failed = f", {ended.failed:,} failed" if ended.failed else ""
    return failed + (f", {ended.cancelled:,} cancelled" if ended.cancelled else "")
