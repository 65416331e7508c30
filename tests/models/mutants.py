"""The protocol, each time without one of its rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from taskframework.model.attempts import Claim, Complete, Fail, Release, ReportProgress
from taskframework.model.batches import AbandonUpload, Announce, ReopenBatch, Seal
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.interventions import Cancel, EndUnstarted, Reap, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.status import FINAL, TaskStatus
from taskframework.model.stream_moves import ClaimTurn, Unblock
from taskframework.model.subtasks import Verdict
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease
from taskframework.model.transitions import Fence, Transition
from taskframework.model.waiting import CountSubtasks, Reopen, Wait
from tests.models.reference import Rule
from tests.models.world import Without

_LONG = timedelta(days=1000)
_NOTHING = Without()

Outcome = Complete | Fail | Release | ReportProgress


@dataclass(frozen=True)
class Mutant:
    """What is left out, and the invariant that breaks."""

    breaks: str
    rules: Mapping[type, Rule] = field(default_factory=dict)
    without: Without = _NOTHING
    #: The seed with which the search begins: few schedules show it, and those before this one do not.
    first: int = 0


def _no_fence(request: Outcome, task: Task, now: datetime) -> Task | None:
    if task.lease is None:
        return None
    fence = Fence(task.task_id, task.fencing_token, task.lease.claim_id)
    return replace(request, fence=fence).apply(task, now)


def _second_end(request: Outcome, task: Task, now: datetime) -> Task | None:
    """The claim that ended the run may write again."""
    if task.status in FINAL and task.last_claim_id == request.fence.claim_id:
        task = task.evolve(status=TaskStatus.RUNNING, lease=Lease("worker-1", request.fence.claim_id, now))
    return request.apply(task, now)


def _any_epoch(claim: Claim, task: Task, now: datetime) -> Task | None:
    return replace(claim, dispatch_epoch=task.dispatch_epoch).apply(task, now)


def _early(claim: Claim, task: Task, now: datetime) -> Task | None:
    return claim.apply(task.evolve(not_before=min(task.not_before, now)), now)


def _late(claim: Claim, task: Task, now: datetime) -> Task | None:
    claimed = claim.apply(task.evolve(deadline=None), now)
    return None if claimed is None else claimed.evolve(deadline=task.deadline)


def _reap_unseen(reap: Reap, task: Task, now: datetime) -> Task | None:
    lease = task.lease or Lease("worker-1", "", now)
    running = task.evolve(status=TaskStatus.RUNNING, lease=replace(lease, expires_at=now - _LONG))
    return replace(reap, fencing_token=task.fencing_token).apply(running, now)


def _reap_renewed(reap: Reap, task: Task, now: datetime) -> Task | None:
    """Takes the task from a worker that came back in time."""
    is_same = task.status is TaskStatus.RUNNING and task.fencing_token == reap.fencing_token
    return _reap_unseen(reap, task, now) if is_same else None


def _reap_for_ever(reap: Reap, task: Task, now: datetime) -> Task | None:
    after = replace(reap, max_crashes=1000).apply(task.evolve(max_attempts=1000), now)
    return None if after is None else after.evolve(max_attempts=task.max_attempts)


def _token_from_zero(replay: Replay, task: Task, now: datetime) -> Task | None:
    after = replay.apply(task, now)
    return None if after is None else after.evolve(fencing_token=0)


def _cancel_final(cancel: Cancel, task: Task, now: datetime) -> Task | None:
    return cancel.apply(task.evolve(status=TaskStatus.QUEUED, cancel=None) if task.status in FINAL else task, now)


def _costly_release(release: Release, task: Task, now: datetime) -> Task | None:
    after = release.apply(task, now)
    return None if after is None else after.evolve(attempts=task.attempts)


def _forget_cancel(request: Transition, task: Task, now: datetime) -> Task | None:
    after = request.apply(task.evolve(cancel=None), now)
    return None if after is None else after.evolve(cancel=task.cancel)


def _undriven_retry(request: Transition, task: Task, now: datetime) -> Task | None:
    after = request.apply(task, now)
    if after is None or after.status is not TaskStatus.RETRYING:
        return after
    return after.evolve(next_dispatch_at=None)


def _same_epoch(request: Transition, task: Task, now: datetime) -> Task | None:
    after = request.apply(task, now)
    return None if after is None else after.evolve(dispatch_epoch=task.dispatch_epoch)


def _untold(request: Transition, task: Task, now: datetime) -> Task | None:
    after = request.apply(task, now)
    if after is None:
        return None
    return after.evolve(sequence=task.sequence, history=task.history, publish_at=task.publish_at)


def _mark_back(mark: MarkPublished, task: Task, now: datetime) -> Task | None:
    return task.evolve(published_sequence=mark.sequence, publish_at=None if mark.sequence == task.sequence else now)


def _mark_done(mark: MarkPublished, task: Task, now: datetime) -> Task | None:
    after = mark.apply(task, now)
    return None if after is None else after.evolve(publish_at=None)


def _any_serial(count: CountSubtasks, task: Task, now: datetime) -> Task | None:
    serial = task.subtasks.report_serial if task.subtasks else 0
    return replace(count, report_serial=serial).apply(task, now)


def _any_round(count: CountSubtasks, task: Task, now: datetime) -> Task | None:
    if task.subtasks is None:
        return None
    serial = task.subtasks.report_serial
    same = replace(count, generation=task.generation, round=task.subtasks.round, report_serial=serial)
    return same.apply(task, now)


def _count_over(count: CountSubtasks, task: Task, now: datetime) -> Task | None:
    """The end of a parent that is over already."""
    is_over = task.status in FINAL and task.subtasks is not None
    return count.apply(task.evolve(status=TaskStatus.WAITING) if is_over else task, now)


def _decide_early(count: CountSubtasks, task: Task, now: datetime) -> Task | None:
    """By the sub-tasks that are stored, not by those that are planned."""
    counts = count.counts
    is_decided = count.verdict is None and counts.succeeded == counts.done > 0
    return replace(count, verdict=Verdict.MET if is_decided else count.verdict).apply(task, now)


def _unspawned(wait: Wait, task: Task, now: datetime) -> Task | None:
    after = wait.apply(task, now)
    return None if after is None else after.evolve(spawn_at=None)


def _wait_unseen(wait: Wait, task: Task, now: datetime) -> Task | None:
    after = wait.apply(task, now)
    return None if after is None else after.evolve(check_at=None)


def _reopen_unspawned(reopen: Reopen, task: Task, now: datetime) -> Task | None:
    after = reopen.apply(task, now)
    return None if after is None else after.evolve(spawn_at=None)


def _hear_again(send: SendSignal, task: Task, now: datetime) -> Task | None:
    """The same key is another signal."""
    return send.apply(task.evolve(signals=tuple(signal for signal in task.signals if signal.key != send.key)), now)


def _any_name(send: SendSignal, task: Task, now: datetime) -> Task | None:
    wait = task.waits_for
    after = send.apply(task if wait is None else task.evolve(waits_for=replace(wait, name=send.name)), now)
    return None if after is None else after.evolve(waits_for=wait if after.status is TaskStatus.WAITING else None)


def _forget_kept(wake: Wake, task: Task, now: datetime) -> Task | None:
    """It does not note that the signal was heard."""
    after = wake.apply(task, now)
    return None if after is None else after.evolve(signals=task.signals)


def _announce_sealed(announce: Announce, task: Task, now: datetime) -> Task | None:
    """Also in a batch that is sealed."""
    if task.subtasks is None:
        return None
    after = announce.apply(task.evolve(subtasks=replace(task.subtasks, planned=None)), now)
    return None if after is None else after.evolve(subtasks=task.subtasks)


def _seal_own(seal: Seal, task: Task, now: datetime) -> Task | None:
    """It does not look at what others have announced."""
    assert task.batch is not None
    return seal.apply(task.evolve(batch=replace(task.batch, items=seal.items)), now)


def _seal_over(seal: Seal, task: Task, now: datetime) -> Task | None:
    """Also a batch that was cancelled."""
    after = seal.apply(task.evolve(status=TaskStatus.WAITING), now)
    return None if after is None else after.evolve(status=task.status)


def _abandon_hastily(abandon: AbandonUpload, task: Task, now: datetime) -> Task | None:
    """It does not look again at the time of the upload."""
    return abandon.apply(task.evolve(seal_by=now), now)


def _abandon_sealed(abandon: AbandonUpload, task: Task, now: datetime) -> Task | None:
    """It does not look whether the batch was sealed."""
    if task.subtasks is None:
        return None
    after = abandon.apply(task.evolve(seal_by=now, subtasks=replace(task.subtasks, planned=None)), now)
    return None if after is None else after.evolve(subtasks=task.subtasks)


def _reopen_counted(reopen: ReopenBatch, task: Task, now: datetime) -> Task | None:
    """A count that was begun before may end the batch again."""
    after = reopen.apply(task, now)
    if after is None or after.subtasks is None or task.subtasks is None:
        return None
    return after.evolve(subtasks=replace(after.subtasks, report_serial=task.subtasks.report_serial))


def _end_begun(end: EndUnstarted, task: Task, now: datetime) -> Task | None:
    return end.apply(task.evolve(started_at=None), now)


def _end_unseen(end: EndUnstarted, task: Task, now: datetime) -> Task | None:
    """It does not look again whether the time is over."""
    return end.apply(task if task.start_by is None else task.evolve(start_by=now), now)


def _turn_too_late(unblock: Unblock, task: Task, now: datetime) -> Task | None:
    """The queue timeout counts while the task waits for its turn."""
    after = unblock.apply(task, now)
    return None if after is None else after.evolve(start_by=task.start_by)


def _any_generation(request: Unblock | ClaimTurn, task: Task, now: datetime) -> Task | None:
    return replace(request, generation=task.generation).apply(task, now)


def _replay_at_once(replay: Replay, task: Task, now: datetime) -> Task | None:
    """Without waiting for its turn."""
    after = replay.apply(task.evolve(stream=None), now)
    return None if after is None else after.evolve(stream=task.stream)


def _replace_begun(newer: ReplaceParameters, task: Task, now: datetime) -> Task | None:
    return newer.apply(task.evolve(started_at=None), now)


def _replace_for_ever(newer: ReplaceParameters, task: Task, now: datetime) -> Task | None:
    """It waits anew each time, however long it has waited."""
    debounce = None if task.debounce is None else replace(task.debounce, longest_ms=_LONG // timedelta(milliseconds=1))
    after = newer.apply(task.evolve(debounce=debounce), now)
    return None if after is None else after.evolve(debounce=task.debounce)


_WORKER = (Complete, Fail, Release, ReportProgress)

MUTANTS: Mapping[str, Mutant] = {
    "no fence": Mutant("I3: a worker wrote after it lost the lease", dict.fromkeys(_WORKER, _no_fence)),
    "a second final write": Mutant("I3: a worker wrote to a task that does not run", {Complete: _second_end}),
    "no epoch check": Mutant("I7: an old message started an attempt", {Claim: _any_epoch}),
    "a claim before its time": Mutant("I7: claimed before its time", {Claim: _early}),
    "a claim after its deadline": Mutant("I7: claimed after its deadline", {Claim: _late}),
    "a retry that keeps its epoch": Mutant("I7: claimable again, and old messages still count", {Fail: _same_epoch}),
    "a reaper without its guard": Mutant("I[23]", {Reap: _reap_unseen}),
    "a reaper that does not look at the lease again": Mutant("I3: .* the lease goes on", {Reap: _reap_renewed}),
    "a reaper that never gives up": Mutant("I6: more attempts than allowed", {Reap: _reap_for_ever}),
    "a replay that resets the token": Mutant("I6: the fencing token", {Replay: _token_from_zero}),
    "a cancel of a final task": Mutant("I2", {Cancel: _cancel_final}),
    "a release that ignores a cancel": Mutant("I8: a cancelled task goes on", {Release: _forget_cancel}),
    "a release that costs an attempt": Mutant("I6: attempts", {Release: _costly_release}),
    "a failure that ignores a cancel": Mutant("I8: a cancelled task goes on", {Fail: _forget_cancel}),
    "a retry without a due time": Mutant("I1: nobody would ever move", {Fail: _undriven_retry}),
    "a completion without its event": Mutant("I4: a move that nobody is told of", {Complete: _untold}),
    "a mark that moves backwards": Mutant("I4: the published mark went back", {MarkPublished: _mark_back}),
    "a mark that ends the relay's duty": Mutant("I1: nobody would ever move", {MarkPublished: _mark_done}),
    "a mark before the publication": Mutant("I4: the subscriber", without=Without(confirms=True)),
    "an event without those before it": Mutant("I4: the subscriber heard", without=Without(backlog=True)),
    "a count that is older than another": Mutant("I5: an older count", {CountSubtasks: _any_serial}),
    "a count of an earlier round": Mutant("I5: (a count of another|an older)", {CountSubtasks: _any_round}),
    "a parent that ends twice": Mutant("I5: counted, and nobody waits", {CountSubtasks: _count_over}),
    "a parent that ends by what is stored": Mutant("I5: .* its sub-tasks", {CountSubtasks: _decide_early}),
    "markers that go before the count": Mutant(
        "I1: .* is stuck in WAITING", without=Without(count_first=True), first=601
    ),
    "markers of ends that nobody counted": Mutant(
        "I1: .* is stuck in WAITING", without=Without(knowledge=True), first=3788
    ),
    "a plan that nobody stores": Mutant("I1: .* is stuck in WAITING", {Wait: _unspawned}),
    "a reopened parent with half a plan": Mutant("I1: .* is stuck in WAITING", {Reopen: _reopen_unspawned}),
    "a wait that nobody looks at": Mutant("I1: nobody would ever move", {Wait: _wait_unseen}),
    "a key that is two signals": Mutant("I9: one key is two signals", {SendSignal: _hear_again}),
    "a signal that wakes by its kept copy twice": Mutant(
        "I9: a signal is heard twice", {Wake: _forget_kept}, first=3917
    ),
    "a signal of another name": Mutant("I9: resumed by another signal", {SendSignal: _any_name}),
    "no spawner": Mutant("I1: .* is stuck in WAITING", without=Without(spawner=True)),
    "no cascade": Mutant("I5: the sub-tasks of .* are not known", without=Without(cascade=True)),
    "items that are stored before they are announced": Mutant(
        "I10: (an item|sealed)", without=Without(announcements=True)
    ),
    "an item that is announced behind the last one": Mutant("I10: an item is stored", {Announce: _announce_sealed}),
    "a seal that knows its own items alone": Mutant("I10: (an item|sealed)", {Seal: _seal_own}),
    "a seal of a batch that is over": Mutant("I10: sealed, and nobody waits", {Seal: _seal_over}),
    "an upload that is abandoned while it goes on": Mutant("I10: abandoned", {AbandonUpload: _abandon_hastily}),
    "a sealed batch that is abandoned": Mutant("I10: abandoned", {AbandonUpload: _abandon_sealed}),
    "an upload that nobody abandons": Mutant("I1: .* is stuck in WAITING", without=Without(abandon=True)),
    "a retry that nobody makes": Mutant("I1: .* is stuck in WAITING", without=Without(retrier=True)),
    "a reopened batch that an old count ends": Mutant("I10: it ends", {ReopenBatch: _reopen_counted}, first=3606),
    "no reaper": Mutant("I1: .* is stuck in RUNNING", without=Without(reaper=True)),
    # A parent waits as well, for its sub-tasks.
    "no sweeper": Mutant("I1: .* is stuck in (QUEUED|RETRYING|WAITING)", without=Without(sweeper=True)),
    "a queue timeout of what has begun": Mutant("I13: .* has begun", {EndUnstarted: _end_begun}),
    "a queue timeout that does not look again": Mutant("I13: .* its time", {EndUnstarted: _end_unseen}),
    "a queue timeout while it waits for its turn": Mutant("I13: .* its time", {Unblock: _turn_too_late}, first=301),
    "a turn of another generation": Mutant("I11: two of a stream", {Unblock: _any_generation}, first=433),
    "a claimed turn of another generation": Mutant("I11: two of a stream", {ClaimTurn: _any_generation}, first=433),
    "a turn that is passed on twice": Mutant("I11: two of a stream", without=Without(turn_guard=True), first=433),
    "a replay that does not wait for its turn": Mutant("I11: two of a stream", {Replay: _replay_at_once}),
    "nobody who passes on turns": Mutant("I1: .* is stuck in BLOCKED", without=Without(turns=True)),
    "other parameters for what has begun": Mutant("I12: other", {ReplaceParameters: _replace_begun}),
    "a debounce without an end": Mutant("I12: debounced", {ReplaceParameters: _replace_for_ever}),
}
