"""What operators did: noted with each request, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.keys import Role
from taskframework.model.records import Record
from tests.unit.api.conftest import TASKS, Api, problem_of

ADMIN = "/api/v1/admin"
AUDIT = f"{ADMIN}/audit"
_SCHEDULE = {"task_type": "count-words", "parameters": {"text": "one"}, "every": "1h"}

#: Every operation below /admin that changes something: a request that makes it, and what is noted of it.
NOTED: dict[str, tuple[str, str, dict[str, Any] | None, str]] = {
    "pause_queue": ("POST", "/queues/count-words/pause", {"reason": "R"}, "queue.pause"),
    "resume_queue": ("POST", "/queues/count-words/resume", None, "queue.resume"),
    "create_schedule": ("POST", "/schedules", {"name": "hourly", **_SCHEDULE}, "schedule.create"),
    "put_schedule": ("PUT", "/schedules/hourly", _SCHEDULE, "schedule.put"),
    "run_schedule": ("POST", "/schedules/hourly/run", None, "schedule.run"),
    "pause_schedule": ("POST", "/schedules/hourly/pause", None, "schedule.pause"),
    "resume_schedule": ("POST", "/schedules/hourly/resume", None, "schedule.resume"),
    "delete_schedule": ("DELETE", "/schedules/hourly", None, "schedule.delete"),
    "replay_dead_letters": ("POST", "/dead-letters/replay", {"ids": ["x"]}, "dead-letter.replay"),
    "discard_dead_letters": ("POST", "/dead-letters/discard", {"ids": ["x"], "reason": "R"}, "dead-letter.discard"),
    "repair_dead_letter": ("POST", "/dead-letters/x/repair", {"body_text": '{"task_type": "x"}'}, "dead-letter.repair"),
    "stop_replay": ("POST", "/replays/x/stop", None, "replay.stop"),
    "retry_tasks": ("POST", "/../tasks/retry", {"filter": {"task_type": "x"}}, "task.retry"),
    "cancel_tasks": ("POST", "/../tasks/cancel", {"filter": {"task_type": "x"}}, "task.cancel"),
    "create_key": ("POST", "/keys", {"principal": "ada", "roles": ["admin"]}, "key.create"),
    "revoke_key": ("DELETE", "/keys/tf_unknown", None, "key.revoke"),
}


#: There is nothing here that these could be done to. The last two answer with an outcome for each id.
_REFUSED = ("revoke_key", "repair_dead_letter", "stop_replay")
_NOTHING_DONE = (*_REFUSED, "replay_dead_letters", "discard_dead_letters")


async def _entries(api: Api, **query: str) -> list[dict[str, Any]]:
    answer = await api.get(AUDIT, params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


@pytest.fixture
async def unlocked(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API that stays open to everybody, whatever keys are made."""

    async def never(_: object) -> bool:
        return False

    monkeypatch.setattr("taskframework.operations.keys.Callers.are_identified", never)
    return api


async def test_every_change_by_an_operator_is_noted(unlocked: Api) -> None:
    paths = (await unlocked.get("/openapi.json")).json()["paths"]
    changes = {
        operation["operationId"]
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method != "get" and (path.startswith(ADMIN) or path in (f"{TASKS}/retry", f"{TASKS}/cancel"))
    }
    assert changes == NOTED.keys(), (
        "a new operation is audited by `noted` in its route, and has what that notes in `NOTED` here"
    )
    for name, (method, path, body, action) in NOTED.items():
        address = f"{ADMIN}{path}".replace("/admin/..", "")
        answer = await unlocked.request(method, address, json=body, headers={"X-Reason": "R"})
        assert answer.status_code < 300 or name in _REFUSED, (name, answer.text)
        newest = (await _entries(unlocked))[0]
        assert (newest["action"], newest["by"], newest["reason"]) == (action, "anonymous", "R"), name
        assert (newest["refusal"] is not None) == (name in _NOTHING_DONE)
    assert len(await _entries(unlocked)) == len(NOTED)


@pytest.mark.parametrize("call", ["pause", "resume"])
async def test_a_refused_change_is_audited_with_the_reason(api: Api, call: str) -> None:
    problem_of(await api.post(f"{ADMIN}/queues/nobody-knows/{call}"), 404, "task_type_not_found")
    [entry] = await _entries(api)
    assert (entry["action"], entry["target"], entry["reason"]) == (f"queue.{call}", "nobody-knows", None)
    assert "nobody-knows" in entry["refusal"]


async def test_a_refusal_stays_the_answer_if_it_cannot_be_noted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    store = api.framework.services.store
    write, writes = store.write_records, 0

    async def away_after_the_first(records: Sequence[Record]) -> Sequence[Record | None]:
        nonlocal writes
        writes += 1
        if writes > 1:
            raise StoreUnavailableError("away")
        return await write(records)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_records", away_after_the_first)
        problem_of(await api.post(f"{ADMIN}/queues/nobody-knows/pause"), 404, "task_type_not_found")
    assert writes == 2
    [entry] = await _entries(api)
    assert (entry["action"], entry["refusal"]) == ("queue.pause", None)


async def test_no_change_is_made_that_could_not_be_audited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(api.framework.services.store, "write_records", away)
        problem_of(await api.post(f"{ADMIN}/queues/count-words/pause"), 503, "store_unavailable")
    assert (await api.get(f"{ADMIN}/queues/count-words")).json()["is_paused"] is False


async def test_a_change_to_the_callers_own_task_is_not_audited(api: Api) -> None:
    own, alices = await api.submit(), await api.submit(user_id="alice")
    for task in (own, alices):
        answer = await api.post(f"{TASKS}/{task['task_id']}/cancel", json={"reason": "not needed"})
        assert answer.status_code == 202
        assert (await api.post(f"{TASKS}/{task['task_id']}/retry")).status_code == 202
    retried, cancelled = await _entries(api)
    assert (cancelled["action"], retried["action"]) == ("task.cancel", "task.retry")
    assert (cancelled["target"], cancelled["reason"]) == (alices["task_id"], "not needed")
    assert cancelled["details"] == {"user_id": "alice"}


async def test_a_change_by_a_program_for_its_users_is_not_audited(api: Api) -> None:
    services = api.framework.services
    alices = await api.submit(user_id="alice")
    _, text = await services.keys.create("shop", [Role.SUBMITTER], by="test", may_act_for_users=True)
    services.callers._has_keys = None
    headers = {"Authorization": f"Bearer {text}"}
    assert (await api.post(f"{TASKS}/{alices['task_id']}/cancel", headers=headers)).status_code == 202
    assert (await services.audit.list_entries(limit=5)).items == ()


async def test_signals_to_others_and_submissions_for_others_are_noted(api: Api) -> None:
    services = api.framework.services
    alices = await api.submit(user_id="alice")
    _, text = await services.keys.create("olga", [Role.OPERATOR], by="test")
    _, own = await services.keys.create("shop", [Role.OPERATOR], by="test", may_act_for_users=True)
    services.callers._has_keys = None
    olga, shop = ({"Authorization": f"Bearer {key}"} for key in (text, own))
    task = {"task_type": "count-words", "parameters": {"text": "a"}}
    batch = {"task_type": "count-words", "items": [{"text": "a"}]}
    lines = {"Content-Type": "application/x-ndjson"}
    for headers in (olga, shop):
        for user in ({}, {"user_id": "alice"}):
            assert (await api.post(TASKS, json=task | user, headers=headers)).status_code == 202
            bulk = {"tasks": [task | user, task]}
            assert (await api.post(f"{TASKS}/bulk", json=bulk, headers=headers)).status_code == 200
            assert (await api.post("/api/v1/batches", json=batch | user, headers=headers)).status_code == 202
            query = {"task_type": "count-words", **user}
            uploaded = await api.post(
                "/api/v1/batches", params=query, content=b'{"text": "a"}\n', headers=headers | lines
            )
            assert uploaded.status_code == 202, uploaded.text
    signalled = await api.post(f"{TASKS}/{alices['task_id']}/signals/paid", headers=olga | {"X-Reason": "by phone"})
    assert signalled.status_code == 202
    entries = [
        (entry.action, entry.by, entry.target, entry.reason, entry.details)
        for entry in (await services.audit.list_entries(limit=20)).items
    ]
    alone = {"user_ids": ["alice"], "task_type": "count-words"}
    assert entries[::-1] == [
        ("task.submit", "olga", None, None, alone),
        ("task.submit", "olga", None, None, {"user_ids": ["alice"], "count": 2}),
        ("batch.submit", "olga", None, None, alone),
        ("batch.submit", "olga", None, None, alone),
        ("task.signal", "olga", alices["task_id"], "by phone", {"user_id": "alice", "signal": "paid"}),
    ]


async def test_batches_and_streams_of_others_are_noted(api: Api) -> None:
    batch = {"task_type": "count-words", "items": [{"text": "a"}], "user_id": "alice"}
    made = (await api.post("/api/v1/batches", json=batch)).json()["batch_id"]
    await api.post(f"/api/v1/batches/{made}/cancel", json={"reason": "wrong items"})
    await api.post(f"/api/v1/batches/{made}/retry-failed")
    await api.submit(user_id="alice", stream={"key": "s/1", "mode": "serial"})
    await api.post("/api/v1/streams/s/1/go-on?user_id=alice")
    actions = [(entry["action"], entry["target"]) for entry in await _entries(api)]
    assert actions == [("stream.go-on", "s/1"), ("batch.retry-failed", made), ("batch.cancel", made)]


async def test_audit_entries_are_listed_by_filters_and_page_by_page(api: Api) -> None:
    audit = api.framework.services.audit
    for n in range(7):
        async with audit.noted("queue.pause" if n % 2 else "schedule.run", str(n), by=f"operator-{n % 3}"):
            pass
    targets: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await api.get(AUDIT, params={"limit": "3", **cursor})).json()
        targets += [entry["target"] for entry in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(targets) == [str(n) for n in range(7)]
    entries = await _entries(api)
    assert [entry["at"] for entry in entries] == sorted((entry["at"] for entry in entries), reverse=True)
    assert {entry["target"] for entry in await _entries(api, by="operator-1")} == {"1", "4"}
    assert {entry["target"] for entry in await _entries(api, action="queue")} == {"1", "3", "5"}
    assert {entry["target"] for entry in await _entries(api, action="schedule.run", by="operator-0")} == {"0", "6"}
    problem_of(await api.get(f"{AUDIT}?cursor=strange"), 422, "invalid_cursor")
    for name in ("by", "action"):
        problem_of(await api.get(AUDIT, params={name: ""}), 422, "invalid_request")


async def test_the_record_of_a_new_key_says_what_it_may_do(unlocked: Api) -> None:
    await unlocked.post("/api/v1/admin/keys", json={"principal": "ada", "roles": ["reader"], "may_act_for_users": True})
    await unlocked.post("/api/v1/admin/keys", json={"principal": "bob", "roles": ["reader"]})
    assert [entry["details"] for entry in await _entries(unlocked, action="key")] == [
        {"roles": ["reader"]},
        {"roles": ["reader"], "may_act_for_users": True},
    ]
