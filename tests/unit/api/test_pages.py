"""Pages of large entries: each answer is bounded in bytes, and the pages together have everything, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext
from taskframework.api import pages
from taskframework.model.query import Page
from taskframework.operations.letter_views import DeadLetter
from tests.unit.api.conftest import DEAD_LETTERS, TASKS, Api, OpenApi
from tests.unit.api.test_batches import BATCHES, finished

_LARGE = "x" * 10_000
_COUNT = 60
_MOST = 40 * len(_LARGE)


class Echoes(BackgroundTaskExecutable[str, str]):
    """Gives back its text; a bad one fails."""

    task_type = "echoes"

    async def execute(self, context: TaskContext[str]) -> str:
        if context.parameters.startswith("bad"):
            raise ValueError("a bad text")
        return context.parameters


@pytest.fixture
async def worker(open_api: OpenApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(pages, "PAGE_BYTES", _MOST)
    async with open_api(worker=True, extra=[Echoes]) as api:
        yield api


async def pages_of(api: Api, path: str, cursor_name: str = "cursor") -> list[list[dict[str, Any]]]:
    """All pages of a list, each asked for as long as it may be."""
    found: list[list[dict[str, Any]]] = []
    query = {"limit": "500"}
    while True:
        answer = await api.get(path, params=query)
        assert answer.status_code == 200, answer.text
        # One part more than the bound: a part is read before its size is known.
        assert len(answer.content) < _MOST + pages._READ_BATCH_SIZE * 3 * len(_LARGE)
        page = answer.json()
        if page["items"]:
            found.append(page["items"])
        if page["next_cursor"] is None or not page["items"]:
            return found
        query[cursor_name] = page["next_cursor"]


async def submitted(api: Api, parameters: str, **options: Any) -> list[str]:
    tasks = [{"task_type": "echoes", "parameters": parameters, **options}] * _COUNT
    answer = await api.post(f"{TASKS}/bulk", json={"tasks": tasks})
    ids = [item["task"]["task_id"] for item in answer.json()["items"]]
    for task_id in ids:
        await api.framework.handle(task_id).finished(timeout=20)
    return ids


async def test_a_list_of_large_tasks_comes_in_short_pages(worker: Api) -> None:
    ids = await submitted(worker, _LARGE)
    found = await pages_of(worker, TASKS)
    assert len(found) > 1
    assert [task["task_id"] for page in found for task in page] == ids[::-1]


async def test_a_search_for_large_tasks_comes_in_short_pages(worker: Api) -> None:
    ids = await submitted(worker, _LARGE, correlation_id="mine")
    found = await pages_of(worker, f"{TASKS}?correlation_id=mine")
    assert len(found) > 1
    assert [task["task_id"] for page in found for task in page] == ids[::-1]


async def test_a_list_of_dead_letters_shows_no_parameters_and_reads_few_of_them_at_once(
    worker: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await submitted(worker, "bad" + _LARGE)
    letters, limits = worker.framework.services.dead_letters, list[int]()
    list_letters = letters.list_letters

    async def listed(*arguments: Any, limit: int, **options: Any) -> Page[DeadLetter]:
        limits.append(limit)
        return await list_letters(*arguments, limit=limit, **options)

    monkeypatch.setattr(letters, "list_letters", listed)
    [page] = await pages_of(worker, DEAD_LETTERS)
    assert sorted(letter["id"] for letter in page) == sorted(ids)
    assert limits == [25, 25, 25]


async def test_the_items_of_a_large_batch_come_in_short_pages(worker: Api) -> None:
    body = {"task_type": "echoes", "items": [_LARGE] * _COUNT}
    batch = (await worker.post(BATCHES, json=body)).json()
    await finished(worker, batch)
    results = await pages_of(worker, f"{BATCHES}/{batch['batch_id']}/results")
    assert len(results) > 1
    assert [result["index"] for page in results for result in page] == list(range(_COUNT))
    subtasks = await pages_of(worker, f"{TASKS}/{batch['batch_id']}/subtasks")
    assert len(subtasks) > 1
    assert [task["task_id"] for page in subtasks for task in page] == [
        result["task_id"] for page in results for result in page
    ]


async def test_the_results_of_a_large_stream_come_in_short_pages(worker: Api) -> None:
    await submitted(worker, _LARGE, stream={"key": "o", "mode": "ordered_results"})
    found = await pages_of(worker, "/api/v1/streams/o/results", "from_position")
    assert len(found) > 1
    assert [result["position"] for page in found for result in page] == list(range(_COUNT))


async def test_small_tasks_come_on_one_page(worker: Api) -> None:
    ids = await submitted(worker, "small")
    [page] = await pages_of(worker, TASKS)
    assert [task["task_id"] for task in page] == ids[::-1]
