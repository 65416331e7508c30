"""How each failpoint is passed: for every point at least one story of what a user, an operator or a clock does.

A story runs up to its `yield`, then the fault happens; it goes on when everything runs again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from taskframework.model.attempts import Claim
from taskframework.model.options import StartLimit, StreamPlace
from taskframework.model.scope import ANONYMOUS, EVERYONE
from taskframework.model.slots import SLOTS
from taskframework.model.status import TaskStatus
from taskframework.model.streams import STREAMS, Stream, StreamKey, TakePositions
from taskframework.model.task import SCHEMA_VERSION
from taskframework.model.task_fields import SignalWait
from tests.chaos.failpoint_files import GO, MENDED
from tests.chaos.failpoint_processes import Role, until
from tests.chaos.failpoint_stage import Stage

Story = Callable[[Stage], AsyncIterator[None]]

_HOUR = timedelta(hours=1)
_SERIAL = {"key": "s", "mode": "serial"}
_ORDERED = {"key": "o", "mode": "ordered_results"}
_MOMENT = timedelta(milliseconds=300)


async def submits(stage: Stage) -> AsyncIterator[None]:
    await stage.submit(5)
    yield


async def tries_again(stage: Stage) -> AsyncIterator[None]:
    stage.repeats = 6
    await stage.submit(3, fails=2)
    yield


async def waits_for_permits(stage: Stage) -> AsyncIterator[None]:
    await stage.submit(4, "limited")
    yield


async def waits_for_turns(stage: Stage) -> AsyncIterator[None]:
    """All have the same key, so that all but the first few are put off."""
    await stage.submit(4, "keyed")
    yield


async def waits_for_a_slot(stage: Stage) -> AsyncIterator[None]:
    await stage.submit(4, "single")
    yield
    await stage.slots_are_free(SLOTS.id_of("single"))


async def waits_for_the_slot_of_its_key(stage: Stage) -> AsyncIterator[None]:
    await stage.submit(5, "single-of-key")
    yield
    await stage.slots_are_free(SLOTS.id_of("single-of-key", ""))


async def holds_its_bucket(stage: Stage) -> AsyncIterator[None]:
    stage.repeats = 2
    await stage.submit(2, "limited", fails=1)
    yield


async def fails(stage: Stage) -> AsyncIterator[None]:
    """The message goes through the dead-letter exchange to the collector."""
    stage.expected = "FAILED"
    await stage.submit(3, is_broken=True)
    yield


async def does_a_step(stage: Stage) -> AsyncIterator[None]:
    """What is recorded is not done again by the next attempt."""
    await stage.submit()
    yield
    await stage.all_are("COMPLETED")
    assert stage.steps_done() == 1


async def takes_long(stage: Stage) -> AsyncIterator[None]:
    await stage.submit(2, waits_from=1)
    yield
    stage.touch(GO)


async def is_overtaken(stage: Stage) -> AsyncIterator[None]:
    """The first attempt hangs with its result in hand until the second one runs: nobody may take that result."""
    stage.refusals = 1
    await stage.submit(waits_from=2)
    yield
    await stage.processes.told("goes on")
    stage.touch(GO)


async def stops_the_worker(stage: Stage) -> AsyncIterator[None]:
    stage.repeats = 2
    await stage.submit(2, waits_from=1)
    await stage.all_are("RUNNING")
    await stage.processes.stop_armed()
    yield
    stage.touch(GO)


async def cancels_what_waits(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "CANCELLED"
    task = await stage.plant(not_before=stage.store.now() + _HOUR, next_dispatch_at=stage.store.now() + _HOUR)
    await stage.post(f"/tasks/{task.task_id}/cancel")
    yield
    assert await stage.post(f"/tasks/{task.task_id}/cancel") in (202, 409)


async def supersedes(stage: Stage) -> AsyncIterator[None]:
    """Whoever submits asks again, first for the older version: it is accepted or too late, and the newer one stays."""
    stage.expected = "CANCELLED"
    for version in (1, 2):
        await stage.submit_version(version, not_before=stage.store.now() + _HOUR)
    yield
    for version in (1, 2):
        assert await stage.submit_version(version, not_before=stage.store.now() + _HOUR) in (200, 202, 409)
    [older, newer] = sorted(await stage.documents(), key=lambda document: document["unique"]["version"])
    assert (older["status"], newer["status"]) == ("CANCELLED", "QUEUED")
    await stage.post(f"/tasks/{newer['_id']}/cancel")


async def keeps_their_order(stage: Stage) -> AsyncIterator[None]:
    """Whatever happens, the tasks of a serial stream run in the order in which they were submitted."""
    await stage.submit(4, stream=_SERIAL)
    yield
    await stage.all_are("COMPLETED")
    tasks = sorted(await stage.documents(), key=lambda document: document["stream"]["position"])
    assert [task["correlation_id"] for task in tasks] == ["s0", "s1", "s2", "s3"]


async def reads_past_what_is_late(stage: Stage) -> AsyncIterator[None]:
    """Of two tasks the first takes long, so that the reader of their results goes on without it, and so do others."""
    await stage.submit(stream=_ORDERED, waits_from=1)
    await stage.submit(stream=_ORDERED)
    await stage.there_are(1, "COMPLETED")
    await stage.reads(lambda results: results is None or len(results) == 2)
    yield
    stage.touch(GO)
    await stage.reads(lambda results: [result["status"] for result in results or ()] == ["SKIPPED", "COMPLETED"])


async def reads_past_a_gap(stage: Stage) -> AsyncIterator[None]:
    """Somebody took a position long ago and died."""
    stream = StreamKey(ANONYMOUS, _ORDERED["key"])
    await stage.store.change_record(TakePositions(stream, _HOUR, "ordered_results", 2))
    place = StreamPlace(stream.key, "ordered_results", 1)
    await stage.plant(stream=place, user_id=stream.user_id, created_at=stage.store.now() - _HOUR)
    await stage.reads(lambda results: results is None or len(results) > 0)
    yield
    await stage.reads(lambda results: [result["status"] for result in results or ()] == ["SKIPPED", "COMPLETED"])


async def comes_too_late(stage: Stage) -> AsyncIterator[None]:
    """Somebody stored a task at a position that was given up, and died."""
    stream = StreamKey(ANONYMOUS, _ORDERED["key"])
    given_up = Stream("ordered_results", 1).skip(0, 0)
    record = STREAMS.with_id(stream.record_id, None, given_up, expires_at=stage.store.now() + _HOUR)
    await stage.store.write_records([record])
    await stage.plant(stream=StreamPlace(stream.key, "ordered_results", 0), user_id=stream.user_id)
    await stage.reads(lambda results: results is None or len(results) > 0)
    yield
    await stage.reads(lambda results: [result["status"] for result in results or ()][-1:] == ["COMPLETED"])


async def debounces(stage: Stage) -> AsyncIterator[None]:
    """Whoever submits asks again: there is one task, with what was asked for last."""
    stage.expected = "CANCELLED"
    for number in (1, 2):
        await stage.submit_debounced(number)
    yield
    assert await stage.submit_debounced(2) in (200, 202)
    task = await stage.store.get(await stage.only_task(), EVERYONE)
    assert task is not None
    assert task.parameters == {"subtasks": 2}
    await stage.post(f"/tasks/{task.task_id}/cancel")


async def cancels_what_runs(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "CANCELLED"
    await stage.submit(waits_from=1)
    await stage.all_are("RUNNING")
    task_id = await stage.only_task()
    await stage.post(f"/tasks/{task_id}/cancel")
    yield
    assert await stage.post(f"/tasks/{task_id}/cancel") in (202, 409)


async def queues_anew(stage: Stage) -> AsyncIterator[None]:
    stage.repeats = 1
    await stage.submit(is_broken=True)
    await stage.all_are("FAILED")
    stage.touch(MENDED)
    task_id = await stage.only_task()
    await stage.post(f"/tasks/{task_id}/retry")
    yield
    assert await stage.post(f"/tasks/{task_id}/retry") in (202, 409)


async def need_not_wait(stage: Stage) -> AsyncIterator[None]:
    """It failed, and was to be tried again in an hour; asked twice, it is tried once."""
    later = stage.store.now() + _HOUR
    task = await stage.plant(status=TaskStatus.RETRYING, attempts=1, not_before=later, next_dispatch_at=later)
    await stage.post(f"/tasks/{task.task_id}/retry")
    yield
    assert await stage.post(f"/tasks/{task.task_id}/retry") in (202, 409)


async def gives_up(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "FAILED"
    await stage.submit(is_broken=True)
    await stage.all_are("FAILED")
    discard = {"ids": [await stage.only_task()], "reason": "of last year"}
    await stage.post("/admin/dead-letters/discard", discard)
    yield
    assert await stage.post("/admin/dead-letters/discard", discard) == 200
    assert (await stage.get("/admin/dead-letters"))["items"] == []


async def replays_many(stage: Stage) -> AsyncIterator[None]:
    """Each dead letter is replayed once, by whichever process goes on, and all of them are told."""
    dead = {"status": TaskStatus.FAILED, "next_dispatch_at": None, "finished_at": stage.store.now() - _MOMENT}
    for _ in range(3):
        await stage.plant(**dead)
    await stage.post("/admin/dead-letters/replay", {"filter": {"task_type": "probe"}, "rate": 100}, key="k")
    yield

    async def is_over() -> bool:
        replays = await stage.get("/admin/replays")
        return replays is not None and [each["status"] for each in replays["items"]] == ["DONE"]

    await until(is_over, "the replay is done")
    [replay] = (await stage.get("/admin/replays"))["items"]
    assert (replay["done"], replay["total"], replay["refused"], replay["failed"]) == (3, 3, 0, 0)
    assert {document["generation"] for document in await stage.documents()} == {1}


async def leaves_due(stage: Stage) -> AsyncIterator[None]:
    for _ in range(2):
        await stage.plant()
    yield


async def misses_a_deadline(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "FAILED"
    now = stage.store.now()
    await stage.plant(not_before=now + _HOUR, next_dispatch_at=now + _HOUR, deadline=now + _MOMENT)
    yield


async def waits_for_too_long(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "DEAD_LETTER"
    now = stage.store.now()
    limit = {"start_limit": StartLimit(300), "start_by": now + _MOMENT}
    await stage.plant(not_before=now + _HOUR, next_dispatch_at=now + _HOUR, **limit)
    yield


async def lost_a_worker(stage: Stage) -> AsyncIterator[None]:
    stage.repeats = 1
    task = await stage.plant()
    claim = Claim(task.task_id, task.dispatch_epoch, "claim-of-the-dead", "host:1:dead", _MOMENT)
    assert await stage.store.apply(claim) is not None
    yield


async def is_too_new(stage: Stage) -> AsyncIterator[None]:
    """Nobody here can run it, so it is put off twice and then given up."""
    stage.expected = "DEAD_LETTER"
    await stage.plant(schema_version=SCHEMA_VERSION + 1)
    yield


async def gets_rubbish(stage: Stage) -> AsyncIterator[None]:
    """What nobody can read is in the dead-letter queue, and then kept. It is in nobody's way."""
    await stage.publish(b"rubbish", "tasks.dlq")
    yield
    await stage.submit()
    kept = (await stage.store.list_dead_messages(limit=10, cursor=None)).items
    assert {letter.body for letter in kept} == {b"rubbish"}
    # Who died over it did not acknowledge it, and nobody can tell one piece of rubbish from another.
    assert len(kept) == 1 or stage.fault.verb == "kill"


async def plans(stage: Stage) -> AsyncIterator[None]:
    """The parent is claimed twice: to plan, and to go on."""
    stage.repeats = 1
    await stage.submit(task_type="family")
    yield


async def cancels_a_family(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "CANCELLED"
    await stage.submit(task_type="family", waits_from=1)
    await stage.there_are(3, "RUNNING")
    task_id = await stage.only_task()
    await stage.post(f"/tasks/{task_id}/cancel")
    yield
    assert await stage.post(f"/tasks/{task_id}/cancel") in (202, 409)


async def reopens_a_family(stage: Stage) -> AsyncIterator[None]:
    """The sub-task is broken; mended and replayed it lets the parent end anew."""
    stage.repeats = 2
    await stage.submit(task_type="family", subtasks=1, is_broken=True)
    await stage.all_are("FAILED")
    stage.touch(MENDED)
    subtask = await stage.subtask()
    await stage.post(f"/tasks/{subtask}/retry", {"reopen": True})
    yield
    assert await stage.post(f"/tasks/{subtask}/retry", {"reopen": True}) in (202, 409)


async def is_signalled(stage: Stage) -> AsyncIterator[None]:
    """The signal is sent again with its key, since nobody may have been told: it counts once."""
    stage.repeats = 1
    await stage.submit(task_type="patient")
    await stage.all_are("WAITING")
    task_id = await stage.only_task()
    await stage.post(f"/tasks/{task_id}/signals/go", 7, key="k")
    yield
    assert await stage.post(f"/tasks/{task_id}/signals/go", 7, key="k") in (202, 409)
    await stage.all_are("COMPLETED")
    [document] = await stage.documents()
    assert (document["result"]["payload"], document["sequence"]) == (7, 6)


async def waits_in_vain(stage: Stage) -> AsyncIterator[None]:
    now = stage.store.now()
    waiting = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": now, "schema_version": 2}
    await stage.plant(task_type="patient", waits_for=SignalWait("go", now), **waiting)
    yield
    await stage.all_are("COMPLETED")
    [document] = await stage.documents()
    assert document["result"]["timed_out"]


async def is_scheduled(stage: Stage) -> AsyncIterator[None]:
    """Who finds the run still due submits it again, and finds it there."""
    await stage.schedule()
    yield
    assert await stage.moved_on() == await stage.only_task()


async def uploads(stage: Stage) -> AsyncIterator[None]:
    """The upload is sent again with its key, whatever came of the first one."""
    await stage.upload({}, {}, {})
    yield
    await stage.upload({}, {}, {})


async def abandons_an_upload(stage: Stage) -> AsyncIterator[None]:
    stage.expected = "CANCELLED"
    await stage.upload({"waits_from": 1}, breaks_off=True)
    yield


async def retries_a_batch(stage: Stage) -> AsyncIterator[None]:
    """All of it fails; mended and retried it succeeds, each task with one replay."""
    stage.repeats = 2
    broken = {"is_broken": True}
    await stage.upload(broken, broken)
    await stage.there_are(1, "COMPLETED_WITH_ERRORS")
    stage.touch(MENDED)
    address = f"/batches/{await stage.only_task()}/retry-failed"
    await stage.post(address)
    yield
    assert await stage.post(address) in (202, 409)
    await stage.all_are("COMPLETED")


@dataclass(frozen=True)
class Scenario:
    """A point, the story that passes it, and who does.

    Attributes:
        is_alone: whether the armed process is the only one until the fault, else another one might pass instead.
        settings: of all processes.
        also: what else is armed.
        actions: what happens at the point; by default a crash or a lost reply at first, the rest when there is time.
        where: the installations that pass it so: the embedded one, RabbitMQ with MongoDB, or both.
    """

    point: str
    story: Story
    role: Role
    is_alone: bool = False
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    also: str = ""
    actions: tuple[str, ...] = ()
    where: Literal["embedded", "servers", "both"] = "both"

    def __str__(self) -> str:
        return f"{self.point}-{self.story.__name__}"


_ONE_SLOT = {"WORKER__CONCURRENCY": "1"}
_EARLY = {"BROKER__CONSUMER_TIMEOUT": "1s"}
#: Holds the heartbeat up for longer than a lease.
_NO_BEAT = "heartbeat.before_write@1=pause:3"
#: Repairs that do not come before the timers, the relay, and the process that does a thing at once.
_NO_SWEEP = {"RECOVERY__SWEEP_INTERVAL": "3s"}
#: Leases that a stop does not outlast, however busy the machine is: who has lost them has nothing to release.
_LONG_LEASES = {"WORKER__LEASE": "6s"}
#: Results that are not waited for.
_SHORT_GAPS = {"STREAMS__GAP": "100ms"}
#: Uploads that are given up soon.
_HASTY = {"BATCHES__UPLOAD_TIMEOUT": "1s"}
#: Retries that are still to come when they are heard of: what is due by then needs no timer. Nor does a plugin's delay.
_SLOW_RETRIES = _NO_SWEEP | {"RETRY__INITIAL_DELAY": "2s", "BROKER__DELAY": "store"}

#: The longest first, so that they do not end after all others.
SCENARIOS = (
    Scenario("relay.after_reserve", leaves_due, "front", is_alone=True, settings=_NO_SWEEP),
    Scenario("reopen.after_write", reopens_a_family, "front"),
    Scenario("cascade.after_cancel", cancels_a_family, "front", settings=_NO_SWEEP),
    Scenario("retry.after_replay", retries_a_batch, "front", settings=_NO_SWEEP),
    Scenario("reopen_batch.after_write", retries_a_batch, "front"),
    Scenario("batch.after_announce", uploads, "front"),
    Scenario("batch.after_insert", uploads, "front"),
    Scenario("seal.after_write", uploads, "front"),
    Scenario("abandon.after_write", abandons_an_upload, "front", is_alone=True, settings=_HASTY),
    Scenario("spawn.after_insert", plans, "back"),
    Scenario("report.after_count", plans, "back"),
    Scenario("report.after_write", plans, "back"),
    Scenario("report.before_mark", plans, "back"),
    Scenario("settle.after_write", plans, "back"),
    Scenario("settle.reply", plans, "back"),
    Scenario("version.after_insert", supersedes, "front"),
    Scenario("version.after_record", supersedes, "front"),
    Scenario("supersede.after_write", supersedes, "front"),
    Scenario("stream.after_position", keeps_their_order, "front"),
    Scenario("stream.after_insert", keeps_their_order, "front"),
    Scenario("stream.before_turn", keeps_their_order, "back"),
    Scenario("stream.after_turn", keeps_their_order, "back"),
    Scenario("unblock.after_write", keeps_their_order, "front"),
    Scenario("settle.after_write", keeps_their_order, "back"),
    Scenario("skip.after_write", reads_past_what_is_late, "front", settings=_SHORT_GAPS),
    Scenario("stream.after_gap", reads_past_a_gap, "front"),
    Scenario("move_position.after_write", comes_too_late, "front"),
    Scenario("debounce.after_record", debounces, "front"),
    Scenario("debounce.after_replace", debounces, "front"),
    Scenario("signal.after_write", is_signalled, "front"),
    Scenario("wake.after_write", waits_in_vain, "front", is_alone=True),
    Scenario("schedule.after_submit", is_scheduled, "front", is_alone=True),
    Scenario("relay.before_publish", submits, "back"),
    Scenario("relay.after_confirm", submits, "back"),
    Scenario("relay.after_mark", submits, "back"),
    Scenario("relay.reply", submits, "back", where="servers"),
    Scenario("submit.before_insert", submits, "front"),
    Scenario("submit.after_key", submits, "front"),
    Scenario("record.reply", submits, "front", where="servers"),
    Scenario("submit.after_insert", submits, "front"),
    Scenario("submit.reply", submits, "front"),
    Scenario("dispatch.before_publish", submits, "front"),
    Scenario("dispatch.after_publish", submits, "front"),
    Scenario("dispatch.before_mark", submits, "front"),
    Scenario("dispatch.reply", submits, "front", where="servers"),
    Scenario("mark.reply", submits, "front"),
    Scenario("sweep.after_reserve", leaves_due, "front", is_alone=True),
    Scenario("reserve.reply", leaves_due, "front", is_alone=True),
    Scenario("retry.after_reserve", tries_again, "back", settings=_SLOW_RETRIES, where="servers"),
    Scenario("limits.after_take", waits_for_permits, "back"),
    Scenario("limits.after_take", waits_for_turns, "back"),
    Scenario("limits.after_hold", holds_its_bucket, "back"),
    Scenario("hand_over.after_write", waits_for_turns, "back"),
    Scenario("slots.after_take", waits_for_a_slot, "back"),
    Scenario("slots.before_release", waits_for_a_slot, "back"),
    Scenario("slots.after_release", waits_for_the_slot_of_its_key, "back"),
    Scenario("slots.after_announce", waits_for_the_slot_of_its_key, "front"),
    Scenario("slots.after_promise", waits_for_the_slot_of_its_key, "back"),
    Scenario("deliver.before_claim", submits, "back"),
    Scenario("claim.after_write", submits, "back"),
    Scenario("claim.reply", submits, "back"),
    Scenario("claim.postponed", is_too_new, "back"),
    Scenario("postpone.reply", is_too_new, "back"),
    Scenario("execute.before", submits, "back"),
    Scenario("execute.middle", submits, "back"),
    Scenario("progress.reply", submits, "back"),
    Scenario("heartbeat.before_write", takes_long, "back"),
    Scenario("heartbeat.after_write", takes_long, "back"),
    Scenario("renew.reply", takes_long, "back"),
    Scenario("hand_over.after_write", takes_long, "back", settings={**_EARLY, **_ONE_SLOT}, where="servers"),
    Scenario("early_ack.before", takes_long, "back", settings=_EARLY, where="servers"),
    Scenario("early_ack.after", takes_long, "back", settings=_EARLY, where="servers"),
    Scenario("step.before_write", submits, "back"),
    Scenario("step.after_write", does_a_step, "back"),
    Scenario("step.reply", does_a_step, "back"),
    Scenario("settle.before_write", submits, "back"),
    Scenario("settle.before_write", is_overtaken, "back", actions=("pause:8",), also=_NO_BEAT),
    Scenario("settle.after_write", submits, "back"),
    Scenario("settle.after_write", tries_again, "back"),
    Scenario("settle.before_ack", submits, "back"),
    Scenario("settle.before_ack", fails, "back"),
    Scenario("settle.reply", submits, "back"),
    Scenario("settle.reply", tries_again, "back"),
    Scenario("settle.reply", fails, "back"),
    Scenario("settle.reply", stops_the_worker, "back", settings=_LONG_LEASES),
    Scenario("release.after_write", stops_the_worker, "back", settings=_LONG_LEASES),
    Scenario("reap.after_read", lost_a_worker, "front", is_alone=True),
    Scenario("reap.after_write", lost_a_worker, "front", is_alone=True),
    Scenario("reap.reply", lost_a_worker, "front", is_alone=True),
    Scenario("cancel.after_write", cancels_what_waits, "front"),
    Scenario("cancel.after_write", cancels_what_runs, "front"),
    Scenario("cancel.reply", cancels_what_waits, "front"),
    Scenario("cancel.reply", cancels_what_runs, "front"),
    Scenario("replays.after_take", replays_many, "front", is_alone=True),
    Scenario("replays.after_one", replays_many, "front", is_alone=True),
    Scenario("replays.before_settle", replays_many, "front", is_alone=True),
    Scenario("discard.after_write", gives_up, "front"),
    Scenario("retry_now.after_write", need_not_wait, "front"),
    Scenario("replay.after_write", queues_anew, "front"),
    Scenario("replay.reply", queues_anew, "front"),
    Scenario("queue_timeout.after_write", waits_for_too_long, "front", is_alone=True),
    Scenario("expire.after_write", misses_a_deadline, "front", is_alone=True),
    Scenario("expire.reply", misses_a_deadline, "front", is_alone=True),
    Scenario("collect.after_keep", gets_rubbish, "back", is_alone=True, where="servers"),
    Scenario("collect.after_keep", fails, "back", where="embedded"),
    Scenario("keep.reply", gets_rubbish, "back", is_alone=True, where="servers"),
)
