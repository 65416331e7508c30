"""The installation at a glance, over HTTP."""

from __future__ import annotations

from dataclasses import replace

from taskframework.api.overview import OverviewView
from taskframework.model.schedules import RunProblem
from taskframework.model.status import TaskStatus
from taskframework.schedules import change_schedule
from tests.unit.api.conftest import Api, OpenApi

OVERVIEW = "/api/v1/admin/overview"


async def test_an_installation_without_a_worker_says_what_is_missing(api: Api) -> None:
    task = await api.submit()
    overview = OverviewView.model_validate((await api.get(OVERVIEW)).json(), strict=False)
    assert (overview.workers, overview.dead_letters, overview.by_status[TaskStatus.QUEUED]) == (0, 0, 1)
    assert overview.counted_at is not None
    [charged] = [it for it in overview.types if it.task_type == task["task_type"]]
    assert (charged.waiting, charged.running, charged.is_bounded) == (1, 0, False)
    assert [problem.code for problem in overview.problems] == ["no_worker"]


async def test_the_overview_shows_a_task_type_whose_tasks_fail(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        worker = api.framework.process.worker
        assert worker is not None
        await worker.sign_of_life.write()
        await api.finished(await api.submit(task_type="refuses", parameters=None))
        overview = OverviewView.model_validate((await api.get(OVERVIEW)).json(), strict=False)
        [problem] = overview.problems
        assert (problem.code, problem.text[:25]) == ("failing", "100% of the refuses tasks")
        [refuses] = [it for it in overview.types if it.task_type == "refuses"]
        assert refuses.failed_per_second == refuses.finished_per_second == round(1 / 60, 3)


async def test_the_overview_shows_a_schedule_whose_run_was_refused(api: Api) -> None:
    store = api.framework.services.store
    nightly = {"name": "nightly", "task_type": "count-words", "parameters": {"text": "one"}, "cron": "30 2 * * *"}
    await api.post("/api/v1/admin/schedules", json=nightly)
    assert (await api.get(OVERVIEW)).json()["problems"] == []
    problem = RunProblem(store.now(), "There is no task type 'count-words'.")
    await change_schedule(store, "nightly", lambda present: present and replace(present, problem=problem))
    [told] = (await api.get(OVERVIEW)).json()["problems"]
    assert (told["code"], told["text"][:37]) == ("schedule", "The last run of schedule nightly coul")
