"""Dead letters: list, show, replay by id."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework.brokers.embedded import EmbeddedBroker
from taskframework.model.query import DeadMessage
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.unit.api.conftest import DEAD_LETTERS, TASKS, Api, OpenApi, problem_of


@pytest.fixture
async def working(open_api: OpenApi) -> AsyncIterator[Api]:
    async with open_api(worker=True) as api:
        yield api


async def dead_task(api: Api) -> dict[str, Any]:
    return await api.finished(await api.submit(task_type="refuses", parameters=None))


async def dead_message(api: Api, body: bytes) -> dict[str, Any]:
    """The entry of a message that nobody can read."""
    broker = api.framework.process.broker
    assert isinstance(broker, EmbeddedBroker)
    broker.publish_raw("count-words", body, {"from": "elsewhere"})

    async def entry() -> dict[str, Any] | None:
        items: list[dict[str, Any]] = (await api.get(DEAD_LETTERS)).json()["items"]
        return next((item for item in items if item["kind"] == "message"), None)

    found: dict[str, Any] = await eventually(entry)
    return found


async def test_a_failed_task_is_listed_and_shown(working: Api) -> None:
    task = await dead_task(working)
    await working.finished(await working.submit())
    page = (await working.get(DEAD_LETTERS)).json()
    assert page["next_cursor"] is None
    [letter] = page["items"]
    assert (letter["id"], letter["kind"], letter["task_type"]) == (task["task_id"], "task", "refuses")
    assert (letter["status"], letter["reason"], letter["at"]) == ("FAILED", "never", task["finished_at"])
    assert letter["error"] == task["error"]
    whole = (await working.get(f"{DEAD_LETTERS}/{letter['id']}")).json()
    assert whole.items() >= letter.items()
    [error] = whole["errors"]
    assert "raise NonRetryableError" in error["traceback"]
    assert (error["attempt"], error["message"]) == (1, "never")
    assert (whole["parameters"], whole["discarded"]) == (None, None)
    assert [entry["type"] for entry in whole["history"]] == ["submitted", "started", "failed"]


async def test_a_message_that_nobody_can_read_is_shown_with_all_its_bytes(working: Api) -> None:
    body = b"\x00\xff garbage"
    listed = await dead_message(working, body)
    shown = (await working.get(f"{DEAD_LETTERS}/{listed['id']}")).json()
    assert base64.b64decode(shown["body_base64"]) == body
    assert shown["headers"]["from"] == "elsewhere"
    assert "JSON" in shown["reason"]
    assert shown["task_id"] is None


async def test_pages_go_on_after_the_cursor(working: Api) -> None:
    ids = {(await dead_task(working))["task_id"] for _ in range(3)}
    first = (await working.get(f"{DEAD_LETTERS}?limit=2")).json()
    second = (await working.get(f"{DEAD_LETTERS}?limit=2&cursor={first['next_cursor']}")).json()
    assert (len(first["items"]), len(second["items"]), second["next_cursor"]) == (2, 1, None)
    assert {letter["id"] for letter in first["items"] + second["items"]} == ids


async def test_tasks_that_cannot_be_read_hide_no_other_dead_letter(api: Api, tmp_path: Path) -> None:
    """Neither those of a whole page, nor those between a message and the tasks of the next page."""
    store = api.framework.services.store
    at = store.now()
    letters = ["bad", "task", "message", "bad", "bad", "bad", "task", "message", "bad", "task", "bad"]
    for age, letter in enumerate(letters):
        name, ended = f"{letter}-{age}", at - timedelta(minutes=age)
        if letter == "message":
            await store.keep_dead_message(DeadMessage(name, b"", {}, "tasks.dlq", "it is not JSON", ended))
        else:
            ends: dict[str, Any] = {"finished_at": ended, "next_dispatch_at": None}
            await insert_one(store, new_task(task_id=name, now=ended, status=TaskStatus.FAILED, **ends))
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as raw, raw:
        raw.execute("UPDATE tasks SET document = json_set(document, '$.task_type', 7) WHERE task_id LIKE 'bad-%'")
    for query in ("limit=1", "limit=2", "limit=3", "limit=2&finished_after=2020-01-01T00:00:00Z"):
        listed, cursor = list[str](), ""
        while cursor is not None:
            page = (await api.get(f"{DEAD_LETTERS}?{query}{cursor and f'&cursor={cursor}'}")).json()
            listed += [letter["id"] for letter in page["items"]]
            cursor = page["next_cursor"]
        assert listed == ["task-1", "message-2", "task-6", "message-7", "task-9"], query


async def test_a_task_that_is_not_dead_is_no_dead_letter(api: Api) -> None:
    task = await api.submit()
    problem_of(await api.get(f"{DEAD_LETTERS}/{task['task_id']}"), 404, "task_not_found")


async def test_each_id_of_a_dead_letter_replay_has_its_own_outcome(working: Api) -> None:
    task = await dead_task(working)
    alive = await working.finished(await working.submit())
    message = await dead_message(working, b"{")
    ids = [task["task_id"], "missing", alive["task_id"], message["id"], "%00\x00", task["task_id"]]
    wanted = [202, 404, 404, 409, 404]

    rehearsed = await working.post(f"{DEAD_LETTERS}/replay", json={"ids": ids, "dry_run": True})
    assert rehearsed.status_code == 200
    assert [outcome["status"] for outcome in rehearsed.json()["items"]] == [200, *wanted[1:]]
    assert (await working.get(f"{TASKS}/{task['task_id']}")).json() == task, "a dry run changes nothing"

    outcomes = (await working.post(f"{DEAD_LETTERS}/replay", json={"ids": ids})).json()["items"]
    assert [outcome["id"] for outcome in outcomes] == ids[:-1]
    assert [outcome["status"] for outcome in outcomes] == wanted
    assert [outcome["error"] is None for outcome in outcomes] == [True, False, False, False, False]
    replayed = await working.finished(task)
    assert (replayed["generation"], replayed["status"]) == (1, "FAILED")


async def test_a_second_replay_answers_that_it_is_queued_already(api: Api) -> None:
    store = api.framework.services.store
    at_rest: dict[str, Any] = {"status": TaskStatus.FAILED, "finished_at": store.now(), "next_dispatch_at": None}
    task = (await insert_one(store, new_task(now=store.now(), **at_rest))).task
    for _ in range(2):
        answer = await api.post(f"{DEAD_LETTERS}/replay", json={"ids": [task.task_id]})
    [outcome] = answer.json()["items"]
    assert (outcome["status"], outcome["error"]["code"]) == (409, "transition_refused")
    assert "already" in outcome["error"]["detail"]


async def test_a_rehearsed_discard_refuses_what_was_discarded_already(api: Api) -> None:
    store = api.framework.services.store
    at_rest: dict[str, Any] = {"status": TaskStatus.FAILED, "finished_at": store.now(), "next_dispatch_at": None}
    task = (await insert_one(store, new_task(now=store.now(), **at_rest))).task
    body = {"ids": [task.task_id], "reason": "seen"}
    statuses = []
    for dry_run in (True, False, True, False):
        answer = await api.post(f"{DEAD_LETTERS}/discard", json={**body, "dry_run": dry_run})
        statuses.append(answer.json()["items"][0]["status"])
    assert statuses == [200, 200, 409, 409]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["x"] * 501},
        {"ids": "x"},
        {"ids": [5]},
        {"ids": ["x"], "dry_run": 1},
        {"ids": ["x"], "reopen": 1},
        {"filter": {}},
    ],
)
async def test_a_wrong_replay_is_refused(api: Api, body: object) -> None:
    problem_of(await api.post(f"{DEAD_LETTERS}/replay", json=body), 422, "invalid_request")


@pytest.mark.parametrize("status", [TaskStatus.FAILED, TaskStatus.COMPLETED_WITH_ERRORS])
async def test_a_batch_that_failed_is_not_replayed_and_the_answer_says_what_to_do(
    open_api: OpenApi, status: TaskStatus
) -> None:
    async with open_api() as api:
        store = api.framework.services.store
        own: dict[str, Any] = {"batch": Batch(), "subtasks": Subtasks(1, None)}
        batch = new_task(now=store.now(), status=status, task_type="count-words", **own)
        await insert_one(store, batch)
        replay = await api.post(f"{DEAD_LETTERS}/replay", json={"ids": [batch.task_id]})
        [outcome] = replay.json()["items"]
    assert "is a batch" in str(outcome)
    assert f"taskframework batch retry-failed {batch.task_id}" in str(outcome)
