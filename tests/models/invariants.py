"""What must hold in every schedule: a watch that sees each write, and the reckoning at the end.

I1 no task is lost, I2 each generation ends once, I3 fencing, I4 events are complete and in order, I6 counters, I7
nothing starts early or by an old message, I8 a cancelled task goes nowhere else. I5 a parent ends by counts that are
true, and its sub-tasks with it; parent_reports.pml has more of that. I9 a signal is heard once. I10 a batch has the
items with which it was sealed, is abandoned only while it waits for them, and does not end while it is being retried.
I11 of a serial stream one task runs at a time, in the order of submission. I12 a debounced task that has begun keeps
its parameters, and waits no longer than it may. I13 for want of a worker ends only what waited its time for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from taskframework.model.attempts import Claim
from taskframework.model.batches import AbandonUpload, ReopenBatch, Seal, is_open
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.interventions import Discard, EndUnstarted, Expire, Reap, Replay, RetryNow
from taskframework.model.marks import Mark
from taskframework.model.signals import SendSignal
from taskframework.model.status import CLAIMABLE, DEAD, FINAL, LIVE, MOVES, SUCCEEDED, TaskStatus
from taskframework.model.stream_moves import ClaimTurn, Skip, Unblock
from taskframework.model.streams import is_serial, position_of
from taskframework.model.task import Task
from taskframework.model.waiting import CountSubtasks, Reopen

#: What takes the end of a task back.
_REOPENS = (Reopen, ReopenBatch)
#: What is told of a task that rests.
_TELLS = (SendSignal, Seal, ReopenBatch, Skip, ReplaceParameters, RetryNow)
_NO_TIME = timedelta(0)


def is_driven(task: Task) -> bool:
    """I1: whether somebody would move this task on, or it needs nobody."""
    if task.publish_at is None and task.sequence > task.published_sequence:
        return False
    if task.status in CLAIMABLE:
        # No claim accepts a task with a cancel: it would wait for ever.
        return task.next_dispatch_at is not None and task.cancel is None
    if task.status is TaskStatus.BLOCKED:
        return task.unblock_at is not None
    if task.status is TaskStatus.WAITING:
        return task.check_at is not None and (task.seal_by is not None or not is_open(task))
    return task.lease is not None or task.status is not TaskStatus.RUNNING


@dataclass(slots=True)
class _Life:
    """What the document of a task does not tell."""

    claims: list[str] = field(default_factory=list)
    #: How many of the claims belong to generations that are over.
    claims_before: int = 0
    #: The generation of each end.
    ends: list[int] = field(default_factory=list)
    #: The keys of the signals that were heard in this generation.
    heard: set[str] = field(default_factory=set)
    #: The count by which it ended.
    ended_by: CountSubtasks | None = None
    #: How long it has waited for a worker since its queue timeout began last.
    waited: timedelta = _NO_TIME


class Watch:
    """Sees each write of one walk."""

    def __init__(self) -> None:
        #: Each request with the task before and after it; after is None where it was refused.
        self.requests: list[tuple[Mark, Task, Task | None]] = []
        #: What the subscriber applied last, by task.
        self.heard: dict[str, int] = {}
        self._lives: dict[str, _Life] = {}
        #: Of each sealed batch how many sub-tasks it has, and of each parent how many have been stored.
        self._planned: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        #: The tasks of a serial stream that have its turn, and the positions of those that have never had it.
        self._in_turn: set[str] = set()
        self._blocked: dict[str, int] = {}

    def inserted(self, task: Task) -> None:
        life = self._lives[task.task_id] = _Life()
        if task.parent is not None:
            parent_id, slots = task.parent.task_id, task.parent.slot + 1
            self._stored[parent_id] = max(slots, self._stored.get(parent_id, 0))
            assert slots <= self._planned.get(parent_id, slots), "I10: an item is stored behind the last one"
        if is_serial(task):
            self._blocked[task.task_id] = position_of(task)
        _check_task(task, life)

    def asked(self, request: Mark, before: Task, after: Task | None, now: datetime) -> None:
        """Check one write."""
        self.requests.append((request, before, after))
        if after is None or after is before:
            return
        life = self._lives[before.task_id]
        if isinstance(request, Claim | ClaimTurn):
            _check_claim(request, before, now)
            life.claims.append(request.claim_id)
        elif type(request) is Replay:
            life.claims_before = len(life.claims)
            life.heard.clear()
        elif type(request) in _REOPENS and before.status in FINAL:  # if a release ended it, that handed nothing back
            life.claims_before = len(life.claims) - after.releases - after.attempts
        elif type(request) is CountSubtasks:
            _check_count(request, before)
            assert after.status is TaskStatus.WAITING or before.retry_at is None, (
                "I10: it ends while it is being retried"
            )
        elif type(request) is Seal:
            planned = self._planned[before.task_id] = request.items
            assert before.status is TaskStatus.WAITING, "I10: sealed, and nobody waits"
            assert self._stored.get(before.task_id, 0) <= planned, "I10: sealed with less than there is"
        elif type(request) is AbandonUpload:
            is_late = before.seal_by is not None and before.seal_by <= now
            assert is_late, "I10: abandoned, and its upload goes on"
            assert is_open(before), "I10: abandoned, and its upload is over"
        elif type(request) is SendSignal:
            assert request.key not in {signal.key for signal in before.signals}, "I9: one key is two signals"
        elif type(request) is RetryNow:
            assert (before.status, after.attempts) == (TaskStatus.RETRYING, before.attempts), "I7: it begins anew"
            assert after.not_before <= now < before.not_before, "I7: its next attempt is not sooner"
            assert after.dispatch_epoch > before.dispatch_epoch, "I7: made due, and old messages still count"
        elif type(request) is ReplaceParameters:
            _check_replacement(before, after, now)
        elif type(request) is EndUnstarted:
            _check_late(before, life)
        elif type(request) is Reap and before.lease is not None:
            is_over = request.grace is not None and before.lease.expires_at + request.grace <= now
            assert is_over, "I3: taken from a worker while the lease goes on"
        elif (fence := getattr(request, "fence", None)) is not None:
            assert before.status is TaskStatus.RUNNING, "I3: a worker wrote to a task that does not run"
            assert fence.claim_id == life.claims[-1], "I3: a worker wrote after it lost the lease"
        if after.sequence == before.sequence:
            assert after.status is before.status, "I4: a move that nobody is told of"
        else:
            _check_move(request, before, after, life)
            if after.history[-1].type == "resumed":
                life.claims_before = len(life.claims)
                _check_resumption(before, after, life)
        _count_wait(before, after, life, now)
        if is_serial(after):
            self._check_stream(request, after)
        assert after.dispatch_epoch >= before.dispatch_epoch, "I6: the dispatch epoch went back"
        assert after.published_sequence >= before.published_sequence, "I4: the published mark went back"
        _check_task(after, life)

    def hear(self, task_id: str, sequence: int) -> None:
        """The subscriber gets an event, and applies what is newer than the last it applied."""
        last = self.heard.get(task_id, 0)
        assert sequence <= last + 1, f"I4: the subscriber heard event {sequence} of {task_id} after {last}"
        self.heard[task_id] = max(sequence, last)

    def check_the_end(self, tasks: Iterable[Task]) -> None:
        """Check what must be so when the faults are over and everybody had time."""
        tasks = list(tasks)
        for task in tasks:
            self._check_family(task, tasks)
            assert task.status in FINAL, f"I1: {task.task_id} is stuck in {task.status}"
            ends = self._lives[task.task_id].ends
            assert ends == list(range(task.generation + 1)), f"I2: {task.task_id} ended in the generations {ends}"
            assert self.heard.get(task.task_id, 0) == task.sequence, "I4: the subscriber missed events"
            assert task.published_sequence == task.sequence, "I4: events are not known to be published"

    def _check_stream(self, request: Mark, after: Task) -> None:
        if after.status is TaskStatus.BLOCKED or after.status in FINAL:
            self._in_turn.discard(after.task_id)
        else:
            self._in_turn.add(after.task_id)
        assert len(self._in_turn) <= 1, "I11: two of a stream at once"
        if after.status is not TaskStatus.BLOCKED:
            mine = self._blocked.pop(after.task_id, None)
            has_turn = isinstance(request, Unblock | ClaimTurn)
            is_first = mine is None or not has_turn or mine < min(self._blocked.values(), default=mine + 1)
            assert is_first, "I11: one that was submitted earlier is overtaken"

    def _check_family(self, parent: Task, tasks: Iterable[Task]) -> None:
        assert parent.cascade_at is None, f"I5: the sub-tasks of {parent.task_id} are not known to be cancelled"
        count = self._lives[parent.task_id].ended_by
        if count is None:
            return
        round = (parent.task_id, count.generation, count.round)
        links = [(task.parent, task.status) for task in tasks if task.parent is not None]
        subtasks = [status for link, status in links if (link.task_id, link.generation, link.round) == round]
        succeeded = sum(status in SUCCEEDED for status in subtasks)
        assert succeeded >= count.counts.succeeded, f"I5: {parent.task_id} counted more successes than there are"
        planned = parent.subtasks.planned if parent.subtasks else None
        if count.policy == "allow_failures":
            assert len(subtasks) == planned, f"I5: {parent.task_id} ended before its sub-tasks were there"
        if count.policy == "all_must_succeed" and parent.status is TaskStatus.COMPLETED:
            assert succeeded == planned, f"I5: {parent.task_id} completed, and not all of its sub-tasks"


def _check_count(count: CountSubtasks, before: Task) -> None:
    assert before.status is TaskStatus.WAITING, "I5: counted, and nobody waits"
    subtasks = before.subtasks
    assert subtasks is not None
    assert (count.generation, count.round) == (before.generation, subtasks.round), "I5: a count of another round"
    assert count.report_serial == subtasks.report_serial, "I5: an older count overwrote a newer one"


def _check_resumption(before: Task, after: Task, life: _Life) -> None:
    signal = after.woken_by
    if after.stage != "signal" or signal is None or signal.timed_out:
        return
    assert before.waits_for is not None, "I9: resumed by a signal, and nobody waits for one"
    assert signal.name == before.waits_for.name, "I9: resumed by another signal"
    assert signal.key not in life.heard, "I9: a signal is heard twice"
    life.heard.add(signal.key)


def _check_replacement(before: Task, after: Task, now: datetime) -> None:
    assert before.status is TaskStatus.QUEUED, "I12: other parameters for a task that has begun"
    assert before.started_at is None, "I12: other parameters for a task that has begun"
    assert before.debounce is not None
    latest = before.created_at + before.debounce.longest
    assert after.not_before <= max(latest, before.not_before), "I12: debounced for longer than it may be"


def _check_late(before: Task, life: _Life) -> None:
    assert before.started_at is None, "I13: ended for want of a worker, and has begun"
    assert before.start_limit is not None
    assert life.waited >= before.start_limit.time, "I13: ended before it has waited its time for a worker"


def _count_wait(before: Task, after: Task, life: _Life, now: datetime) -> None:
    passed = before.created_at - after.created_at  # nothing moves this but time itself
    if before.status is not TaskStatus.QUEUED:
        life.waited = _NO_TIME
    elif passed:
        life.waited += max(_NO_TIME, passed - max(_NO_TIME, before.not_before - now))
    elif after.start_by != before.start_by and after.start_by is not None and after.start_limit is not None:
        life.waited = max(_NO_TIME, after.start_limit.time - (after.start_by - now))


def _check_claim(claim: Claim | ClaimTurn, before: Task, now: datetime) -> None:
    assert before.not_before <= now, "I7: claimed before its time"
    assert before.deadline is None or before.deadline > now, "I7: claimed after its deadline"
    if isinstance(claim, Claim):
        assert claim.dispatch_epoch == before.dispatch_epoch, "I7: an old message started an attempt"
    assert before.cancel is None, "I8: a cancelled task was claimed"


def _check_move(request: Mark, before: Task, after: Task, life: _Life) -> None:
    # A deadline tells two things of a task in a stream: that the stream goes on without it, and what becomes of it. A
    # claimed turn tells that the task has its turn, and that it begins.
    tells_two = isinstance(request, Expire | ClaimTurn) and after.history[-2].sequence > before.sequence
    told = 2 if tells_two else 1
    assert after.sequence == before.sequence + told == after.history[-1].sequence, "I4: events are not counted by ones"
    assert after.revision == before.revision + 1, "I6: the revision does not count the moves"
    if after.status is before.status:
        may_rest = type(request) in _TELLS and before.status in LIVE
        is_given_up = type(request) is Discard and before.status in DEAD
        assert before.status is TaskStatus.RUNNING or may_rest or is_given_up, (
            "I2: a second event for a task that rests"
        )
        return
    assert before.status not in FINAL or type(request) in (Replay, *_REOPENS), "I2: a final status changed"
    if type(request) in _REOPENS:
        life.ends.pop()  # of that generation; it ends once more
    assert after.status in MOVES[before.status], f"I2: moved from {before.status} to {after.status}"
    if before.cancel is not None and before.status is TaskStatus.RUNNING:
        assert after.status in FINAL, "I8: a cancelled task goes on"
    if after.status in FINAL:
        life.ends.append(after.generation)
        life.ended_by = request if isinstance(request, CountSubtasks) else None
    elif after.status in CLAIMABLE:
        assert after.dispatch_epoch > before.dispatch_epoch, "I7: claimable again, and old messages still count"


def _check_task(task: Task, life: _Life) -> None:
    assert is_driven(task), f"I1: nobody would ever move {task.task_id} on, which is {task.status}"
    assert task.fencing_token == len(life.claims), "I6: the fencing token does not count the claims"
    assert task.attempts <= task.max_attempts, "I6: more attempts than allowed"
    if task.status not in FINAL:  # a release that ends a cancelled task hands nothing back
        counted = len(life.claims) - life.claims_before - task.releases
        assert task.attempts == counted, "I6: attempts are not the claims that were not handed back"
    history = task.history
    assert len(history) == history[-1].sequence - history[0].sequence + 1, "I4: the events have gaps"
    assert history[0].sequence <= task.published_sequence + 1, "I4: an event was dropped before it was published"
