"""The MongoDB store on a real server: what it refuses, lost replies, outages, crashes, and how it asks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from motor.frameworks.asyncio import max_workers, run_on_executor
from pymongo import MongoClient

from taskframework.errors import (
    StoreClosedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    TaskUnreadableError,
    ValueNotStorableError,
)
from taskframework.model.attempts import Claim, Complete
from taskframework.model.drivers import DISPATCH
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MakeDue, MarkPublished
from taskframework.model.query import TaskFilter
from taskframework.model.records import Record, RecordUnreadableError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.streams import STREAMS, StreamKey, TakePositions
from taskframework.model.task import Task, new_claim_id, new_task_id
from taskframework.model.traffic import CountedTasks
from taskframework.model.transitions import Fence
from taskframework.operations.health import Health
from taskframework.stores.mongo.client import APP_NAME, MongoDriver
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.mongo.transitions import build_write
from taskframework.stores.replies import Inserted
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.support.servers import MongoServer

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
both_drivers = pytest.mark.parametrize("driver", ["motor", "pymongo"])
#: The command runs, and its reply says that nobody knows whether a majority has it.
APPLIED_BUT_UNSURE = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}
#: The same from a primary that steps down meanwhile: the driver may try again.
APPLIED_BUT_LABELLED = {**APPLIED_BUT_UNSURE, "errorLabels": ["RetryableWriteError"]}
#: The command does not run, and the driver is not told that it may try again.
NOT_APPLIED = {"errorCode": 11602, "errorLabels": []}
LOST = pytest.mark.parametrize(
    "fault", [APPLIED_BUT_UNSURE, APPLIED_BUT_LABELLED, NOT_APPLIED, {"closeConnection": True}]
)


@pytest.fixture
def _sockets_of_a_dead_server() -> Iterator[None]:
    """pymongo leaves the socket to the garbage collector when it is closed while it tries to connect."""
    yield
    gc.collect()


def outage(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test in which the server goes away."""
    ignored = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    marked: Callable[..., Any] = pytest.mark.usefixtures("_sockets_of_a_dead_server")(ignored(test))
    return marked


@asynccontextmanager
async def opened(url: str, driver: MongoDriver = "motor", **options: Any) -> AsyncIterator[MongoStore]:
    store = MongoStore(url, driver=driver, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def failing(server: MongoServer, *commands: str, times: int = 1, **fault: Any) -> Iterator[None]:
    """The store's next `times` calls of these commands fail like that; each of them must come."""
    with server.client() as client:
        data = {"failCommands": commands, "appName": APP_NAME, **fault}
        on = {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data}
        before = client.admin.command(on)["count"]
        try:
            yield
        finally:
            after = client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})["count"]
        assert after - before == times, "the fault did not happen"


def claim_of(task: Task) -> Claim:
    return Claim(task.task_id, task.dispatch_epoch, new_claim_id(), "worker-1", MINUTE)


async def claimed(store: MongoStore, count: int, **fields: Any) -> list[Fence]:
    tasks = [new_task(now=store.now() - SECOND, **fields) for _ in range(count)]
    await asyncio.gather(*(insert_one(store, task) for task in tasks))
    running = await asyncio.gather(*(store.apply(claim_of(task)) for task in tasks))
    return [Fence(task.task_id, task.fencing_token, task.lease.claim_id) for task in running if task and task.lease]


@both_drivers
async def test_drift_of_indexes_is_named(driver: MongoDriver, mongo_url: str) -> None:
    new = await MongoStore(mongo_url, driver=driver).inspect()
    assert new.problems == (), "a new database has no drift"
    assert new.facts["replica set"].endswith(" (1 member)")
    async with opened(mongo_url, driver) as store, client(mongo_url) as tasks:
        assert (await store.inspect()).problems == ()
        await asyncio.to_thread(tasks.drop_index, "due")
        await asyncio.to_thread(tasks.drop_index, "lease")
        await asyncio.to_thread(tasks.create_index, "lease.worker_id", name="lease")
        missing, different = (await store.inspect()).problems
        assert missing.startswith("index 'due' is missing. Every command that opens the store creates it")
        with pytest.raises(StoreError, match="an index is missing"):
            await store.due(DISPATCH, 1)
        assert different.startswith(
            "index 'lease': key is [('lease.worker_id', 1)] instead of [('lease.expires_at', 1)]"
        )

        with pytest.raises(StoreMisconfiguredError, match=r"'lease'.*Drop it"):
            await MongoStore(mongo_url, driver=driver).open()
        await asyncio.to_thread(tasks.drop_index, "lease")
        async with opened(mongo_url, driver) as repaired:
            assert (await repaired.inspect()).problems == ()


@both_drivers
async def test_indexes_that_are_dropped_by_hand_are_created_again(
    driver: MongoDriver, mongo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(mongo_url, driver) as store, client(mongo_url) as tasks:
        for name in ("due", "lease"):
            await asyncio.to_thread(tasks.drop_index, name)
        with pytest.raises(StoreError, match="an index is missing"):
            await store.due(DISPATCH, 1)

        async def is_repaired() -> bool:
            return (await store.inspect()).problems == ()

        await eventually(is_repaired)

        async def is_used() -> bool:  # the server lists an index a moment before it uses it
            with contextlib.suppress(StoreError):
                await store.due(DISPATCH, 1)
                return True
            return False

        await eventually(is_used)
        said = "indexes of MongoDB were missing; created again: due, lease"
        await eventually(lambda: caplog.messages == [said])


async def test_a_user_without_the_right_to_create_indexes_tries_it_seldom(
    mongo_server: MongoServer, mongo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "taskframework")
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        await asyncio.to_thread(tasks.drop_index, "due")
        with failing(mongo_server, "createIndexes", errorCode=13):
            for _ in range(3):
                with pytest.raises(StoreError, match="an index is missing"):
                    await store.due(DISPATCH, 1)
                await eventually(lambda: "missing indexes are not created" in caplog.text)
    assert [record.levelname for record in caplog.records if "missing indexes" in record.getMessage()] == ["DEBUG"]


async def test_a_call_to_a_store_that_is_not_open_raises_an_error(mongo_url: str) -> None:
    with pytest.raises(StoreClosedError, match="not open"):
        await MongoStore(mongo_url).get("t", EVERYONE)


@both_drivers
@LOST
@pytest.mark.parametrize("together", [1, 5])
async def test_a_claim_without_a_reply_is_won_once(
    driver: MongoDriver, fault: dict[str, Any], together: int, mongo_server: MongoServer, mongo_url: str
) -> None:
    async with opened(mongo_url, driver) as store:
        tasks = [new_task(now=store.now() - SECOND) for _ in range(together)]
        await asyncio.gather(*(insert_one(store, task) for task in tasks))
        with failing(mongo_server, "findAndModify", "update", **fault):
            running = await asyncio.gather(*(store.apply(claim_of(task)) for task in tasks))
        assert [(task.fencing_token, task.attempts, task.sequence) for task in running if task] == [
            (1, 1, 2)
        ] * together


@both_drivers
@LOST
@pytest.mark.parametrize("together", [1, 5])
async def test_a_completion_without_a_reply_is_made_once(
    driver: MongoDriver, fault: dict[str, Any], together: int, mongo_server: MongoServer, mongo_url: str
) -> None:
    async with opened(mongo_url, driver) as store:
        completions = [Complete(fence, "worker-1", "done") for fence in await claimed(store, together)]
        with failing(mongo_server, "findAndModify", "update", **fault):
            done = await asyncio.gather(*(store.apply(completion) for completion in completions))
        assert [(task.status, task.result, task.sequence) for task in done if task] == [
            (TaskStatus.COMPLETED, "done", 3)
        ] * together
        again = await asyncio.gather(*(store.apply(completion) for completion in completions))
        assert all(task in (None, first) for first, task in zip(done, again, strict=True)), "it is made once"


@both_drivers
async def test_a_reply_lost_while_reading_back_is_asked_for_again(
    driver: MongoDriver, mongo_server: MongoServer, mongo_url: str
) -> None:
    async with opened(mongo_url, driver) as store:
        fences = await claimed(store, 3)
        with failing(mongo_server, "update", "find", times=4, **NOT_APPLIED):
            done = await asyncio.gather(*(store.apply(Complete(fence, "worker-1", 1)) for fence in fences))
        assert [task.sequence for task in done if task] == [3, 3, 3]


@both_drivers
@LOST
async def test_positions_in_several_streams_are_taken_once_though_a_reply_is_lost(
    driver: MongoDriver, fault: dict[str, Any], mongo_server: MongoServer, mongo_url: str
) -> None:
    streams = [StreamKey("alice", f"stream-{n}") for n in range(3)]
    takes = [TakePositions(stream, MINUTE, "serial", 2) for stream in streams]
    async with opened(mongo_url, driver) as store:
        await store.take_positions([replace(take, count=5, by="before") for take in takes])
        with failing(mongo_server, "update", **fault):
            states = [STREAMS.content(record) for record in await store.take_positions(takes)]
        assert [take.first_in(state) for take, state in zip(takes, states, strict=True)] == [5] * 3
        assert [state.next_position for state in states] == [7] * 3


@both_drivers
@LOST
async def test_a_lone_insert_without_a_reply_is_new(
    driver: MongoDriver, fault: dict[str, Any], mongo_server: MongoServer, mongo_url: str
) -> None:
    async with opened(mongo_url, driver) as store:
        task = new_task(now=store.now())
        with failing(mongo_server, "insert", **fault):
            assert (await insert_one(store, task)).is_new
        again = await insert_one(store, task)
        assert (again.is_new, again.task.task_id) == (False, task.task_id)


@both_drivers
async def test_single_marks_that_come_together_share_writes(driver: MongoDriver, mongo_url: str) -> None:
    async with opened(mongo_url, driver) as store:
        tasks = [new_task(now=store.now() - MINUTE) for _ in range(300)]
        await store.insert(tasks)
        with MongoClient[dict[str, Any]](mongo_url) as client:
            before = client.admin.command("serverStatus")["metrics"]["commands"]["update"]["total"]
            await asyncio.gather(*(store.mark(MakeDue(task.task_id, task.dispatch_epoch, MINUTE)) for task in tasks))
            writes = client.admin.command("serverStatus")["metrics"]["commands"]["update"]["total"] - before
        found = await store.get_many([task.task_id for task in tasks], EVERYONE)
        assert all(task.next_dispatch_at > store.now() for task in found.values() if task.next_dispatch_at)
        assert len(found) == 300
        assert writes < 30, "others may write to this server at the same time, but nobody 300 times"


@both_drivers
async def test_one_write_of_many_that_the_server_refuses_fails_alone(driver: MongoDriver, mongo_url: str) -> None:
    half = "x" * (9 * 2**20)  # of it twice is more than a document may have
    async with opened(mongo_url, driver) as store:
        claims = []
        for n in range(6):
            task = await insert_one(store, new_task(now=store.now()).evolve(parameters=half if n == 2 else n))
            claims.append(Claim(task.task.task_id, 1, new_claim_id(), "worker", MINUTE))
            await store.apply(claims[-1])
        fences = [Fence(claim.task_id, 1, claim.claim_id) for claim in claims]
        replies = await asyncio.gather(
            *(store.apply(Complete(fence, "worker", half if n == 2 else n)) for n, fence in enumerate(fences)),
            return_exceptions=True,
        )
        refused = replies.pop(2)
        assert isinstance(refused, ValueNotStorableError)
        assert isinstance(refused, StoreError)
        assert "larger than the 16 MB that MongoDB allows. Store large data elsewhere" in str(refused)
        assert [(task.status, task.result) for task in replies if isinstance(task, Task)] == [
            (TaskStatus.COMPLETED, n) for n in (0, 1, 3, 4, 5)
        ]
        with pytest.raises(ValueNotStorableError, match="larger than the 16 MB"):
            await store.apply(Complete(fences[2], "worker", half))


@pytest.mark.parametrize("is_one_call", [True, False])
async def test_the_twin_of_a_task_that_nobody_can_read_fails_alone(mongo_url: str, is_one_call: bool) -> None:
    async with opened(mongo_url) as store:
        there = await insert_one(store, new_task(now=store.now()))
        with MongoClient[dict[str, Any]](mongo_url) as client:
            newer = {"$set": {"status": "PAUSED"}}
            client.get_default_database()["tasks"].update_one({"_id": there.task.task_id}, newer)
        tasks = [new_task(now=store.now(), task_id=there.task.task_id if n == 1 else new_task_id()) for n in range(4)]
        replies: Sequence[object] = (
            await store.insert(tasks)
            if is_one_call
            else await asyncio.gather(*(insert_one(store, task) for task in tasks), return_exceptions=True)
        )
        assert [type(reply) for reply in replies] == [Inserted, TaskUnreadableError, Inserted, Inserted]
        assert all([await store.get(task.task_id, EVERYONE) for task in tasks if task is not tasks[1]])


@pytest.mark.parametrize(
    "nonsense", [{"task_type": None}, {"task_type": 7}, {"not_before": None}, {"not_before": "now"}]
)
async def test_a_task_that_was_changed_by_hand_harms_no_other(nonsense: dict[str, Any], mongo_url: str) -> None:
    async with opened(mongo_url) as store:
        bad, good = [(await insert_one(store, new_task(now=store.now() - MINUTE))).task for _ in range(2)]
        with MongoClient[dict[str, Any]](mongo_url) as client:
            client.get_default_database()["tasks"].update_one({"_id": bad.task_id}, {"$set": nonsense})

        assert list((await store.list_tasks(EVERYONE, TaskFilter(), limit=10)).items) == [good]
        assert [found.task_id for found in await store.due(DISPATCH, 10)] == [good.task_id]
        [lane] = (await store.count_lanes(CountedTasks.WAITING, 10, due_before=store.now())).counted
        assert (lane.task_type, lane.count, lane.claimable_since) == (good.task_type, 1, good.not_before)
        with pytest.raises(TaskUnreadableError):
            await store.get(bad.task_id, EVERYONE)


@pytest.mark.parametrize("next_position", ["many", None])
async def test_a_record_with_which_the_server_cannot_compute_is_named(next_position: object, mongo_url: str) -> None:
    async with opened(mongo_url) as store:
        stream = StreamKey("alice", "k")
        data = {"mode": "serial", "next_position": next_position, "taken": []}
        await store.write_records([Record(stream.record_id, STREAMS.name, data)])
        with pytest.raises(RecordUnreadableError, match="stream/alice/k"):
            STREAMS.content((await store.take_positions([TakePositions(stream, MINUTE, "serial", 1)]))[0])


async def test_a_withdrawn_access_right_is_a_misconfiguration_error(mongo_server: MongoServer, mongo_url: str) -> None:
    async with opened(mongo_url) as store:
        with failing(mongo_server, "insert", "find", times=2, errorCode=13):
            [written] = await store.insert([new_task(now=store.now())])
            assert isinstance(written, StoreMisconfiguredError)
            assert "role readWrite" in written.hint
            with pytest.raises(StoreMisconfiguredError, match="role readWrite"):
                await store.list_tasks(EVERYONE, TaskFilter(), limit=1)
        with failing(mongo_server, "delete", errorCode=13):  # readiness asks this way whether it may write
            assert (await Health(store).readiness()).checks["store"].startswith("MongoDB refused access")
        assert (await Health(store).readiness()).checks["store"] == "ok"


@both_drivers
@LOST
async def test_an_insert_without_a_reply_is_new(
    driver: MongoDriver, fault: dict[str, Any], mongo_server: MongoServer, mongo_url: str
) -> None:
    async with opened(mongo_url, driver) as store:
        tasks = [new_task(now=store.now()) for _ in range(3)]
        old = await insert_one(store, new_task(now=store.now()))
        with failing(mongo_server, "insert", **fault):
            answers = await asyncio.gather(
                *(insert_one(store, task) for task in tasks),
                insert_one(store, new_task(task_id=old.task.task_id, now=store.now() + SECOND)),
            )
        assert [answer.is_new for answer in answers] == [True, True, True, False]
        assert [answer.task.task_id for answer in answers] == [*(task.task_id for task in tasks), old.task.task_id]


@both_drivers
async def test_no_crowd_of_slow_calls_makes_a_heartbeat_late(
    driver: MongoDriver, mongo_server: MongoServer, mongo_url: str
) -> None:
    group = 15 * (os.cpu_count() or 1)  # three times as many as motor has threads
    async with opened(mongo_url, driver) as store:
        (fence,) = await claimed(store, 1)
        slow = {"blockConnection": True, "blockTimeMS": 2000}
        with failing(mongo_server, "aggregate", times=group, **slow):
            calls = [asyncio.create_task(store.count_by_status()) for _ in range(group)]
            assert fence in await store.renew([fence], MINUTE)
            assert await store.cancel_requests([fence]) == {}
            await store.ping()
            assert not any(call.done() for call in calls), "the heartbeat did not wait for them"
            await asyncio.gather(*calls, return_exceptions=True)


@outage
@both_drivers
async def test_a_server_that_is_away_is_an_error_in_time(
    driver: MongoDriver, mongo_server: MongoServer, mongo_url: str
) -> None:
    async with opened(mongo_url, driver, timeout=2 * SECOND) as store:
        (fence,) = await claimed(store, 1)
        task = (await insert_one(store, new_task(now=store.now()))).task
        await asyncio.to_thread(mongo_server.kill)
        calls = [
            insert_one(store, new_task()),
            store.apply(claim_of(task)),
            store.apply(Complete(fence, "worker-1", 1)),
            store.apply(Cancel(task.task_id, EVERYONE, "alice", None)),
            store.mark(MarkPublished(task.task_id, 1)),
            store.renew([fence], MINUTE),
            store.get(task.task_id, EVERYONE),
            store.list_tasks(EVERYONE, TaskFilter(), limit=1),
            store.count_by_status(),
            store.ping(),
        ]
        async with asyncio.timeout(60):  # far above the store's time-out, far below waiting for ever
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailableError] * len(calls)
        report = await store.inspect()
        assert len(report.problems) == 1

        await asyncio.to_thread(mongo_server.start)
        await eventually(lambda: _answers(store), what="the store finds the server again")
        assert await store.apply(Complete(fence, "worker-1", 1)) is not None


async def _answers(store: MongoStore) -> bool:
    try:
        await store.ping()
    except StoreUnavailableError:
        return False
    return True


async def test_a_reason_reaches_the_caller_without_the_topology(unused_tcp_port: int) -> None:
    store = MongoStore(f"mongodb://user:secret@127.0.0.1:{unused_tcp_port}/x", timeout=SECOND)
    with pytest.raises(StoreUnavailableError, match="Connection refused") as away:
        await store.open()
    assert "secret" not in str(away.value)
    assert "Topology" not in str(away.value)


@outage
@both_drivers
async def test_acknowledged_writes_survive_kill_9(
    driver: MongoDriver, mongo_server: MongoServer, mongo_url: str
) -> None:
    acknowledged: dict[str, TaskStatus] = {}
    enough = asyncio.Event()

    async def live(store: MongoStore) -> None:
        while True:
            task = (await insert_one(store, new_task(now=store.now() - SECOND))).task
            acknowledged[task.task_id] = TaskStatus.QUEUED
            running = await store.apply(claim_of(task))
            assert running is not None
            assert running.lease is not None
            acknowledged[task.task_id] = TaskStatus.RUNNING
            fence = Fence(task.task_id, running.fencing_token, running.lease.claim_id)
            assert await store.apply(Complete(fence, "worker-1", 1)) is not None
            acknowledged[task.task_id] = TaskStatus.COMPLETED
            if list(acknowledged.values()).count(TaskStatus.COMPLETED) > 200:
                enough.set()

    async with opened(mongo_url, driver, timeout=3 * SECOND) as store:
        lives = [asyncio.create_task(live(store)) for _ in range(30)]
        await enough.wait()
        await asyncio.to_thread(mongo_server.kill)
        ends = await asyncio.gather(*lives, return_exceptions=True)
        assert {type(end) for end in ends} == {StoreUnavailableError}
        await asyncio.to_thread(mongo_server.start)
        await eventually(lambda: _answers(store), what="the store finds the server again")
        true = Counter(task.status for task in (await store.list_tasks(EVERYONE, TaskFilter(), limit=500)).items)
        assert +Counter(await store.count_by_status()) == true, "the server's own counter is wrong after a kill"
        order = list(TaskStatus)  # in the order of a life: QUEUED, RUNNING, …, COMPLETED
        for task_id, status in acknowledged.items():
            found = await store.get(task_id, EVERYONE)
            assert found is not None
            assert order.index(found.status) >= order.index(status)


@both_drivers
async def test_a_step_down_is_survived(driver: MongoDriver, mongo_server: MongoServer, mongo_url: str) -> None:
    async with opened(mongo_url, driver) as store:
        fences = await claimed(store, 20)
        stepping = asyncio.create_task(asyncio.to_thread(mongo_server.step_down))
        done = await asyncio.gather(*(store.apply(Complete(fence, "worker-1", 1)) for fence in fences))
        await stepping
        assert [task.sequence for task in done if task] == [3] * 20


@both_drivers
async def test_the_store_tells_the_time_of_the_server(driver: MongoDriver, mongo_url: str) -> None:
    async with opened(mongo_url, driver) as store:
        task = (await insert_one(store, new_task(now=store.now() - SECOND))).task
        before = store.now()
        running = await store.apply(claim_of(task))
        assert running is not None
        assert before - SECOND < running.updated_at < store.now() + SECOND
        assert store.now().microsecond % 1000 == 0


def test_a_request_without_a_rule_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match=r"str has no rule for MongoDB; add it to .*stores/mongo"):
        build_write(["no transition"])


@both_drivers
async def test_the_address_cannot_weaken_the_promises(driver: MongoDriver, mongo_url: str) -> None:
    weak = f"{mongo_url}&w=1&journal=false&readConcernLevel=local&retryWrites=false"
    async with opened(weak, driver) as store, client(mongo_url) as tasks:
        await asyncio.to_thread(tasks.database.command, "profile", 2)
        await claimed(store, 2)
        await store.mark(MarkPublished("t", 1))
        await store.get("t", EVERYONE)
        await asyncio.to_thread(tasks.database.command, "profile", 0)
        found = await asyncio.to_thread(lambda: list(tasks.database["system.profile"].find({"ns": tasks.full_name})))
    commands = [operation["command"] for operation in found]
    concerns = [command["writeConcern"] for command in commands if "writeConcern" in command]
    levels = [command["readConcern"]["level"] for command in commands if "readConcern" in command]
    assert concerns
    assert [concern for concern in concerns if not concern.items() >= {"w": "majority", "j": True}.items()] == []
    assert set(levels) == {"majority"}


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Any]:
    """The test's own look at the tasks."""
    opened: MongoClient[dict[str, Any]] = MongoClient(url)
    try:
        yield opened.get_default_database()["tasks"]
    finally:
        opened.close()


async def test_a_call_that_gets_no_thread_of_the_driver_ends_too(mongo_url: str) -> None:
    """The driver's own limit begins only when one of its threads takes the call up."""
    free = threading.Event()
    async with opened(mongo_url, timeout=2 * SECOND) as store:
        loop = asyncio.get_running_loop()
        run: Any = run_on_executor
        blocked = [run(loop, free.wait) for _ in range(max_workers)]
        try:
            with pytest.raises(StoreUnavailableError, match=r"no answer within 3 s"):
                await store.list_tasks(EVERYONE, TaskFilter(), limit=1)
        finally:
            free.set()
            await asyncio.gather(*blocked)
        assert (await store.list_tasks(EVERYONE, TaskFilter(), limit=1)).items == ()
