"""The tasks of this project. `taskframework dev` executes them, and so does `taskframework worker`."""

from datetime import timedelta

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, NonRetryableError, RetryableError, TaskContext, TaskOptions, task


class Order(BaseModel):
    """What a submission gives."""

    order_id: str
    amount: float


class Receipt(BaseModel):
    """What the task gives back."""

    order_id: str
    attempts: int


class ChargeCard(BackgroundTaskExecutable[Order, Receipt]):
    """Charges a card at a bank that is busy at first.

    A task may run twice, as when a worker dies at its end. So real code gives the bank the order's id with the charge.
    """

    task_type = "charge-card"
    options = TaskOptions(max_attempts=5, timeout=timedelta(seconds=30))

    async def execute(self, context: TaskContext[Order]) -> Receipt:
        order = context.parameters
        if order.amount <= 0:
            raise NonRetryableError("there is nothing to charge")
        if context.attempt == 1:
            raise RetryableError("the bank does not answer", delay=timedelta(seconds=1))
        await context.update_progress({"percent": 50})
        return Receipt(order_id=order.order_id, attempts=context.attempt)


@task("count-words")
def count_words(text: str) -> int:
    """A task that is one function."""
    return len(text.split())
