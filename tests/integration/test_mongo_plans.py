"""How MongoDB answers each question of the store: by an index, in its order, reading little more than it returns.

The data make every shortcut expensive: what most tasks are is never what is asked for, and what is asked for is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from taskframework.model.attempts import Claim, Complete
from taskframework.model.drivers import DRIVERS
from taskframework.model.marks import MarkDispatched, MarkPublished, PostponeRelay, ReserveDispatch
from taskframework.model.options import StreamPlace
from taskframework.model.query import DeadMessage, RoundOfSubtasks, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import DEAD, LIVE, Priority, TaskStatus
from taskframework.model.streams import StreamKey
from taskframework.model.task import Task, new_claim_id
from taskframework.model.task_fields import Lease, LimitWait, ParentLink, Subtasks
from taskframework.model.traffic import CountedTasks
from taskframework.model.transitions import Fence
from taskframework.stores.mongo.documents import document_of
from taskframework.stores.mongo.queries import MAX_GROUPED_SUBTASKS
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.support.mongo import MongoServer

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
LIMIT = 5
#: What a list over all statuses reads beyond its page: the first entry of each, and one more entry for "next page".
SLACK = len(TaskStatus) + 2

Call = Callable[[MongoStore], Awaitable[Any]]


def filled() -> list[Task]:
    """Twenty rare tasks of each status, old, among four thousand that hide them."""
    now = MongoStoreClock.now
    rare = [
        new_task(
            now=now - HOUR - n * SECOND,
            status=status,
            user_id="rare",
            task_type="rare",
            priority="low",
            deadline=now - MINUTE,
            parent=ParentLink("parent", 0, n),
            not_before=now - HOUR,
            finished_at=now - HOUR - n * SECOND if status.is_final else None,
            publish_at=None if status.is_final else now - MINUTE,
            published_sequence=int(status.is_final),
            next_dispatch_at=now - MINUTE,
            lease=Lease("gone", "claim", now - MINUTE) if status is TaskStatus.RUNNING else None,
            waits_for_limit=LimitWait("slots/rare", 1, now + HOUR),
        )
        for status in TaskStatus
        for n in range(20)
    ]
    usual = [
        new_task(
            now=now - n * SECOND,
            status=status,
            parent=ParentLink("large", 0, n),
            not_before=now,
            deadline=now + HOUR,
            finished_at=now - n * SECOND if status.is_final else None,
            publish_at=None if status.is_final else now + HOUR,
            published_sequence=1,
            next_dispatch_at=now + HOUR,
            lease=Lease("worker-1", "claim", now + HOUR) if status is TaskStatus.RUNNING else None,
            waits_for_limit=LimitWait("slots/usual", 1, now + HOUR),
        )
        for status in (TaskStatus.QUEUED, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.RUNNING)
        for n in range(1_000)
    ]
    return rare + usual


class MongoStoreClock:
    """The time of the data: now, once, for a server on this machine."""

    now = new_task().created_at


@pytest.fixture(scope="module")
def database(mongo_server: MongoServer) -> Iterator[Any]:
    """The data, with the store's indexes; what a test changes in them is a few tasks."""
    with mongo_server.client() as client:
        asyncio.run(_prepared(mongo_server.url_of("plans")))
        client["plans"]["tasks"].insert_many([document_of(task) for task in filled()])
        messages = [DeadMessage(f"m-{n}", b"", {}, "q", "r", MongoStoreClock.now - n * SECOND) for n in range(300)]
        asyncio.run(_prepared(mongo_server.url_of("plans"), messages))
        yield client["plans"]
        client.drop_database("plans")


async def _prepared(url: str, messages: Sequence[DeadMessage] = ()) -> None:
    store = MongoStore(url)
    await store.open()
    for message in messages:
        await store.keep_dead_message(message)
    await store.close()


@pytest.fixture
async def store(mongo_server: MongoServer, database: Any) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo_server.url_of("plans"))
    await store.open()
    yield store
    await store.close()


LARGE = RoundOfSubtasks("large", 0, 1)
RARE = Scope.of("rare")
LISTS = {
    "all": (EVERYONE, TaskFilter()),
    "owner": (RARE, TaskFilter()),
    "status": (EVERYONE, TaskFilter(TaskStatus.WAITING)),
    "owner and status": (RARE, TaskFilter(TaskStatus.COMPLETED)),
    "type": (EVERYONE, TaskFilter(task_type="rare")),
    "dead": (EVERYONE, TaskFilter(dead=True)),
    "time": (EVERYONE, TaskFilter(created_after=MongoStoreClock.now - 2 * HOUR, created_before=MongoStoreClock.now)),
    "parent": (EVERYONE, TaskFilter(parent_task_id="large")),
    "parent and owner": (Scope.of("alice"), TaskFilter(parent_task_id="large")),
    "parent and status": (EVERYONE, TaskFilter(TaskStatus.FAILED, parent_task_id="large")),
    "parent and live status": (EVERYONE, TaskFilter(TaskStatus.RUNNING, parent_task_id="large")),
    "parent, owner, type and status": (RARE, TaskFilter(TaskStatus.FAILED, "rare", "parent")),
}
#: No index has just these; the server reads on in the narrowest. Here the rare tasks are 200 of 4,200.
READ_THROUGH = {
    "type and status": (EVERYONE, TaskFilter(TaskStatus.COMPLETED, "rare")),
    "owner and type": (Scope.of("usual"), TaskFilter(task_type="rare")),
    "owner, type and status": (RARE, TaskFilter(TaskStatus.FAILED, "test-task")),
}
QUESTIONS: dict[str, Call] = {
    "get": lambda store: store.get("unknown", RARE),
    **{f"due by {driver.name}": partial(MongoStore.due, driver=driver, limit=LIMIT) for driver in DRIVERS},
    **{f"upcoming by {driver.name}": partial(MongoStore.upcoming, driver=driver, limit=LIMIT) for driver in DRIVERS},
    "put off": lambda store: store.put_off("rare", store.now() - 2 * HOUR, store.now() - HOUR, LIMIT),
    "waiting for a limit": lambda store: store.waiting_for("slots/rare", LIMIT),
    "claims": lambda store: store.claims_of(["unknown"]),
    "newest running": lambda store: store.newest_running("test-task", Priority.NORMAL),
    "dead messages": lambda store: store.list_dead_messages(limit=LIMIT, cursor=None),
    "one dead message": lambda store: store.get_dead_message("m-7"),
    "purge done": lambda store: store.purge(finished=HOUR, dead_letters=None, limit=LIMIT),
    "purge dead": lambda store: store.purge(finished=None, dead_letters=HOUR, limit=LIMIT),
    "purge by their own time": lambda store: store.purge(finished=None, dead_letters=None, limit=LIMIT),
    "purge messages": lambda store: store.purge(finished=None, dead_letters=2 * MINUTE, limit=LIMIT),
}


async def asked(database: Any, store: MongoStore, call: Call) -> list[dict[str, Any]]:
    """What the server did on the store's collections for one call."""
    await asyncio.to_thread(_profile, database)
    await call(store)
    return await asyncio.to_thread(_profiled, database)


def _profile(database: Any) -> None:
    database.command("profile", 0)
    database["system.profile"].drop()
    database.command("profile", 2)


def _profiled(database: Any) -> list[dict[str, Any]]:
    database.command("profile", 0)
    ours = {"ns": {"$in": [f"plans.{name}" for name in ("tasks", "dead_letters")]}, "planSummary": {"$exists": True}}
    return list(database["system.profile"].find(ours))


def check(operations: list[dict[str, Any]], *, returned: int | None = None) -> None:
    """Every operation went by an index, sorted nothing, and read little more than it gave."""
    assert operations, "nothing was asked"
    for operation in operations:
        told = f"{operation['planSummary']}: {operation['command']}"
        assert "COLLSCAN" not in told
        assert not operation.get("hasSortStage"), told
        gave = operation.get("nreturned", operation.get("nMatched", operation.get("ndeleted", 0)))
        if returned is not None:
            assert gave == returned, told
        assert operation.get("keysExamined", 0) <= 3 * gave + SLACK, told
        assert operation.get("docsExamined", 0) <= gave + SLACK, told


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_question_reads_little_more_than_it_returns(name: str, database: Any, store: MongoStore) -> None:
    check(await asked(database, store, QUESTIONS[name]))


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_reads_little_more_than_its_pages(name: str, database: Any, store: MongoStore) -> None:
    scope, filter = LISTS[name]
    first = await store.list_tasks(scope, filter, limit=LIMIT)
    assert first.next_cursor is not None
    for cursor in (None, first.next_cursor):
        call = partial(MongoStore.list_tasks, scope=scope, filter=filter, limit=LIMIT, cursor=cursor)
        check(await asked(database, store, call), returned=LIMIT + 1)


@pytest.mark.parametrize("name", LISTS)
async def test_a_search_looks_through_no_more_than_its_part(
    name: str, database: Any, store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.stores.mongo.search.SEARCH_PAGE_SIZE", LIMIT)
    scope, filter = LISTS[name]
    sought = replace(filter, error="nowhere")
    looked, _ = await asked(database, store, lambda store: store.search_tasks(scope, sought, limit=LIMIT))
    assert not looked.get("hasSortStage")
    assert looked["docsExamined"] <= LIMIT + SLACK
    assert looked["keysExamined"] <= 3 * LIMIT + SLACK


@pytest.mark.parametrize("name", READ_THROUGH)
async def test_lists_without_their_own_index_are_read_through_the_narrowest_one(
    name: str, database: Any, store: MongoStore
) -> None:
    (operation,) = await asked(database, store, lambda store: store.list_tasks(*READ_THROUGH[name], limit=LIMIT))
    assert "COLLSCAN" not in operation["planSummary"]
    assert not operation.get("hasSortStage")
    assert operation["docsExamined"] <= 200


@pytest.mark.parametrize("together", [1, 8])
async def test_writes_find_their_tasks_by_id(together: int, database: Any, store: MongoStore) -> None:
    past = store.now() - MINUTE
    tasks = [new_task(now=past, next_dispatch_at=past) for _ in range(together)]
    fences = [Fence(task.task_id, 1, new_claim_id()) for task in tasks]

    async def a_life(store: MongoStore) -> None:
        await asyncio.gather(*(insert_one(store, task) for task in tasks))
        assert all(await asyncio.gather(*(store.apply(_reservation(task)) for task in tasks)))
        await store.mark(*(MarkDispatched(task.task_id, 1, SECOND, MINUTE) for task in tasks))
        claims = [Claim(fence.task_id, 1, fence.claim_id, "worker-1", HOUR, "test-task") for fence in fences]
        assert all(await asyncio.gather(*map(store.apply, claims)))
        assert len(await store.renew(fences, HOUR)) == together
        assert await store.cancel_requests(fences) == {}
        assert all(await asyncio.gather(*(store.apply(Complete(fence, "worker-1", 1)) for fence in fences)))
        assert all(await asyncio.gather(*(store.apply(PostponeRelay(task.task_id, MINUTE)) for task in tasks)))
        await store.mark(*(MarkPublished(task.task_id, 3) for task in tasks))

    operations = await asked(database, store, a_life)
    assert len(operations) >= 9
    assert {operation["planSummary"] for operation in operations} <= {"IXSCAN { _id: 1 }", "IDHACK"}
    check([operation for operation in operations if operation["op"] != "insert"])


async def test_completed_tasks_are_counted_without_reading_them(database: Any, store: MongoStore) -> None:
    async def count() -> list[dict[str, Any]]:
        operations = await asked(database, store, lambda store: store.count_by_status())
        counts = [operation for operation in operations if operation["planSummary"] != "RECORD_STORE_FAST_COUNT"]
        for one in counts:
            assert one["planSummary"] == "COUNT_SCAN { status: 1, created_at: -1, _id: -1 }"
            assert one["docsExamined"] == 0
        return counts

    assert len(await count()) == 2, "the server's own counter is compared once with a true count"
    (counted,) = await count()
    completed = (await store.count_by_status())[TaskStatus.COMPLETED]
    assert completed == await asyncio.to_thread(database["tasks"].count_documents, {"status": "COMPLETED"})
    uncompleted = await asyncio.to_thread(database["tasks"].count_documents, {"status": {"$ne": "COMPLETED"}})
    assert counted["keysExamined"] <= uncompleted + SLACK


@pytest.mark.parametrize("selection", CountedTasks)
async def test_a_count_reads_no_more_than_its_bound(selection: CountedTasks, database: Any, store: MongoStore) -> None:
    now = MongoStoreClock.now
    for since in (None, now - MINUTE):
        call = partial(MongoStore.count_lanes, selection=selection, most=LIMIT, due_before=now, since=since)
        (operation,) = await asked(database, store, call)
        assert "COLLSCAN" not in operation["planSummary"]
        assert operation["keysExamined"] <= LIMIT + 3 * SLACK
        assert operation["docsExamined"] <= LIMIT + SLACK


@pytest.mark.parametrize("selection", [CountedTasks.WAITING, CountedTasks.RETRYING])
async def test_the_tasks_of_a_queue_are_counted_without_reading_them(
    selection: CountedTasks, database: Any, store: MongoStore
) -> None:
    for queue in (("test-task", Priority.NORMAL), ("rare", Priority.LOW)):
        now = MongoStoreClock.now
        call = partial(MongoStore.count_lanes, selection=selection, most=LIMIT, due_before=now, queue=queue)
        (operation,) = await asked(database, store, call)
        assert operation["planSummary"].startswith("IXSCAN { task_type: 1, priority: 1, status: 1, ")
        assert not operation.get("hasSortStage")
        assert operation["keysExamined"] <= LIMIT + SLACK
        assert operation["docsExamined"] == 0


async def test_a_round_of_subtasks_is_counted_without_reading_them(database: Any, store: MongoStore) -> None:
    few, counted = await asked(database, store, lambda store: store.count_subtasks(LARGE))
    assert few["planSummary"].startswith("IXSCAN { parent.task_id: 1, status: 1, ")
    assert few["keysExamined"] <= MAX_GROUPED_SUBTASKS + SLACK
    assert counted["planSummary"].startswith("COUNT_SCAN { parent.task_id: 1, status: 1, ")
    assert counted["keysExamined"] <= 4_000 + SLACK
    assert {operation["docsExamined"] for operation in (few, counted)} == {0}
    assert {operation["command"]["readConcern"]["level"] for operation in (few, counted)} == {"snapshot"}
    kinds = (TaskStatus.QUEUED, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.RUNNING)
    assert await store.count_subtasks(LARGE) == dict.fromkeys(kinds, 1_000)


async def test_a_small_round_is_counted_at_once(database: Any, store: MongoStore) -> None:
    small = RoundOfSubtasks("parent", 0, 1)
    (counted,) = await asked(database, store, lambda store: store.count_subtasks(small))
    assert counted["docsExamined"] == 0
    there = await asyncio.to_thread(database["tasks"].count_documents, {"parent.task_id": "parent"})
    assert sum((await store.count_subtasks(small)).values()) == there


@pytest.mark.parametrize("statuses", [None, LIVE, DEAD, {TaskStatus.FAILED}], ids=["all", "live", "dead", "failed"])
async def test_a_list_of_subtasks_reads_little_more_than_its_page(
    statuses: frozenset[TaskStatus] | None, database: Any, store: MongoStore
) -> None:
    for after in (-1, 500):
        call = partial(MongoStore.list_subtasks, round=LARGE, limit=LIMIT, after_slot=after, statuses=statuses)
        check(await asked(database, store, call), returned=LIMIT)


async def test_parents_that_have_subtasks_left_are_found_without_reading_those(
    database: Any, store: MongoStore
) -> None:
    old = MongoStoreClock.now - 3 * HOUR
    parent = new_task(task_id="large", now=old, subtasks=Subtasks(4_000, None))
    over = {"status": TaskStatus.COMPLETED, "finished_at": old, "publish_at": None, "next_dispatch_at": None}
    await store.insert([parent.evolve(**over)])
    operations = await asked(
        database, store, lambda store: store.purge(finished=2 * HOUR, dead_letters=None, limit=LIMIT)
    )
    (distinct,) = [operation for operation in operations if "parent" in operation["planSummary"]]
    assert distinct["planSummary"].startswith("DISTINCT_SCAN")
    assert distinct["keysExamined"] <= 2
    assert (await asyncio.to_thread(database["tasks"].delete_one, {"_id": "large"})).deleted_count == 1


async def test_undriven_tasks_are_sought_among_the_live(database: Any, store: MongoStore) -> None:
    operations = await asked(database, store, lambda store: store.undriven(10))
    assert "COLLSCAN" not in str([operation["planSummary"] for operation in operations])
    live = await asyncio.to_thread(database["tasks"].count_documents, {"finished_at": None})
    assert sum(operation["docsExamined"] for operation in operations) <= 2 * live


def _reservation(task: Task) -> ReserveDispatch:
    return ReserveDispatch(task.task_id, task.dispatch_epoch, SECOND, MINUTE)


async def test_the_next_task_of_each_stream_is_found_behind_all_ended_ones(database: Any, store: MongoStore) -> None:
    streams = [StreamKey("alice", f"stream-{n}") for n in range(4)]
    tasks = [
        new_task(now=store.now(), status=TaskStatus.BLOCKED, stream=StreamPlace(stream.key, "serial", position))
        for stream in streams
        for position in range(60)
    ]
    await store.insert(tasks)
    for _ in range(3):  # while the first is next, any index finds it: what the server then remembers must not count
        assert {turn.position for turn in (await store.next_blocked(streams)).values()} == {0}
    over = {"_id": {"$in": [task.task_id for task in tasks if task.stream is not None and task.stream.position < 59]}}
    await asyncio.to_thread(database["tasks"].update_many, over, {"$set": {"status": "COMPLETED"}})
    operations = await asked(database, store, lambda store: store.next_blocked(streams))
    assert sum(operation["docsExamined"] for operation in operations) <= 2 * len(streams)
