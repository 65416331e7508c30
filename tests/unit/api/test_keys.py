"""API keys over HTTP: who may do what, and whose tasks they see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest

from taskframework.api.app import create_app
from taskframework.errors import TaskNotFoundError
from taskframework.model.keys import Role
from taskframework.operations.keys import Callers
from taskframework.testing import eventually
from tests.unit.api.conftest import COUNT_WORDS, DEAD_LETTERS, TASKS, Api, OpenApi, problem_of

KEYS = "/api/v1/admin/keys"


@pytest.fixture
async def keyed(open_api: OpenApi) -> AsyncIterator[Keyed]:
    async with open_api(security={"failure_limit": None}) as api:
        yield await Keyed.of(api)


class Keyed:
    """An API with a key for each role, one for a program that acts for users, and one of another user."""

    def __init__(self, api: Api, headers: Mapping[str, Mapping[str, str]]) -> None:
        self.api = api
        self.headers = headers

    @classmethod
    async def of(cls, api: Api) -> Keyed:
        headers = {}
        for role in Role:
            headers[role.value] = await _header(api, role.value, role)
        headers["backend"] = await _header(api, "backend", Role.SUBMITTER, may_act_for_users=True)
        headers["other"] = await _header(api, "other", Role.SUBMITTER)
        api.framework.services.callers._has_keys = None  # as another process that looks now
        return cls(api, headers)

    async def ask(self, who: str, method: str, path: str, **more: Any) -> Any:
        return await self.api.request(method, path, headers=self.headers[who], **more)

    async def submit(self, who: str, **body: Any) -> dict[str, Any]:
        answer = await self.ask(who, "POST", TASKS, json=COUNT_WORDS | body)
        assert answer.status_code == 202, answer.text
        task: dict[str, Any] = answer.json()
        return task


async def _header(api: Api, principal: str, role: Role, **more: Any) -> dict[str, str]:
    _, text = await api.framework.services.keys.create(principal, [role], by="test", **more)
    return {"Authorization": f"Bearer {text}"}


async def test_the_first_key_closes_the_interface(api: Api) -> None:
    assert (await api.get("/api/v1/me")).json() == {
        "principal": "anonymous",
        "roles": ["admin"],
        "may_act_for_users": True,
        "prefix": None,
        "expires_at": None,
    }
    made = await api.post(KEYS, json={"principal": "ada", "roles": ["admin"]})
    assert made.status_code == 201
    key = made.json()
    assert made.headers["location"] == f"{KEYS}/{key['prefix']}"
    assert key["key"].startswith(key["prefix"])
    mine = {"Authorization": f"Bearer {key['key']}"}
    assert (await api.get("/api/v1/me", headers=mine)).json()["principal"] == "ada", "known at once"
    api.framework.services.callers._looked_at -= 10  # a moment later

    for path in ("/api/v1/tasks", KEYS, "/api/v1/nowhere"):
        problem = problem_of(refused := await api.get(path), 401, "unauthorized")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert problem["detail"] == "The request has no API key or token."
        assert "taskframework keys create" in problem["hint"]
    for open_path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert (await api.get(open_path)).status_code == 200
    assert (await api.get("/api/v1/me", headers=mine)).json()["principal"] == "ada"
    assert (await api.get("/api/v1/me", headers={"Authorization": f"bearer  {key['key']} "})).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        *("", "Bearer", "Bearer ", "Bearer tf_", "Bearer tf_0000000000_x", "Bearer tf_'; DROP_TABLE", "Basic YTpi"),
        *("Bearer " + "x" * 5000, "Bearer tf_\u00e9_x", "bearer tf__", "tf_0000000000_x", "Bearer a b c"),
    ],
)
async def test_a_header_without_a_valid_key_is_unauthorized(keyed: Keyed, header: str) -> None:
    given = [(b"Authorization", header.encode("latin-1"))]
    problem_of(await keyed.api.get(TASKS, headers=given), 401, "unauthorized")


async def test_the_stored_form_of_a_key_opens_nothing(keyed: Keyed) -> None:
    [key, *_] = (await keyed.api.framework.services.keys.list_keys(limit=10)).items
    for text in (key.sha256, f"{key.prefix}_{key.sha256}", key.prefix):
        problem_of(await keyed.api.get(TASKS, headers={"Authorization": f"Bearer {text}"}), 401, "unauthorized")


async def test_a_key_is_listed_without_itself_and_revoked(keyed: Keyed) -> None:
    made = (await keyed.ask("admin", "POST", KEYS, json={"principal": "eve", "roles": ["reader"]})).json()
    hers = {"Authorization": f"Bearer {made['key']}"}
    assert (await keyed.api.get("/api/v1/me", headers=hers)).json()["prefix"] == made["prefix"]

    page = (await keyed.ask("admin", "GET", f"{KEYS}?limit=2")).json()
    rest = (await keyed.ask("admin", "GET", f"{KEYS}?limit=50&cursor={page['next_cursor']}")).json()
    listed = {key["prefix"]: key for key in page["items"] + rest["items"]}
    assert len(listed) == 7
    assert made["key"] not in str(listed)
    assert "sha256" not in str(listed)

    revoked = (await keyed.ask("admin", "DELETE", f"{KEYS}/{made['prefix']}")).json()
    assert revoked["revoked_by"] == "admin"
    assert (await keyed.ask("admin", "DELETE", f"{KEYS}/{made['prefix']}")).json() == revoked
    assert (await keyed.ask("admin", "GET", f"{KEYS}/{made['prefix']}")).json() == revoked
    refused = await keyed.api.get("/api/v1/me", headers=hers)
    problem = problem_of(refused, 401, "unauthorized")  # this process knows at once
    assert "it was revoked" in problem["detail"]
    problem_of(await keyed.ask("admin", "DELETE", f"{KEYS}/tf_unknown"), 404, "key_not_found")


async def test_a_whole_key_in_place_of_its_prefix_revokes_it_and_is_recorded_nowhere(keyed: Keyed) -> None:
    made = (await keyed.ask("admin", "POST", KEYS, json={"principal": "eve", "roles": ["reader"]})).json()
    unknown = f"tf_{'0' * 10}_{made['key'].rpartition('_')[2]}"
    problem = problem_of(await keyed.ask("admin", "DELETE", f"{KEYS}/{unknown}"), 404, "key_not_found")
    assert problem["detail"] == f"There is no API key 'tf_{'0' * 10}'."
    assert unknown.rpartition("_")[2] not in str(problem)
    named = {"principal": made["key"], "roles": ["reader"]}
    assert "must not contain an API key" in (await keyed.ask("admin", "POST", KEYS, json=named)).text
    hers = {"Authorization": f"Bearer {made['key']}"}
    assert (await keyed.api.get("/api/v1/me", headers=hers)).status_code == 200, "from now on the process remembers it"
    assert (await keyed.ask("admin", "DELETE", f"{KEYS}/{made['key']}")).json()["prefix"] == made["prefix"]
    problem_of(await keyed.api.get("/api/v1/me", headers=hers), 401, "unauthorized")
    with pytest.raises(TaskNotFoundError):
        async with keyed.api.framework.services.audit.noted("task.retry", made["key"], by="ada", reason=made["key"]):
            raise TaskNotFoundError(made["key"])
    recorded = (await keyed.ask("admin", "GET", "/api/v1/admin/audit?limit=50")).json()["items"]
    assert {entry["target"] for entry in recorded} >= {made["prefix"], f"tf_{'0' * 10}"}
    assert made["key"].rpartition("_")[2] not in str(recorded)


@pytest.mark.parametrize("principal", [" ", " x ", "x "])
async def test_spaces_around_a_principal_are_refused(api: Api, principal: str) -> None:
    answer = await api.post(KEYS, json={"principal": principal, "roles": ["reader"]})
    assert "must not begin or end with a space" in problem_of(answer, 422, "invalid_request")["detail"]


@pytest.mark.parametrize("principal", ["anonymous", "scheduler", "cli", "cli:root"])
async def test_no_key_has_the_name_of_callers_without_one(api: Api, principal: str) -> None:
    answer = await api.post(KEYS, json={"principal": principal, "roles": ["reader"]})
    assert "callers without a key" in problem_of(answer, 422, "invalid_request")["detail"]


async def test_a_validity_of_nothing_is_refused_in_plain_words(api: Api) -> None:
    answer = await api.post(KEYS, json={"principal": "a", "roles": ["admin"], "expires_after": "0s"})
    [wrong] = problem_of(answer, 422, "invalid_request")["errors"]
    assert wrong["message"] == "Input should be greater than 0s"


async def test_an_expired_key_opens_nothing(keyed: Keyed) -> None:
    keys, store = keyed.api.framework.services.keys, keyed.api.framework.services.store
    key, text = await keys.create("eve", [Role.READER], by="test", expires_after=timedelta(hours=1))
    callers = keyed.api.framework.services.callers
    assert await callers.find(text) is not None
    an_hour_later = Callers(store, lambda: store.now() + timedelta(hours=1))
    assert await an_hour_later.find(text) is None
    assert not await an_hour_later.is_still_valid(key.caller)


async def test_a_key_that_was_read_is_not_read_again_at_once(keyed: Keyed) -> None:
    time = 100.0
    services = keyed.api.framework.services
    callers = Callers(services.store, services.store.now, lambda: time)
    key, text = await services.keys.create("eve", [Role.READER], by="test")
    assert await callers.find(text) is not None
    await services.keys.revoke(key.prefix, by="test")
    assert await callers.find(text) is not None, "remembered"
    time += 5
    assert await callers.find(text) is None


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"principal": "a"}, {"principal": "a", "roles": []}, {"principal": "a", "roles": ["root"]}),
        *({"principal": "", "roles": ["admin"]}, {"principal": "a", "roles": ["admin"], "expires_after": "0s"}),
        {"principal": "a", "roles": ["admin"], "expires_after": 5},
        {"principal": "a", "roles": ["admin"], "expires_after": "90000d"},
        {"principal": "a", "roles": ["admin"], "key": "tf_a_b"},
    ],
)
async def test_a_key_with_wrong_fields_is_refused(keyed: Keyed, body: dict[str, Any]) -> None:
    problem_of(await keyed.ask("admin", "POST", KEYS, json=body), 422, "invalid_request")


async def test_a_submitter_sees_and_changes_what_is_its_own(keyed: Keyed) -> None:
    mine, hers = await keyed.submit("submitter"), await keyed.submit("other")
    assert mine["user_id"] == "submitter"
    listed = (await keyed.ask("submitter", "GET", TASKS)).json()["items"]
    assert [task["task_id"] for task in listed] == [mine["task_id"]]
    for path in ("", "/events", "/subtasks"):
        problem_of(await keyed.ask("submitter", "GET", f"{TASKS}/{hers['task_id']}{path}"), 404, "task_not_found")
    for path in ("/cancel", "/retry", "/signals/go"):
        problem_of(
            await keyed.ask("submitter", "POST", f"{TASKS}/{hers['task_id']}{path}", json={}), 404, "task_not_found"
        )
    cancelled = (await keyed.ask("submitter", "POST", f"{TASKS}/{mine['task_id']}/cancel", json={})).json()
    assert cancelled["history"][-1]["data"]["by"] == "submitter"
    assert (await keyed.ask("operator", "GET", f"{TASKS}/{hers['task_id']}")).json()["user_id"] == "other"


async def test_only_a_key_that_may_act_for_users_names_a_user(keyed: Keyed) -> None:
    hers = await keyed.submit("backend", user_id="ada")
    assert hers["user_id"] == "ada"
    assert (await keyed.submit("backend"))["user_id"] == "backend"
    assert (await keyed.submit("submitter", user_id="submitter"))["user_id"] == "submitter"
    for path in (f"{TASKS}?user_id=ada", f"{TASKS}?limit=1&user_id=ada"):
        [found] = (await keyed.ask("backend", "GET", path)).json()["items"]
        assert found["task_id"] == hers["task_id"]
        problem_of(await keyed.ask("submitter", "GET", path), 403, "forbidden")
    assert (await keyed.ask("backend", "GET", f"{TASKS}/{hers['task_id']}")).status_code == 200

    body = COUNT_WORDS | {"user_id": "ada"}
    problem = problem_of(await keyed.ask("submitter", "POST", TASKS, json=body), 403, "forbidden")
    assert problem["errors"][0]["field"] == "user_id"
    assert problem["detail"] == "The caller is submitter and may not act for 'ada'."
    bulk = await keyed.ask("submitter", "POST", f"{TASKS}/bulk", json={"tasks": [body, COUNT_WORDS]})
    refused, accepted = bulk.json()["items"]
    assert (refused["error"]["code"], accepted["error"]) == ("forbidden", None)
    batch = {"task_type": "count-words", "items": [{"text": "one"}], "user_id": "ada"}
    problem_of(await keyed.ask("submitter", "POST", "/api/v1/batches", json=batch), 403, "forbidden")
    made = (await keyed.ask("backend", "POST", "/api/v1/batches", json=batch)).json()
    [listed] = (await keyed.ask("backend", "GET", "/api/v1/batches?user_id=ada")).json()["items"]
    assert listed["batch_id"] == made["batch_id"]
    problem_of(await keyed.ask("submitter", "GET", f"/api/v1/batches/{made['batch_id']}"), 404, "task_not_found")
    problem_of(await keyed.ask("submitter", "GET", "/api/v1/events?user_id=ada"), 403, "forbidden")
    assert (await keyed.ask("operator", "GET", f"{DEAD_LETTERS}?user_id=ada")).json()["items"] == []


async def test_a_key_of_another_user_is_another_key(keyed: Keyed) -> None:
    first = await keyed.submit("submitter", idempotency_key="k")
    second = await keyed.submit("other", idempotency_key="k")
    assert first["task_id"] != second["task_id"]


#: What each role may do with an operation: the least role for it. Every operation of the OpenAPI document is here.
LEAST: dict[Role, set[str]] = {
    Role.READER: {
        *("get_me", "list_task_types", "list_tasks", "get_task", "list_subtasks", "follow_task", "follow_all"),
        *(
            "explain_task",
            "list_batches",
            "get_batch",
            "read_results",
            "follow_batch",
            "get_stream",
            "read_stream_results",
        ),
    },
    Role.SUBMITTER: {
        *("submit_task", "submit_tasks", "cancel_task", "retry_task", "signal_task"),
        *("submit_batch", "cancel_batch", "retry_failed", "let_stream_go_on"),
    },
    Role.OPERATOR: {
        *("list_dead_letters", "list_dead_letter_groups", "get_dead_letter", "replay_dead_letters"),
        *("discard_dead_letters", "repair_dead_letter", "list_replays", "get_replay", "stop_replay"),
        *("retry_tasks", "cancel_tasks"),
        *("list_queues", "get_queue", "pause_queue", "resume_queue", "list_limits"),
        *("list_workers", "list_worker_tasks", "get_overview"),
        *("list_schedules", "create_schedule", "get_schedule", "put_schedule", "delete_schedule"),
        *("run_schedule", "pause_schedule", "resume_schedule"),
        "list_audit",
        "list_streams",
    },
    Role.ADMIN: {"list_keys", "create_key", "get_key", "revoke_key"},
}
OPEN = {"get_health", "get_readiness", "get_metrics"}


async def _ids_of(keyed: Keyed, user: str) -> dict[str, str]:
    """A task, a batch and a stream of a user, by what they are called in a path."""
    whose = {"task_type": "count-words", "user_id": user}
    task = {**whose, "parameters": {"text": ""}, "stream": {"key": f"of-{user}"}}
    made = await keyed.ask("backend", "POST", TASKS, json=task)
    batch = await keyed.ask("backend", "POST", "/api/v1/batches", json={**whose, "items": [{"text": ""}]})
    return {"task_id": made.json()["task_id"], "batch_id": batch.json()["batch_id"], "key": f"of-{user}"}


async def test_every_operation_for_every_role_on_what_is_ones_own_anothers_or_nobodys(keyed: Keyed) -> None:
    document = (await keyed.api.get("/openapi.json")).json()["paths"]
    operations = [
        (operation["operationId"], method, path)
        for path, methods in document.items()
        for method, operation in methods.items()
    ]
    least = {name: role for role, names in LEAST.items() for name in names}
    assert {name for name, _, _ in operations} == least.keys() | OPEN, (
        "a new operation needs its least role in `LEAST` here"
    )
    foreign = await _ids_of(keyed, "other")
    for name, method, path in operations:
        if name in OPEN:
            continue
        problem_of(await keyed.api.request(method, _path(path, {})), 401, "unauthorized")
        for role in (Role.READER, Role.SUBMITTER, Role.OPERATOR):
            own = await _ids_of(keyed, role.value) if role is not Role.OPERATOR and "{" in path else {}
            for whose, ids in (("own", own), ("another's", foreign), ("nobody's", {})):
                if name.startswith("follow") and (whose == "own" or role is Role.OPERATOR or "{" not in path):
                    continue  # it is answered, and goes on for ever
                answer = await keyed.ask(role.value, method, _path(path, ids), json=None if whose == "own" else {})
                is_named = any(f"{{{kind}}}" in path for kind in foreign)
                if not role.includes(least[name]):
                    problem_of(answer, 403, "forbidden")
                elif is_named and role is not Role.OPERATOR and whose != "own":
                    problem_of(answer, 404, "task_not_found")
                elif is_named and role is not Role.OPERATOR:
                    assert answer.status_code in (200, 202, 409, 415), (name, role, answer.text)
                else:
                    assert answer.status_code not in (401, 403), (name, role, whose, answer.text)


def _path(path: str, ids: Mapping[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda name: ids.get(name[1], "unknown"), path)


async def test_a_stream_ends_with_the_key_that_began_it(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.api.event_streams.REMEMBERED_SECONDS", 0.01)
    monkeypatch.setattr("taskframework.operations.keys.REMEMBERED_SECONDS", 0.0)
    services = keyed.api.framework.services
    for role, path in ((Role.READER, "/api/v1/events"), (Role.OPERATOR, f"{TASKS}/{{}}/events")):
        task = await keyed.submit("other")
        key, text = await services.keys.create("eve", [role], by="test")
        following = asyncio.create_task(
            keyed.api.get(path.format(task["task_id"]), headers={"Authorization": f"Bearer {text}"})
        )
        await eventually(lambda: keyed.api.feed.watcher_count)
        await services.keys.revoke(key.prefix, by="test")
        async with asyncio.timeout(10):
            assert (await following).status_code == 200, "it ended, as streams do"


async def test_followed_results_count_as_streams(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.api.feed.MAX_WATCHERS_PER_CALLER", 1)
    batch = {"task_type": "count-words", "items": [{"text": ""}]}
    made = (await keyed.ask("other", "POST", "/api/v1/batches", json=batch)).json()
    _, text = await keyed.api.framework.services.keys.create("eve", [Role.OPERATOR], by="test")
    headers = {"Authorization": f"Bearer {text}", "Accept": "application/x-ndjson"}
    path = f"/api/v1/batches/{made['batch_id']}/results"
    following = asyncio.create_task(keyed.api.get(path, headers=headers))
    await eventually(lambda: keyed.api.feed.watcher_count)
    refused = await keyed.api.get(path, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")
    following.cancel()
    await eventually(lambda: not keyed.api.feed.watcher_count)


async def test_followed_results_are_cut_off_with_the_key(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.operations.keys.REMEMBERED_SECONDS", 0.0)
    services = keyed.api.framework.services
    batch = {"task_type": "count-words", "items": [{"text": ""}]}
    made = (await keyed.ask("other", "POST", "/api/v1/batches", json=batch)).json()
    key, text = await services.keys.create("eve", [Role.OPERATOR], by="test")
    headers = {"Authorization": f"Bearer {text}", "Accept": "application/x-ndjson"}
    asking = asyncio.create_task(keyed.api.get(f"/api/v1/batches/{made['batch_id']}/results", headers=headers))
    await services.keys.revoke(key.prefix, by="test")
    cut_off, _ = await asyncio.wait([asking], timeout=20)
    assert cut_off


_UPLOAD = "/api/v1/batches?task_type=count-words"


@pytest.mark.parametrize(
    ("path", "media_type", "before", "after"),
    [
        (_UPLOAD, "application/x-ndjson", b'{"text": "before"}\n', b'{"text": "after"}\n'),
        (_UPLOAD, "application/x-ndjson", b'{"text": "before"}\n', b"\n"),
        (KEYS, "application/json", b'{"principal": "eve", ', b'"roles": ["admin"]}'),
    ],
    ids=["an upload", "an upload that is over", "a slow body"],
)
async def test_a_body_is_refused_once_its_key_has_ended(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, path: str, media_type: str, before: bytes, after: bytes
) -> None:
    for module in ("api.batches", "api.bodies", "operations.keys"):
        monkeypatch.setattr(f"taskframework.{module}.REMEMBERED_SECONDS", 0.0)
    services = keyed.api.framework.services
    key, text = await services.keys.create("eve", [Role.ADMIN], by="test")

    async def body() -> AsyncIterator[bytes]:
        yield before
        await services.keys.revoke(key.prefix, by="test")
        yield after

    headers = {"Authorization": f"Bearer {text}", "Content-Type": media_type}
    problem_of(await keyed.api.post(path, content=body(), headers=headers), 401, "unauthorized")
    batches = (await keyed.ask("operator", "GET", "/api/v1/batches?user_id=eve")).json()["items"]
    assert not [batch for batch in batches if batch["is_sealed"] or batch["total"] > 1]


@pytest.mark.parametrize("with_keys", [False, True])
async def test_two_keys_in_one_request_are_refused(open_api: OpenApi, with_keys: bool) -> None:
    async with open_api() as api:
        good = await _header(api, "ada", Role.ADMIN) if with_keys else {"Authorization": "Bearer tf_1"}
        for other in ("Bearer tf_wrong", "Basic YTpi", good["Authorization"]):
            answer = await api.get(TASKS, headers=[*good.items(), ("authorization", other)])
            told = problem_of(answer, 400, "bad_request")
            assert told["detail"] == "The request has the header Authorization 2 times."
            assert told["hint"] == "Send it once, with one key or token."
        assert (await api.get(TASKS, headers=good)).status_code == 200


@pytest.mark.parametrize("header", ["Host", "Origin"])
@pytest.mark.parametrize(
    ("given", "is_known"),
    [
        *(("127.0.0.1:8000", True), ("localhost", True), ("[::1]:80", True), ("tasks.example.org", True)),
        *(("evil.example", False), ("127.0.0.1.evil.example", False), ("[", False), ("10.0.0.1", False)),
    ],
)
async def test_without_keys_only_this_machine_is_served(api: Api, header: str, given: str, is_known: bool) -> None:
    app = create_app(api.framework, hosts=["tasks.example.org"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        value = f"https://{given}" if header == "Origin" else given
        answer = await client.get(TASKS, headers={header: value})
        if is_known:
            assert answer.status_code == 200
        else:
            assert header in problem_of(answer, 403, "forbidden")["detail"]
        await _header(api, "ada", Role.READER)
        api.framework.services.callers._has_keys = None
        problem_of(await client.get(TASKS, headers={header: value}), 401, "unauthorized")


async def test_event_streams_are_counted_for_each_key(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await keyed.submit("other", stream={"key": "orders/8", "mode": "serial"})
    monkeypatch.setattr("taskframework.api.feed.MAX_WATCHERS_PER_CALLER", 0)
    events = {**keyed.headers["other"], "Accept": "text/event-stream"}
    for path in ("events", f"tasks/{task['task_id']}/events", "streams/orders/8/results"):
        refused = await keyed.api.get(f"/api/v1/{path}", headers=events)
        assert "of this caller" in problem_of(refused, 503, "too_many_streams")["detail"]


async def test_a_stream_is_its_user_s(keyed: Keyed) -> None:
    await keyed.submit("other", stream={"key": "orders/7", "mode": "serial"})
    path = "/api/v1/streams/orders/7"
    assert (await keyed.ask("other", "GET", path)).status_code == 200
    problem_of(await keyed.ask("submitter", "GET", path), 404, "task_not_found")
    problem_of(await keyed.ask("submitter", "GET", f"{path}/results?user_id=other"), 403, "forbidden")
    assert (await keyed.ask("backend", "GET", f"{path}?user_id=other")).json()["key"] == "orders/7"


async def test_a_stream_named_like_an_admin_path_needs_no_other_role(keyed: Keyed) -> None:
    key = "a/api/v1/admin/keys/b"
    await keyed.submit("other", stream={"key": key})
    shown = await keyed.ask("other", "GET", f"/api/v1/streams/{key}")
    assert (shown.status_code, shown.json()["key"]) == (200, key)


@pytest.mark.parametrize("rate", [5e-324, 0.0001, 0, 1e7])
async def test_a_rate_with_which_nobody_could_count_is_refused(api: Api, rate: float) -> None:
    body = {"principal": "ada", "roles": ["reader"], "limit": {"rate": rate}}
    problem = problem_of(await api.post(KEYS, json=body), 422, "invalid_request")
    assert problem["errors"][0]["field"] == "limit.rate"
