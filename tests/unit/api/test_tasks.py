"""Look at tasks, list them, cancel them, queue them anew."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from taskframework.model.view import public_view
from taskframework.testing.eventually import eventually
from tests.support.kitchen_sink import Waits
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of


async def test_a_finished_task_shows_its_result_and_its_history(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        task = await api.finished(await api.submit())
        stored = await api.framework.get(task["task_id"])
    assert task == public_view(stored)
    assert (task["status"], task["result"], task["error"], task["attempt"]) == ("COMPLETED", {"words": 3}, None, 1)
    assert [entry["type"] for entry in task["history"]] == ["submitted", "started", "completed"]


async def test_a_failed_task_shows_its_error_without_a_traceback(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        task = await api.finished(await api.submit(task_type="broken", parameters=None))
    assert task["status"] == "FAILED"
    assert (task["error"]["type"], task["error"]["message"]) == ("ValueError", "a bug")
    assert "traceback" not in task["error"]


async def test_without_keys_callers_share_every_task_and_the_document_says_it(api: Api) -> None:
    hers = await api.framework.submit("count-words", {"text": "one"}, user_id="ada")
    assert (await api.get(f"{TASKS}/{hers.task_id}")).json()["user_id"] == "ada"
    assert hers.task_id in {task["task_id"] for task in (await api.get(TASKS)).json()["items"]}
    told = (await api.get("/openapi.json")).json()["info"]["description"]
    assert "all callers can see and change every task" in told
    assert "visible" not in problem_of(await api.get(f"{TASKS}/unknown"), 404, "task_not_found")["hint"]


async def test_an_unknown_task_is_not_found(api: Api) -> None:
    missing = "01a1fb8b-634e-7738-860b-a451aa2c2669"
    for method, path in [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")]:
        problem = problem_of(await api.request(method, f"{TASKS}/{missing}{path}"), 404, "task_not_found")
        assert missing in problem["detail"]


async def test_lists_run_from_the_newest_page_by_page(api: Api) -> None:
    ids = [(await api.submit())["task_id"] for _ in range(5)]
    seen: list[str] = []
    cursor = ""
    for expected in (2, 2, 1):
        page = (await api.get(f"{TASKS}?limit=2{cursor}")).json()
        assert len(page["items"]) == expected
        seen += [task["task_id"] for task in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    assert seen == ids[::-1]
    assert page["items"][0] == (await api.get(f"{TASKS}/{seen[-1]}")).json(), "a task looks the same everywhere"


async def test_a_page_of_tasks_holds_fifty_if_no_limit_is_given(api: Api) -> None:
    await api.post(f"{TASKS}/bulk", json={"tasks": [{"task_type": "counts"}] * 51})
    assert len((await api.get(TASKS)).json()["items"]) == 50
    assert len((await api.get(f"{TASKS}?limit=500")).json()["items"]) == 51


async def test_lists_are_filtered(api: Api) -> None:
    first = await api.submit()
    other = await api.submit(task_type="counts", parameters=None)
    await api.post(f"{TASKS}/{other['task_id']}/cancel")

    async def ids(query: str) -> list[str]:
        return [task["task_id"] for task in (await api.get(f"{TASKS}?{query}")).json()["items"]]

    assert await ids("status=QUEUED") == await ids("status=queued") == [first["task_id"]]
    assert await ids("status=CANCELLED") == [other["task_id"]]
    assert await ids("task_type=counts&status=QUEUED") == []
    assert await ids("task_type=counts") == [other["task_id"]]
    between = quote(other["created_at"])
    assert await ids(f"created_after={between}") == [other["task_id"]]
    assert await ids(f"created_before={between}") == [first["task_id"]]
    assert await ids("user_id=anonymous&created_after=2020-01-01T00:00:00Z") == [other["task_id"], first["task_id"]]
    for any_time in ("2099-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59.999999Z"):
        assert await ids(f"created_before={any_time}") == [other["task_id"], first["task_id"]]
        assert await ids(f"created_after={any_time}") == []
    assert await ids(f"created_after={quote('0001-01-01T00:00:00+14:00')}") == [other["task_id"], first["task_id"]]
    problem_of(await api.get(f"{TASKS}?created_after=2020-01-01"), 422, "invalid_request")
    ended = quote((await api.get(f"{TASKS}/{other['task_id']}")).json()["finished_at"])
    assert await ids(f"finished_after={ended}") == [other["task_id"]]
    assert await ids(f"finished_before={ended}") == []


async def test_a_filter_without_an_index_finds_its_tasks(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        failed = await api.finished(await api.submit(task_type="broken", parameters=None, idempotency_key="once"))
        await api.finished(await api.submit(task_type="refuses", parameters=None))
        for query in (
            f"correlation_id={failed['correlation_id']}",
            "idempotency_key=once",
            "error=A%20BUG",
            f"fingerprint={failed['error']['fingerprint']}&status=FAILED",
        ):
            page = (await api.get(f"{TASKS}?{query}")).json()
            assert [task["task_id"] for task in page["items"]] == [failed["task_id"]], query
            assert page["next_cursor"] is None
        assert (await api.get(f"{TASKS}?error=nothing")).json()["items"] == []
        problem_of(await api.get(f"{TASKS}?error="), 422, "invalid_request")


async def test_a_waiting_task_is_cancelled_at_once(api: Api) -> None:
    task = await api.submit()
    answer = await api.post(f"{TASKS}/{task['task_id']}/cancel", json={"reason": "not needed"})
    assert (answer.status_code, answer.json()["status"]) == (202, "CANCELLED")
    assert answer.json()["history"][-1]["data"] == {"by": "anonymous", "reason": "not needed"}

    problem = problem_of(await api.post(f"{TASKS}/{task['task_id']}/cancel"), 409, "transition_refused")
    assert (problem["task_id"], problem["task_status"]) == (task["task_id"], "CANCELLED")
    assert "CANCELLED" in problem["detail"]


async def test_a_running_task_is_asked_to_stop(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        task = await api.submit(task_type="waits", parameters=None)
        await eventually(lambda: Waits.started)
        answers = [await api.post(f"{TASKS}/{task['task_id']}/cancel") for _ in range(2)]
        assert answers[0].status_code == 202
        assert answers[1].status_code in (202, 409), "asking again is no error while it stops"
        assert (await api.finished(task))["status"] == "CANCELLED"


@pytest.mark.parametrize(
    "body", ['{"reason":5}', '{"reason":"' + "x" * 1001 + '"}', '{"force":true}', "[]", '{"by":"root"}']
)
async def test_a_wrong_reason_cancels_nothing(api: Api, body: str) -> None:
    task = await api.submit()
    answer = await api.post(
        f"{TASKS}/{task['task_id']}/cancel", content=body, headers={"Content-Type": "application/json"}
    )
    problem_of(answer, 422, "invalid_request")
    assert (await api.get(f"{TASKS}/{task['task_id']}")).json()["status"] == "QUEUED"


async def test_a_cancelled_task_is_queued_again_only_once(api: Api) -> None:
    task = await api.submit()
    address = f"{TASKS}/{task['task_id']}"
    problem_of(await api.post(f"{address}/retry"), 409, "transition_refused")
    await api.post(f"{address}/cancel")

    answer = await api.post(f"{address}/retry")
    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["generation"], answer.json()["error"]) == ("QUEUED", 1, None)
    problem = problem_of(await api.post(f"{address}/retry"), 409, "transition_refused")
    assert "already queued" in problem["detail"]
    assert "DEAD_LETTER" in problem["hint"], "it says which statuses can be retried"


async def test_a_retry_takes_no_fields_yet(api: Api) -> None:
    task = await api.submit()
    await api.post(f"{TASKS}/{task['task_id']}/cancel")
    problem_of(await api.post(f"{TASKS}/{task['task_id']}/retry", json={"parameters": {}}), 422, "invalid_request")
    assert (await api.post(f"{TASKS}/{task['task_id']}/retry", json={})).status_code == 202
