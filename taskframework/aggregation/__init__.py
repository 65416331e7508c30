"""What follows from the end of an attempt or of sub-tasks.

`state_aggregator.py` turns the outcome of an attempt into the next state of its task, such as COMPLETED, RETRYING or
FAILED; nothing else does so. The other files work on parents and batches: they store planned sub-tasks, count those
that have ended, cancel those for which no parent waits any more, and replay those of a batch.
"""
