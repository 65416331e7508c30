"""Sub-tasks and signals over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from taskframework import BackgroundTaskExecutable, NonRetryableError, Signal, SubtaskSummary, TaskContext
from taskframework.model.scope import EVERYONE
from taskframework.model.task_fields import ParentLink
from taskframework.model.values import MAX_SIGNAL_BYTES
from taskframework.testing.factories import new_task
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of

DEAD_LETTERS = "/api/v1/admin/dead-letters"
PARENT, WAITER = "parent", "waiter"
#: Items that fail until the test mends them.
broken: set[int] = set()


class Child(BackgroundTaskExecutable[int, int]):
    task_type = "child"

    async def execute(self, context: TaskContext[int]) -> int:
        if context.parameters in broken:
            raise NonRetryableError("broken")
        return context.parameters


class Parent(BackgroundTaskExecutable[int, int]):
    task_type = PARENT

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks(Child, range(context.parameters))

    async def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> int:
        return summary.succeeded


class Twice(BackgroundTaskExecutable[None, None]):
    task_type = "twice"

    async def execute(self, context: TaskContext[None]) -> None:
        await context.submit_subtasks(Child, [1, 2])

    async def on_subtasks_finished(self, context: TaskContext[None], summary: SubtaskSummary) -> None:
        if summary.round == 1:
            await context.submit_subtasks(Child, [3, 4])


class Waiter(BackgroundTaskExecutable[None, Any]):
    task_type = WAITER

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="go")

    async def on_signal(self, context: TaskContext[None], signal: Signal) -> Any:
        return signal.payload


@pytest.fixture
def open_working(open_api: OpenApi) -> OpenApi:
    broken.clear()
    return lambda: open_api(worker=True, extra=(Child, Parent, Twice, Waiter))


async def test_sub_tasks_are_listed_in_slot_order_page_by_page(open_working: OpenApi) -> None:
    async with open_working() as api:
        task = await api.finished(await api.submit(task_type=PARENT, parameters=5))
        assert (task["result"], task["subtasks"]["succeeded"]) == (5, 5)
        address, seen, cursor = f"{TASKS}/{task['task_id']}/subtasks", [], ""
        for expected in (2, 2, 1):
            page = (await api.get(f"{address}?limit=2{cursor}")).json()
            assert len(page["items"]) == expected
            seen += [subtask["parameters"] for subtask in page["items"]]
            cursor = f"&cursor={page['next_cursor']}"
        assert (seen, page["next_cursor"]) == ([0, 1, 2, 3, 4], None)
        assert (await api.get(f"{address}?status=FAILED")).json()["items"] == []
        assert (await api.get(f"{address}?round=2")).json()["items"] == []
        listed = (await api.get(f"{TASKS}?parent_task_id={task['task_id']}")).json()["items"]
        assert sorted(subtask["parameters"] for subtask in listed) == seen
        for wrong in ("round=0", "status=ALIVE", "other=1"):
            problem_of(await api.get(f"{address}?{wrong}"), 422, "invalid_request")
        first = (await api.get(f"{address}?limit=2")).json()["next_cursor"]
        for wrong in ("cursor=x", f"cursor={listed[0]['task_id']}", f"cursor={first}&round=2"):
            problem_of(await api.get(f"{address}?{wrong}"), 422, "invalid_cursor")
        assert len((await api.get(f"{address}?cursor={first}&round=1")).json()["items"]) == 3
        problem_of(await api.get(f"{TASKS}/unknown/subtasks"), 404, "task_not_found")


async def test_all_pages_are_of_the_round_of_the_first_page(open_working: OpenApi) -> None:
    async with open_working() as api:
        task = await api.finished(await api.submit(task_type="twice", parameters=None))
        address = f"{TASKS}/{task['task_id']}/subtasks"
        page = (await api.get(f"{address}?limit=1&round=1")).json()
        rest = (await api.get(f"{address}?cursor={page['next_cursor']}")).json()
        seen = [subtask["parameters"] for subtask in page["items"] + rest["items"]]
        assert (seen, rest["next_cursor"]) == ([1, 2], None), "a second round began in the meantime"
        newest = (await api.get(address)).json()["items"]
        assert [subtask["parameters"] for subtask in newest] == [3, 4]


async def test_a_sub_task_of_a_parent_that_is_over_is_retried_if_the_parent_may_be_reopened(
    open_working: OpenApi,
) -> None:
    broken.add(0)
    async with open_working() as api:
        task = await api.finished(await api.submit(task_type=PARENT, parameters=1))
        assert (task["status"], task["error"]["code"]) == ("FAILED", "subtasks_failed")
        failed = (await api.get(f"{TASKS}/{task['task_id']}/subtasks?status=FAILED")).json()["items"]
        address = f"{TASKS}/{failed[0]['task_id']}/retry"
        problem = problem_of(await api.post(address), 409, "parent_finished")
        assert task["task_id"] in problem["detail"]
        broken.clear()
        assert (await api.post(address, json={"reopen": True})).status_code == 202
        again = await api.finished(task)
        assert (again["status"], again["result"]) == ("COMPLETED", 1)


async def test_a_dead_letter_whose_parent_is_over_is_replayed_if_the_parent_may_be_reopened(
    open_working: OpenApi,
) -> None:
    broken.add(0)
    async with open_working() as api:
        task = await api.finished(await api.submit(task_type=PARENT, parameters=1))
        [failed] = (await api.get(f"{TASKS}/{task['task_id']}/subtasks?status=FAILED")).json()["items"]
        broken.clear()

        async def replayed(**options: bool) -> Any:
            body = {"ids": [failed["task_id"]], **options}
            [outcome] = (await api.post(f"{DEAD_LETTERS}/replay", json=body)).json()["items"]
            return outcome

        for refused in (await replayed(dry_run=True), await replayed()):
            assert (refused["status"], refused["error"]["code"]) == (409, "parent_finished")
            assert "`reopen`" in refused["error"]["hint"]
        assert (await replayed(dry_run=True, reopen=True))["status"] == 200
        assert (await api.get(f"{TASKS}/{task['task_id']}")).json() == task, "a dry run changes nothing"
        assert (await replayed(reopen=True))["status"] == 202
        again = await api.finished(task)
        assert (again["status"], again["result"]) == ("COMPLETED", 1)
        assert "already" in (await replayed(reopen=True))["error"]["detail"]


async def test_a_signal_wakes_the_task_that_waits_for_it_once_for_each_key(open_working: OpenApi) -> None:
    async with open_working() as api:
        task = await api.submit(task_type=WAITER, parameters=None)
        address = f"{TASKS}/{task['task_id']}/signals"
        early = await api.post(f"{address}/go", json={"by": "ada"}, headers={"Idempotency-Key": "one"})
        assert early.status_code == 202
        assert (await api.finished(task))["result"] == {"by": "ada"}
        again = await api.post(f"{address}/go", json={"by": "ada"}, headers={"Idempotency-Key": "one"})
        assert again.status_code == 202, "the same signal, which has been heard"
        problem_of(await api.post(f"{address}/go"), 409, "transition_refused")
        problem = problem_of(
            await api.post(f"{address}/stop", headers={"Idempotency-Key": "one"}), 409, "idempotency_conflict"
        )
        assert problem["task_id"] == task["task_id"]
        assert "'one' belongs to the signal 'go'" in problem["detail"]


async def test_the_name_of_a_signal_may_have_slashes(api: Api) -> None:
    task = await api.submit()
    assert (await api.post(f"{TASKS}/{task['task_id']}/signals/{quote('paid / in full', safe='')}")).status_code == 202
    stored = await api.framework.services.store.get(task["task_id"], EVERYONE)
    assert stored is not None
    assert [signal.name for signal in stored.signals] == ["paid / in full"]


async def test_a_wrong_signal_is_refused(api: Api) -> None:
    task = await api.submit()
    address = f"{TASKS}/{task['task_id']}/signals"
    problem_of(await api.post(f"{address}/go", json="x" * MAX_SIGNAL_BYTES), 422, "value_not_storable")
    problem_of(await api.post(f"{address}/{'n' * 201}"), 422, "invalid_request")
    problem_of(await api.post(f"{address}/go", headers={"Idempotency-Key": "k" * 201}), 422, "invalid_request")
    problem_of(await api.post(f"{TASKS}/unknown/signals/go"), 404, "task_not_found")
    for number in range(100):
        assert (await api.post(f"{address}/go", json=number)).status_code == 202
    problem_of(await api.post(f"{address}/go"), 409, "too_many_signals")


async def test_a_task_without_sub_tasks_has_an_empty_page(api: Api) -> None:
    task = await api.submit()
    page = (await api.get(f"{TASKS}/{task['task_id']}/subtasks")).json()
    assert page == {"items": [], "next_cursor": None}
    store = api.framework.services.store
    below = new_task(now=store.now(), parent=ParentLink(task["task_id"], 0, 0))
    await store.insert([below])
    listed = (await api.get(f"{TASKS}?parent_task_id={task['task_id']}")).json()["items"]
    assert [found["task_id"] for found in listed] == [below.task_id]
