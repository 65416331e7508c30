"""The dead-letter workbench over HTTP: groups, edits, dry runs, replays of many, discards, repairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    InvalidParametersError,
    NonRetryableError,
    Settings,
    TaskClient,
    TaskContext,
    TaskFramework,
)
from taskframework.api.app import create_app
from taskframework.model.idempotency import IDEMPOTENCY
from taskframework.model.query import DeadMessage
from taskframework.model.status import TaskStatus
from taskframework.testing.conformance.store_suite import insert_one, make_error
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.unit.api.conftest import COUNT_WORDS, DEAD_LETTERS, TASKS, Api, OpenApi, problem_of

REPLAYS = "/api/v1/admin/replays"
DOCUMENT = create_app(TaskFramework(Settings())).openapi()
#: Seconds for 500 tasks on a crowded machine.
_PATIENCE = 60.0


class Charge(BaseModel):
    cause: int
    amount: int = 1


class Charges(BackgroundTaskExecutable[Charge, int]):
    """Fails in one of three ways, until the provider is back; what has no amount fails for ever."""

    task_type = "charges"
    provider_is_back: ClassVar[bool] = False

    async def execute(self, context: TaskContext[Charge]) -> int:
        charge = context.parameters
        if self.provider_is_back and charge.amount:
            return charge.amount
        match charge.cause:
            case 0:
                raise NonRetryableError("the card was declined")
            case 1:
                raise ProviderDownError("the provider is down")
        raise NonRetryableError("no such account")


class ProviderDownError(NonRetryableError):
    """The provider is down."""


@pytest.fixture
async def shop(open_api: OpenApi) -> AsyncIterator[Api]:
    Charges.provider_is_back = False
    async with open_api(worker=True, extra=[Charges]) as api:
        yield api


async def _groups(api: Api, **query: str) -> list[dict[str, Any]]:
    answer = await api.get(f"{DEAD_LETTERS}/groups", params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def _none_is_live(api: Api) -> bool:
    counts = await api.framework.services.store.count_by_status()
    return not any(counts[status] for status in (TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.RETRYING))


async def _charge(api: Api, *charges: dict[str, int]) -> None:
    tasks = [{"task_type": "charges", "parameters": charge} for charge in charges]
    assert (await api.post(f"{TASKS}/bulk", json={"tasks": tasks})).status_code == 200
    await eventually(lambda: _none_is_live(api), timeout=_PATIENCE)


async def _over(api: Api, replay_id: str) -> dict[str, Any]:
    async def view() -> dict[str, Any] | None:
        found: dict[str, Any] = (await api.get(f"{REPLAYS}/{replay_id}")).json()
        return found if found["status"] != "RUNNING" else None

    over: dict[str, Any] = await eventually(view, timeout=_PATIENCE)
    return over


async def test_500_failures_of_3_causes_are_3_groups_and_new_failures_join_them(shop: Api) -> None:
    await _charge(shop, *({"cause": n % 3, "amount": 0 if n in (4, 7) else 1} for n in range(500)))
    first, *others = groups = await _groups(shop)
    assert [group["count"] for group in groups] == [167, 167, 166]
    assert {group["error"]["message"] for group in groups} == {
        "the card was declined",
        "the provider is down",
        "no such account",
    }
    for group in groups:
        assert group["task_types"] == ["charges"]
        assert sum(group["trend"]) == group["trend"][-1] + group["trend"][-2] == group["count"]
        listed = (await shop.get(DEAD_LETTERS, params={"fingerprint": group["fingerprint"], "limit": "500"})).json()
        assert len(listed["items"]) == group["count"]
        assert {item["reason"] for item in listed["items"]} == {group["error"]["message"]}

    Charges.provider_is_back = True
    answer = await shop.post(f"{DEAD_LETTERS}/replay", json={"filter": {"task_type": "charges"}, "rate": 1000})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{REPLAYS}/{answer.json()['replay_id']}"
    over = await _over(shop, answer.json()["replay_id"])
    assert (over["status"], over["total"], over["done"], over["refused"]) == ("DONE", 500, 500, 0)
    await eventually(lambda: _none_is_live(shop), timeout=_PATIENCE)
    [left] = await _groups(shop)
    assert left["count"] == 2
    assert left["fingerprint"] in {group["fingerprint"] for group in (first, *others)}
    assert left["error"]["message"] == "the provider is down"


async def test_groups_come_page_by_page_and_by_type(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1}, {"cause": 1}, {"cause": 2}, {"cause": 2}, {"cause": 2})
    await shop.finished(await shop.submit(task_type="refuses", parameters=None))
    page = (await shop.get(f"{DEAD_LETTERS}/groups?limit=2")).json()
    rest = (await shop.get(f"{DEAD_LETTERS}/groups?limit=2&cursor={page['next_cursor']}")).json()
    assert [group["count"] for group in page["items"] + rest["items"]] == [3, 2, 1, 1]
    assert rest["next_cursor"] is None
    assert [group["count"] for group in await _groups(shop, task_type="refuses")] == [1]
    problem_of(await shop.get(f"{DEAD_LETTERS}/groups?cursor=x"), 422, "invalid_cursor")


async def test_each_group_is_shown_although_others_are_handled_meanwhile(shop: Api) -> None:
    await _charge(shop, *({"cause": cause} for cause in range(3) for _ in range(3 - cause)))
    seen, query = [], "limit=1"
    while query:
        page = (await shop.get(f"{DEAD_LETTERS}/groups?{query}")).json()
        for group in page["items"]:
            seen.append(group["count"])
            letters = (await shop.get(DEAD_LETTERS, params={"fingerprint": group["fingerprint"]})).json()["items"]
            await shop.post(f"{DEAD_LETTERS}/discard", json={"ids": [letter["id"] for letter in letters]})
        query = page["next_cursor"] and f"limit=1&cursor={page['next_cursor']}"
    assert seen == [3, 2, 1]


async def test_letters_are_searched(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1})
    await shop.framework.services.store.keep_dead_message(
        DeadMessage("m-1", b"{", {}, "q", "It is down: not JSON.", shop.framework.services.store.now())
    )
    for query, reasons in (
        ({"text": "DOWN"}, ["It is down: not JSON.", "the provider is down"]),
        ({"text": "down", "kind": "task"}, ["the provider is down"]),
        ({"kind": "message"}, ["It is down: not JSON."]),
        ({"kind": "message", "text": "declined"}, []),
        ({"task_type": "refuses"}, []),
        ({"user_id": "nobody"}, []),
    ):
        items = (await shop.get(DEAD_LETTERS, params=query)).json()["items"]
        assert [item["reason"] for item in items] == reasons, query
    [message] = [group for group in await _groups(shop) if not group["task_types"]]
    [found] = (await shop.get(DEAD_LETTERS, params={"fingerprint": message["fingerprint"]})).json()["items"]
    assert found["id"] == "m-1"


async def test_edited_parameters_are_looked_through_before_anything_happens(shop: Api) -> None:
    await _charge(shop, {"cause": 0, "amount": 0}, {"cause": 1, "amount": 0})
    ids = [item["id"] for item in (await shop.get(DEAD_LETTERS)).json()["items"]]
    Charges.provider_is_back = True
    wrong = {"ids": ids, "parameters": {"cause": "none"}}
    for body in (wrong, wrong | {"dry_run": True}):
        problem = problem_of(await shop.post(f"{DEAD_LETTERS}/replay", json=body), 422, "invalid_parameters")
        assert problem["errors"][0]["field"] == "parameters.cause"
    assert len((await shop.get(DEAD_LETTERS)).json()["items"]) == 2, "nothing happened"

    right = {"ids": ids, "parameters": {"cause": 0, "amount": 7}, "reason": "the amount was missing"}
    rehearsed = (await shop.post(f"{DEAD_LETTERS}/replay", json=right | {"dry_run": True})).json()
    assert (rehearsed["replayed"], rehearsed["refused"]) == (2, [])
    assert len((await shop.get(DEAD_LETTERS)).json()["items"]) == 2, "nothing happened"
    assert (await shop.post(f"{DEAD_LETTERS}/replay", json=right)).json()["replayed"] == 2
    for name in ids:
        task = await shop.finished({"task_id": name})
        assert (task["status"], task["result"], task["parameters"]) == ("COMPLETED", 7, {"cause": 0, "amount": 7})
        [replayed] = [entry["data"] for entry in task["history"] if entry["type"] == "replayed"]
        assert replayed == {"by": "anonymous", "reason": "the amount was missing", "is_edited": True}


async def test_a_dry_run_tells_whose_parameters_do_not_fit_any_more(api: Api) -> None:
    store = api.framework.services.store
    for parameters in ({"text": "one"}, {"text": 5}, {}):
        ended: dict[str, Any] = {"status": TaskStatus.FAILED, "finished_at": store.now(), "next_dispatch_at": None}
        fields: dict[str, Any] = {"task_type": "count-words", "parameters": parameters, "error": make_error("it broke")}
        await insert_one(store, new_task(now=store.now(), **ended, **fields))
    body = {"filter": {"text": "broke"}, "dry_run": True}
    answer = (await api.post(f"{DEAD_LETTERS}/replay", json=body)).json()
    assert (answer["replayed"], answer["total"], answer["refused"]) == (3, 3, [])
    wrong = {outcome["warning"]["errors"][0]["message"] for outcome in answer["invalid"]}
    assert wrong == {"Field required", "Input should be a valid string"}
    assert {outcome["warning"]["code"] for outcome in answer["invalid"]} == {"invalid_parameters"}
    assert (await api.get(f"{TASKS}?status=QUEUED")).json()["items"] == []
    assert (await api.get("/api/v1/admin/audit")).json()["items"] == [], "a dry run is not noted"


async def test_few_tasks_that_a_filter_finds_are_replayed_at_once(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1}, {"cause": 1})
    Charges.provider_is_back = True
    body = {"filter": {"text": "provider"}, "reason": "it is back"}
    answer = await shop.post(f"{DEAD_LETTERS}/replay", json=body)
    assert (answer.status_code, answer.json()["replayed"], answer.json()["total"]) == (200, 2, 2)
    again = (await shop.post(f"{DEAD_LETTERS}/replay", json=body)).json()
    assert (again["replayed"], again["items"]) == (0, []), "pressed twice"
    entry = (await shop.get("/api/v1/admin/audit?by=anonymous")).json()["items"][-1]
    assert (entry["action"], entry["reason"]) == ("dead-letter.replay", "it is back")
    assert entry["details"]["filter"] == {"text": "provider"}


@pytest.mark.parametrize("key", [b"", b"k" * 201, "schl\u00fcssel".encode()])
@pytest.mark.parametrize("body", [{"ids": ["a"]}, {"filter": {"task_type": "charges"}}])
async def test_a_key_that_cannot_be_one_is_refused(shop: Api, key: bytes, body: dict[str, Any]) -> None:
    answer = await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers={b"Idempotency-Key": key})
    [wrong] = problem_of(answer, 422, "invalid_request")["errors"]
    assert wrong == {"field": "idempotency_key", "message": "must be 1 to 200 printable ASCII characters"}


async def test_a_key_makes_a_repeated_replay_by_filter_the_same_action(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 0})
    body, key = {"filter": {"task_type": "charges"}}, {"Idempotency-Key": "monday"}
    begun = await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)
    assert begun.status_code == 202, "it is an action of its own, however few there are"
    assert (await _over(shop, begun.json()["replay_id"]))["done"] == 2
    await eventually(lambda: _none_is_live(shop), timeout=_PATIENCE)  # and failed again
    again = await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)
    assert (again.status_code, again.json()["replay_id"]) == (202, begun.json()["replay_id"])
    assert {task["generation"] for task in (await shop.get(TASKS)).json()["items"]} == {1}
    for other in ({"filter": {"text": "card"}}, body | {"rate": 5}, body | {"reopen": True}):
        problem = problem_of(
            await shop.post(f"{DEAD_LETTERS}/replay", json=other, headers=key), 409, "idempotency_conflict"
        )
        assert begun.json()["replay_id"] in problem["detail"]
    discard = await shop.post(f"{DEAD_LETTERS}/discard", json=body | {"reason": "old"}, headers=key)
    problem_of(discard, 409, "idempotency_conflict")
    problem_of(await shop.post(f"{TASKS}/retry", json=body, headers=key), 409, "idempotency_conflict")
    assert len(await _groups(shop)) == 1, "nothing of it was done"


async def test_a_key_makes_a_repeated_replay_by_ids_do_nothing(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1})
    ids = [item["id"] for item in (await shop.get(DEAD_LETTERS)).json()["items"]]
    for edit, generation in ({}, 1), ({"parameters": {"cause": 1}}, 2):
        body, key = {"ids": ids, **edit}, {"Idempotency-Key": f"key {generation}"}
        for _ in range(2):
            answer = (await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)).json()
            assert (answer["replayed"], answer["refused"]) == (2, [])
            await eventually(lambda: _none_is_live(shop), timeout=_PATIENCE)  # and failed again
        assert {task["generation"] for task in (await shop.get(TASKS)).json()["items"]} == {generation}


@pytest.mark.parametrize("first", ["ids", "filter"])
async def test_a_key_of_another_request_is_refused_before_anything_is_replayed(shop: Api, first: str) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1})
    one, two = [item["id"] for item in (await shop.get(DEAD_LETTERS)).json()["items"]]
    key = {"Idempotency-Key": "monday"}
    body = {"ids": [one]} if first == "ids" else {"filter": {"task_type": "nothing"}}
    assert (await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)).is_success
    await eventually(lambda: _none_is_live(shop), timeout=_PATIENCE)  # and failed again
    before = (await shop.get(TASKS)).json()
    others = [
        {"ids": [one, two]},
        {"ids": [two]},
        {"ids": [two], "dry_run": True},
        {"ids": [one], "reopen": True},
        {"ids": [one], "parameters": {"cause": 1}},
        {"ids": [one], "parameters": {"cause": 1}, "dry_run": True},
        {"filter": {"task_type": "charges"}},
    ]
    for other in others:
        problem_of(await shop.post(f"{DEAD_LETTERS}/replay", json=other, headers=key), 409, "idempotency_conflict")
    assert (await shop.get(TASKS)).json() == before
    again = await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)
    assert again.is_success
    assert (await shop.get(TASKS)).json() == before


async def test_the_order_of_fields_makes_no_other_request(shop: Api) -> None:
    await _charge(shop, {"cause": 0})
    [letter] = (await shop.get(DEAD_LETTERS)).json()["items"]
    key, seen = {"Idempotency-Key": "monday"}, []
    for parameters in ({"cause": 1, "note": "x"}, {"note": "x", "cause": 1}):
        body = {"ids": [letter["id"]], "parameters": parameters}
        seen.append((await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)).json()["replayed"])
    assert seen == [1, 1]


async def test_who_corrects_refused_parameters_may_use_the_key_again(shop: Api) -> None:
    await _charge(shop, {"cause": 0})
    [letter] = (await shop.get(DEAD_LETTERS)).json()["items"]
    body, key = {"ids": [letter["id"]], "parameters": {"cause": "?"}}, {"Idempotency-Key": "monday"}
    refused = await shop.post(f"{DEAD_LETTERS}/replay", json=body, headers=key)
    problem_of(refused, 422, "invalid_parameters")
    rehearsed = await shop.post(
        f"{DEAD_LETTERS}/replay", json=body | {"parameters": {"cause": 2}, "dry_run": True}, headers=key
    )
    assert rehearsed.json()["replayed"] == 1
    answer = await shop.post(f"{DEAD_LETTERS}/replay", json=body | {"parameters": {"cause": 1}}, headers=key)
    assert answer.json()["replayed"] == 1


async def test_a_replay_that_is_started_twice_at_one_moment_runs_once(shop: Api) -> None:
    await _charge(shop, {"cause": 0})
    [letter] = (await shop.get(DEAD_LETTERS)).json()["items"]
    Charges.provider_is_back = True
    answers = await asyncio.gather(
        *(shop.post(f"{DEAD_LETTERS}/replay", json={"ids": [letter["id"]]}) for _ in range(5))
    )
    assert sum(answer.json()["replayed"] for answer in answers) == 1
    task = await shop.finished({"task_id": letter["id"]})
    assert (task["generation"], task["status"]) == (1, "COMPLETED")


async def test_a_discarded_dead_letter_is_in_no_list_and_can_still_be_retried(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1})
    ids = [item["id"] for item in (await shop.get(DEAD_LETTERS)).json()["items"]]
    body = {"ids": [ids[0], "missing"], "reason": "cancelled by the customer"}
    rehearsed = (await shop.post(f"{DEAD_LETTERS}/discard", json=body | {"dry_run": True})).json()
    assert (rehearsed["discarded"], len(await _groups(shop))) == (1, 2)
    answer = (await shop.post(f"{DEAD_LETTERS}/discard", json=body)).json()
    assert [(outcome["id"], outcome["status"]) for outcome in answer["items"]] == [(ids[0], 200), ("missing", 404)]
    assert [item["id"] for item in (await shop.get(DEAD_LETTERS)).json()["items"]] == [ids[1]]
    assert len(await _groups(shop)) == 1
    whole = (await shop.get(f"{DEAD_LETTERS}/{ids[0]}")).json()
    assert whole["discarded"]["reason"] == "cancelled by the customer"
    assert whole["history"][-1]["type"] == "discarded"
    [outcome] = (await shop.post(f"{DEAD_LETTERS}/discard", json={"ids": ids[:1], "reason": "again"})).json()["items"]
    assert outcome["error"]["code"] == "transition_refused"
    assert "was already discarded by anonymous at" in outcome["error"]["detail"]
    Charges.provider_is_back = True
    assert (await shop.post(f"{TASKS}/{ids[0]}/retry")).status_code == 202
    assert (await shop.finished({"task_id": ids[0]}))["status"] == "COMPLETED"
    [outcome] = (await shop.post(f"{DEAD_LETTERS}/discard", json={"ids": ids[:1], "reason": "late"})).json()["items"]
    assert "the task is COMPLETED now" in outcome["error"]["detail"]
    problem_of(await shop.post(f"{DEAD_LETTERS}/discard", json={"ids": ids}), 422, "invalid_request")
    assert (await shop.post(f"{DEAD_LETTERS}/discard", json={"ids": ids, "dry_run": True})).status_code == 200


async def _keep(api: Api, body: bytes = b'{"text": one two}') -> str:
    store = api.framework.services.store
    await store.keep_dead_message(DeadMessage("m-1", body, {"from": "elsewhere"}, "q", "not JSON", store.now()))
    return "m-1"


async def test_a_repaired_message_is_one_task_linked_to_it(shop: Api) -> None:
    path = f"{DEAD_LETTERS}/{await _keep(shop)}/repair"
    shown = (await shop.get(f"{DEAD_LETTERS}/m-1")).json()
    assert (shown["body_text"], shown["body_hex"][:11]) == ('{"text": one two}', "7b 22 74 65")
    problem_of(await shop.post(path, json=COUNT_WORDS | {"task_type": "count-word"}), 422, "unknown_task_type")
    problem_of(await shop.post(path, json=COUNT_WORDS | {"parameters": {"text": 5}}), 422, "invalid_parameters")
    dry = await shop.post(path, json=COUNT_WORDS | {"dry_run": True})
    assert (dry.status_code, dry.json()) == (200, {"id": "m-1", **COUNT_WORDS, "dry_run": True})
    responses = DOCUMENT["paths"][f"{DEAD_LETTERS}/{{letter_id}}/repair"]["post"]["responses"]
    schema = responses["200"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    assert validator.is_valid(dry.json()), "a dry run answers as the document says"
    assert (await shop.get(f"{TASKS}?limit=1")).json()["items"] == [], "nothing happened"

    answers = await asyncio.gather(*(shop.post(path, json=COUNT_WORDS) for _ in range(4)))
    assert {answer.json()["task_id"] for answer in answers} == {answers[0].json()["task_id"]}
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 202]
    assert all(validator.is_valid(answer.json()) for answer in answers)
    task = await shop.finished(answers[0].json())
    assert (task["status"], task["result"], task["correlation_id"]) == ("COMPLETED", {"words": 3}, "m-1")
    assert (await shop.get(DEAD_LETTERS)).json()["items"] == []
    assert (await shop.post(path, json=COUNT_WORDS)).json()["task_id"] == task["task_id"]
    for other in ({"parameters": {"text": "one"}}, {"task_type": "charges", "parameters": {"cause": 0}}):
        problem = problem_of(await shop.post(path, json=COUNT_WORDS | other), 409, "idempotency_conflict")
        assert (problem["task_id"], "errors" in problem) == (task["task_id"], False)
        assert "was repaired before" in problem["detail"]
    problem_of(await shop.post(f"{DEAD_LETTERS}/m-2/repair", json=COUNT_WORDS), 404, "task_not_found")
    await _charge(shop, {"cause": 0})
    [failed] = (await shop.get(DEAD_LETTERS)).json()["items"]
    no_message = await shop.post(f"{DEAD_LETTERS}/{failed['id']}/repair", json=COUNT_WORDS)
    assert "is a task" in problem_of(no_message, 409, "transition_refused")["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"body_text": '{"task_type": "count-words", "parameters": {"text": "one two three"}}'},
        {"task_type": "count-words", "body_text": '{"text": "one two three"}'},
    ],
)
async def test_a_message_is_repaired_by_its_corrected_text(shop: Api, body: dict[str, Any]) -> None:
    answer = await shop.post(f"{DEAD_LETTERS}/{await _keep(shop)}/repair", json=body)
    assert answer.status_code == 202, answer.text
    assert (await shop.finished(answer.json()))["result"] == {"words": 3}


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"body_text": "{"}, {"body_text": '{"parameters": 1}'}, {"body_text": "5"}),
        {"task_type": "count-words", "parameters": {}, "body_text": "{}"},
    ],
)
async def test_a_wrong_repair_of_a_message_is_refused(api: Api, body: dict[str, Any]) -> None:
    problem_of(await api.post(f"{DEAD_LETTERS}/{await _keep(api)}/repair", json=body), 422, "invalid_request")
    assert len((await api.get(DEAD_LETTERS)).json()["items"]) == 1


@pytest.mark.parametrize("is_key_over", [False, True])
async def test_a_repair_that_broke_off_is_finished_by_the_next(
    api: Api, monkeypatch: pytest.MonkeyPatch, is_key_over: bool
) -> None:
    path, store = f"{DEAD_LETTERS}/{await _keep(api)}/repair", api.framework.services.store

    async def dies(_: str) -> bool:
        raise RuntimeError("the process died")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete_dead_message", dies)
        problem_of(await api.post(path, json=COUNT_WORDS), 500, "internal_error")
    if is_key_over:  # a day after the end of the task
        assert await store.delete_records(await store.list_records(IDEMPOTENCY.name, limit=9)) == 1
    other = COUNT_WORDS | {"parameters": {"text": "other"}, "user_id": "eve"}
    problem_of(await api.post(path, json=other), 409, "idempotency_conflict")
    assert (await api.post(path, json=COUNT_WORDS)).status_code == 200
    assert len((await api.get(TASKS)).json()["items"]) == 1
    assert (await api.get(DEAD_LETTERS)).json()["items"] == []


async def test_live_tasks_are_cancelled_and_failed_ones_retried_by_a_filter(shop: Api) -> None:
    await _charge(shop, {"cause": 0}, {"cause": 1})
    waiting = [await shop.submit(not_before="2030-01-01T00:00:00Z") for _ in range(3)]
    chosen = {"filter": {"task_type": "count-words"}, "reason": "a bad release"}
    assert (await shop.post(f"{TASKS}/cancel", json=chosen | {"dry_run": True})).json() == {
        "total": 3,
        "is_total_bounded": False,
    }
    answer = await shop.post(f"{TASKS}/cancel", json=chosen, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 202
    over = await _over(shop, answer.json()["replay_id"])
    assert (over["action"], over["done"], over["reason"]) == ("cancel", 3, "a bad release")
    assert {(await shop.get(f"{TASKS}/{task['task_id']}")).json()["status"] for task in waiting} == {"CANCELLED"}
    again = await shop.post(f"{TASKS}/cancel", json=chosen, headers={"Idempotency-Key": "k"})
    assert again.json()["replay_id"] == answer.json()["replay_id"]

    Charges.provider_is_back = True
    answer = await shop.post(f"{TASKS}/retry", json={"filter": {"task_type": "charges"}})
    assert (await _over(shop, answer.json()["replay_id"]))["done"] == 2
    await eventually(lambda: _none_is_live(shop), timeout=_PATIENCE)
    assert (await shop.get(DEAD_LETTERS)).json()["items"] == []
    assert len((await shop.get(REPLAYS)).json()["items"]) == 2


async def test_a_replay_of_many_is_stopped(shop: Api) -> None:
    await _charge(shop, *({"cause": 0} for _ in range(5)))
    body = {"filter": {"task_type": "charges"}, "rate": 0.001}
    replay_id = (await shop.post(f"{DEAD_LETTERS}/replay", json=body)).json()["replay_id"]

    async def began() -> bool:
        return bool((await shop.get(f"{REPLAYS}/{replay_id}")).json()["done"])

    await eventually(began, timeout=_PATIENCE)
    again = await shop.post(f"{DEAD_LETTERS}/replay", json=body)
    assert (again.status_code, again.json()["replay_id"], again.json()["done"]) == (202, replay_id, 1)
    without_rate = {"filter": body["filter"]}  # would be done at once otherwise
    running = problem_of(await shop.post(f"{DEAD_LETTERS}/replay", json=without_rate), 409, "replay_running")
    assert (replay_id in running["detail"], "1 of 5 are done" in running["detail"]) == (True, True)
    dry = await shop.post(f"{DEAD_LETTERS}/replay", json={"filter": body["filter"], "dry_run": True})
    assert dry.status_code == 200
    stopped = (await shop.post(f"{REPLAYS}/{replay_id}/stop")).json()
    assert (stopped["status"], stopped["done"], stopped["total"]) == ("STOPPED", 1, 5)
    begun = await shop.post(f"{DEAD_LETTERS}/replay", json=body | {"rate": 1000})
    finished = await _over(shop, begun.json()["replay_id"])
    late = await shop.post(f"{REPLAYS}/{finished['replay_id']}/stop")
    assert (late.status_code, late.json()) == (200, finished)
    [newest, *_] = (await shop.get("/api/v1/admin/audit")).json()["items"]
    assert "had already finished" in newest["refusal"]
    problem_of(await shop.get(f"{REPLAYS}/unknown"), 404, "replay_not_found")
    problem_of(await shop.post(f"{REPLAYS}/unknown/stop"), 404, "replay_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("replay", {"filter": {}}),
        ("replay", {"filter": {"task_type": "x"}, "ids": ["x"]}),
        ("replay", {"ids": ["x"], "rate": 5}),
        ("replay", {"filter": {"task_type": "x"}, "rate": 0}),
        ("replay", {"filter": {"task_type": "x"}, "parameters": {}}),
        ("replay", {"filter": {"status": "FAILED"}}),
        ("discard", {"ids": ["x"]}),
        ("discard", {"filter": {"kind": "other"}, "reason": "x"}),
    ],
)
async def test_a_wrong_choice_is_refused(api: Api, path: str, body: dict[str, Any]) -> None:
    problem_of(await api.post(f"{DEAD_LETTERS}/{path}", json=body), 422, "invalid_request")


@pytest.mark.parametrize("path", ["cancel", "retry"])
@pytest.mark.parametrize("body", [{}, {"filter": {}}, {"filter": {"status": "GONE"}}, {"filter": {"kind": "task"}}])
async def test_a_wrong_choice_of_tasks_is_refused(api: Api, path: str, body: dict[str, Any]) -> None:
    problem_of(await api.post(f"{TASKS}/{path}", json=body), 422, "invalid_request")
    problem_of(await api.get(f"{TASKS}/{path}"), 405, "method_not_allowed")


async def test_the_client_has_all_of_it(shop: Api) -> None:
    client = TaskClient("http://api", http=shop)
    await _charge(shop, {"cause": 0}, {"cause": 0, "amount": 0}, {"cause": 1})
    first, second = [group async for group in client.dead_letter_groups()]
    assert (first.count, second.count, first.task_types) == (2, 1, ["charges"])
    letters = [letter async for letter in client.dead_letters(fingerprint=first.fingerprint)]
    assert {letter.reason for letter in letters} == {"the card was declined"}
    [declined] = [letter async for letter in client.dead_letters(text="provider")]
    whole = await client.dead_letter(declined.id)
    assert whole.errors is not None
    assert "ProviderDownError" in whole.errors[0]["traceback"]

    Charges.provider_is_back = True
    with pytest.raises(InvalidParametersError):
        await client.replay_edited([declined.id], {"cause": "?"})
    assert [outcome.status for outcome in await client.replay([declined.id, "missing"], dry_run=True)] == [200, 404]
    assert [outcome.error for outcome in await client.replay_edited([declined.id], {"cause": 0})] == [None]
    begun = await client.replay_all({"fingerprint": first.fingerprint}, reason="it is back")
    assert (begun.action, begun.total, begun.reason, begun.rate) == ("replay", 2, "it is back", None)
    [noted] = (await shop.get("/api/v1/admin/audit", params={"limit": 1})).json()["items"]
    assert noted["details"] == {"filter": {"fingerprint": first.fingerprint}}
    assert (await _over(shop, begun.replay_id))["done"] == 2
    assert (await client.stop_replay(begun.replay_id)).status == "DONE"
    await eventually(lambda: _none_is_live(shop), timeout=_PATIENCE)
    [left] = [letter.id async for letter in client.dead_letters(finished_before=datetime.now(UTC))]
    assert [outcome.error for outcome in await client.discard([left], reason="no amount")] == [None]

    task = await client.repair(await _keep(shop), "count-words", {"text": "one two"})
    assert await client.wait(task.task_id, timeout=20) == {"words": 2}
    for begun in (
        await client.retry_all({"task_type": "nobody"}, reopen=True),
        await client.cancel_all({"task_type": "nobody"}),
    ):
        assert (await _over(shop, begun.replay_id))["status"] == "DONE"
        assert (await client.replay_status(begun.replay_id)).total == 0
    begun = await client.discard_all({"task_type": "charges"}, reason="all of it")
    assert (await _over(shop, begun.replay_id))["done"] == 0
