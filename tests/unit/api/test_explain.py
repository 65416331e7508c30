"""Explanations over HTTP: whose they are, and what they look like."""

from __future__ import annotations

import pytest

from taskframework import TaskFramework
from taskframework.api.explain import ExplanationView
from taskframework.model.keys import Role
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of
from tests.unit.api.test_keys import Keyed


async def test_an_explanation_is_one_cause_with_its_change(api: Api) -> None:
    task = await api.submit()
    answer = await api.get(f"{TASKS}/{task['task_id']}/explain")
    told = ExplanationView.model_validate(answer.json(), strict=False)
    assert (told.task_id, told.status, told.code) == (task["task_id"], "QUEUED", "no_worker")
    assert "count-words" in told.because
    assert "taskframework dev" in told.change


async def test_a_broker_that_refuses_the_message_is_the_cause(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    store = api.framework.services.store
    task = (await insert_one(store, new_task(now=store.now(), task_type="count-words"))).task
    monkeypatch.setattr(api.framework.process.producer, "refusal", "ACCESS_REFUSED")
    told = (await api.get(f"{TASKS}/{task.task_id}/explain")).json()
    assert told["code"] == "broker_away"
    assert told["because"].endswith("cannot give messages to the broker: ACCESS_REFUSED")


async def test_another_users_task_is_not_there(api: Api) -> None:
    hers = (await api.submit())["task_id"]
    keyed = await Keyed.of(api)
    for role in (Role.READER, Role.SUBMITTER):
        problem_of(await keyed.ask(role.value, "GET", f"{TASKS}/{hers}/explain"), 404, "task_not_found")
    assert (await keyed.ask("operator", "GET", f"{TASKS}/{hers}/explain")).status_code == 200


async def test_explaining_an_unknown_id_is_not_found(api: Api) -> None:
    problem_of(await api.get(f"{TASKS}/unknown/explain"), 404, "task_not_found")
    problem_of(await api.get(f"{TASKS}/{'x' * 200}/explain"), 404, "task_not_found")


async def test_a_process_that_only_opened_the_store_explains_too(open_api: OpenApi) -> None:
    async with open_api() as api:
        task = await api.submit()
        settings = api.framework.settings
    framework = TaskFramework(settings)
    async with framework.store_only(), Api(framework) as looking:
        told = (await looking.get(f"{TASKS}/{task['task_id']}/explain")).json()
        assert told["code"] == "no_worker"
        overview = (await looking.get("/api/v1/admin/overview")).json()
        assert [problem["code"] for problem in overview["problems"]] == ["no_worker"]
