"""Task types over HTTP: their list, and submissions of those that only workers have registered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest

from taskframework import (
    BackgroundTaskExecutable,
    Settings,
    TaskContext,
    TaskFramework,
    TaskOptions,
    UnknownTaskTypeError,
)
from taskframework.api.views import TaskTypePage
from taskframework.submission.types import NamingStore
from tests.support.kitchen_sink import CountWords
from tests.unit.api.conftest import COUNT_WORDS, TASKS, Api, OpenApi, problem_of

TYPES = "/api/v1/task-types"


class Urgent(BackgroundTaskExecutable[dict[str, int], None]):
    task_type = "urgent"
    options = TaskOptions(priority="high", max_attempts=2)

    async def execute(self, context: TaskContext[dict[str, int]]) -> None: ...


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Api]:
    """An API process without a program, on a store where a worker has run."""
    settings = Settings.model_validate(
        {"store": {"url": f"sqlite:///{tmp_path / 'tasks.db'}"}, "api": {"port": 0}, "retry": {"max_attempts": 4}}
    )
    worker = TaskFramework(settings)
    worker.register(CountWords)
    worker.register(Urgent)
    async with worker.running(worker=True):
        pass
    framework = TaskFramework(settings)
    async with framework.running(worker=False, api=True), Api(framework) as api:
        yield api


async def test_a_task_type_that_a_worker_has_declared_can_be_submitted(bare: Api) -> None:
    assert (await bare.post(TASKS, json=COUNT_WORDS)).status_code == 202
    task = await bare.submit(task_type="urgent", parameters={"a": 1})
    assert (task["priority"], task["max_attempts"], task["parameters"]) == ("high", 2, {"a": 1})
    other = await bare.submit(task_type="urgent", parameters={}, priority="low", max_attempts=9)
    assert (other["priority"], other["max_attempts"]) == ("low", 9)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({}, "parameters.text"), ({"text": 5}, "parameters.text"), ("text", "parameters"), (None, "parameters")],
)
async def test_wrong_parameters_are_named_as_where_the_type_is_registered(
    bare: Api, parameters: Any, field: str
) -> None:
    answer = await bare.post(TASKS, json={"task_type": "count-words", "parameters": parameters})
    problem = problem_of(answer, 422, "invalid_parameters")
    assert [error["field"] for error in problem["errors"]] == [field]


async def test_an_unknown_task_type_is_refused_with_the_nearest_one_and_a_next_step(bare: Api) -> None:
    problem = problem_of(await bare.post(TASKS, json={"task_type": "count-word"}), 422, "unknown_task_type")
    assert "Did you mean 'count-words'?" in problem["hint"]
    assert "`worker`" in problem["hint"]
    assert "This store is" not in problem["hint"], "where it is is nothing for callers"
    with pytest.raises(UnknownTaskTypeError, match=r"This store is /.*\.db\."):
        await bare.framework.submit("count-word")
    with (
        pytest.raises(UnknownTaskTypeError, match=r"This store is mongodb://ann:\*\*\*@db:27017/shop\."),
        NamingStore("mongodb://ann:secret@db:27017/shop"),
    ):
        raise UnknownTaskTypeError("count-word", [])


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "x" * 100_000, "nobody's", "$where"])
async def test_a_name_that_no_type_can_have_is_unknown(bare: Api, name: str) -> None:
    with pytest.raises(UnknownTaskTypeError):
        await bare.framework.submit(name)


async def test_each_submission_in_bulk_has_its_own_outcome(bare: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = bare.framework.services.store, []
    look_up = store.read_records

    async def heard(ids: Any) -> Any:
        asked.append(sorted(ids))
        return await look_up(ids)

    monkeypatch.setattr(store, "read_records", heard)
    wrong = {"task_type": "count-words", "parameters": {"text": 5}}
    tasks = [COUNT_WORDS, wrong, {"task_type": "nobody-knows"}, COUNT_WORDS] * 5
    items = (await bare.post(f"{TASKS}/bulk", json={"tasks": tasks})).json()["items"]
    codes = [item["error"]["code"] if item["error"] else item["status"] for item in items]
    assert codes == [202, "invalid_parameters", "unknown_task_type", 202] * 5
    assert asked == [["task-type/count-words", "task-type/nobody-knows"]]


async def test_an_idempotency_key_means_the_same_on_both_sides(bare: Api, open_api: OpenApi) -> None:
    first = await bare.submit(idempotency_key="k")
    registered = TaskFramework(bare.framework.settings)
    registered.register(CountWords)
    async with registered.running(worker=False):
        handle = await registered.submit(
            "count-words", COUNT_WORDS["parameters"], user_id="anonymous", idempotency_key="k"
        )
    assert (handle.task_id, handle.is_new) == (first["task_id"], False)


async def test_the_list_has_the_schemas_and_what_a_submission_gets(bare: Api) -> None:
    answer = await bare.get(TYPES)
    page = answer.json()
    assert answer.headers["content-type"] == "application/json"
    TaskTypePage.model_validate(page)
    assert page["next_cursor"] is None
    words, urgent = page["items"]
    assert words["task_type"] == "count-words"
    assert words["parameters_schema"]["required"] == ["text"]
    assert words["result_schema"]["properties"]["words"]["type"] == "integer"
    assert (words["priority"], words["max_attempts"]) == ("normal", 4)
    assert (urgent["task_type"], urgent["priority"], urgent["max_attempts"]) == ("urgent", "high", 2)
    assert urgent["declared_at"].endswith("Z")


class Large(BackgroundTaskExecutable[int, None]):
    task_type = "large"

    async def execute(self, context: TaskContext[int]) -> None: ...


async def test_the_list_unites_what_is_registered_here_with_what_workers_declared(bare: Api) -> None:
    bare.framework.register(Large)
    bare.framework.register(CountWords)
    items = {item["task_type"]: item for item in (await bare.get(TYPES)).json()["items"]}
    assert list(items) == ["count-words", "large", "urgent"]
    assert items["large"]["declared_at"] is None, "no worker has started with it"
    assert items["count-words"]["declared_at"] is not None
