"""Why a version of a key, a task of a stream, or the upload of a batch is refused, and which replies are refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskframework.errors import SubmissionError
from taskframework.model.wording import pluralize

if TYPE_CHECKING:  # the client needs the errors, and imports no store for them
    from taskframework.stores.replies import Inserted


def was_refused(reply: Inserted | Exception | None) -> bool:
    """Return whether it is certain that this request stored no task; without an answer of the store it is not."""
    return isinstance(reply, SubmissionError)


class BatchItemError(SubmissionError):
    """An item of a batch cannot be accepted."""

    def __init__(self, index: int, cause: SubmissionError) -> None:
        """Make the error of one item.

        Args:
            index: the place of the item in the upload, from 0.
            cause: why the item was refused.
        """
        super().__init__(f"Item {index}: {cause.message}", hint=cause.hint)
        self.code = cause.code
        self.index = index
        self.cause = cause


class BatchConflictError(SubmissionError):
    """The upload does not match the batch that is stored."""

    code = "batch_conflict"
    hint = "Repeat the upload with the same items in the same order, or use a new key."

    def __init__(self, batch_id: str, index: int, reason: str) -> None:
        super().__init__(f"Item {index} of batch {batch_id}: {reason}.")
        self.batch_id = batch_id
        self.index = index


class BatchTooLargeError(SubmissionError):
    """The batch has more items than a batch may have."""

    code = "batch_too_large"
    hint = "Submit several batches."

    def __init__(self, most: int) -> None:
        super().__init__(f"The batch has more than {pluralize(most, 'item')}.")


class BatchClosedError(SubmissionError):
    """The batch takes no more items."""

    code = "batch_closed"
    hint = "Submit a new batch, with a new key."

    def __init__(self, batch_id: str, status: str) -> None:
        super().__init__(f"Batch {batch_id} is {status} and its upload was not complete.")
        self.batch_id = batch_id


class StreamModeError(SubmissionError):
    """The stream has another mode."""

    code = "stream_mode"
    hint = "Use the mode of the stream, or another key."

    def __init__(self, key: str, mode: str) -> None:
        super().__init__(f"The stream {key!r} has the mode {mode}.")
        self.key, self.mode = key, mode


class VersionConflictError(SubmissionError):
    """The version of the key is a task of another type."""

    code = "version_conflict"
    hint = "A key belongs to its user, not to a task type. Use another key for this type, or a higher version."

    def __init__(self, key: str, version: int, task_type: str, task_id: str) -> None:
        super().__init__(f"Version {version} of {key!r} is task {task_id} of the type {task_type!r}.")
        self.key, self.version, self.task_id = key, version, task_id
