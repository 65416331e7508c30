"""A rolling change from the release before sub-tasks: its worker takes part, and breaks nothing new to it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import pytest

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import Job
from tests.chaos.scenario import INNOCENT, Scenario
from tests.chaos.test_parents import parents, roots_of

_OLD = (sys.executable, "-m", "tests.support.release_before_subtasks", "worker")
_OLD_WORKER = (*_OLD, "--app", "tests.support.release_before_subtasks")
#: A task that one release hands back is tried again soon: there are only two workers.
_SOON = {"RECOVERY__NO_HANDLER_DELAY": "0.2s", "RECOVERY__NO_HANDLER_LIMIT": "10000"}
_QUICK = {"seconds": 0.02}


@pytest.mark.timeout(180)
async def test_parents_signals_and_a_batch_beside_a_worker_that_knows_none_of_them(on_servers: MakeScenario) -> None:
    plain = [Job(3 * number / 60, "async-work", _QUICK) for number in range(60)]
    asking = [Job(number / 10, "asks", None) for number in range(10)]
    async with on_servers(**INNOCENT, **_SOON) as scenario:
        old = scenario.cluster.add_worker(command=_OLD_WORKER)
        await scenario.cluster.up(workers=1)
        async with scenario.submitting([*plain, *asking, *parents(6, 10, within=3)]):
            await in_a_batch(scenario, 40)
        await answered(scenario, 10)
        report = await scenario.finish(timeout=90)

    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 60 + 10 + 6 * 11 + 41}
    ends = {task["_id"]: (task["result"] or {}).get("pid") for task in scenario.found}
    family = [task for task in scenario.found if task["schema_version"] == 2 and task.get("batch") is None]
    assert len(family) == 10 + 6 * 11 + 40
    assert old.pid in set(ends.values()), "it did its part of the plain tasks"
    assert old.pid not in {ends[task["_id"]] for task in family}
    handed_back = [task for task in family if task["parent"] and task["revision"] > task["sequence"]]
    assert handed_back != [], "the old worker was asked for some of them: to hand back is a move without an event"
    assert {root["result"]["succeeded"] for root in roots_of(scenario) if root["task_type"] == "parent"} == {10}
    assert {task["result"]["answer"] for task in scenario.found if task["task_type"] == "asks"} == {"yes"}


async def in_a_batch(scenario: Scenario, items: int) -> None:
    body = {"task_type": "async-work", "items": [_QUICK] * items, "correlation_id": "batch"}
    scenario.recorder.record("submit.invoke", submission="batch", task_type="async-work", not_before=None)
    answer = await asked(scenario, "/batches", body, key="batch")
    assert answer.status_code == 202, answer.text
    scenario.recorder.record("submit.ok", submission="batch", status=202, task=answer.json()["batch_id"])


async def answered(scenario: Scenario, count: int) -> None:
    """Answer all tasks that ask."""
    asking = [task["_id"] for task in await scenario.states() if task["task_type"] == "asks"]
    assert len(asking) == count
    answers = await asyncio.gather(*(asked(scenario, f"/tasks/{one}/signals/answer", "yes", key=one) for one in asking))
    assert {answer.status_code for answer in answers} == {202}


async def asked(scenario: Scenario, path: str, body: Any, *, key: str) -> httpx.Response:
    [api] = scenario.cluster.apis
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.post(f"{api.address}/api/v1{path}", json=body, headers={"Idempotency-Key": key})
