"""All calls of the client."""

from __future__ import annotations

from taskframework.client.batches import BatchCalls
from taskframework.client.operations import OperatorCalls
from taskframework.client.tasks import TaskCalls


class AllCalls(TaskCalls, BatchCalls, OperatorCalls):
    """The calls about tasks and about batches, and those of an operator."""
