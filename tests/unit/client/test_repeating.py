"""Calls are repeated where that does no harm, as long as the patience lasts, and a submission keeps its key."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from taskframework import (
    ApiError,
    ApiUnavailableError,
    ConfigurationError,
    InvalidRequestError,
    StoreUnavailableError,
    TaskNotFoundError,
    TransitionRefusedError,
)
from taskframework.client import SyncTaskClient, TaskClient
from tests.unit.client.conftest import Connect, problem, task

REFUSED = httpx.ConnectError("refused")
BROKEN = httpx.ReadError("the connection broke")
BATCH = httpx.Response(
    202,
    json={
        **dict.fromkeys(["counts", "percent", "rate", "estimated_end", "first_result_at", "finished_at"]),
        **dict.fromkeys(["result", "error", "deadline"]),
        **dict.fromkeys(["total", "done", "succeeded", "failed", "cancelled"], 0),
        **dict.fromkeys(["task_type", "user_id", "policy", "correlation_id"], "b"),
        **dict.fromkeys(["created_at", "not_before"], "2026-11-20T09:30:00.000Z"),
        **dict.fromkeys(["chunk_size", "max_attempts"], 1),
        "priority": "normal",
        "batch_id": "b",
        "status": "WAITING",
        "is_sealed": True,
    },
)


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_submission_that_is_repeated_has_one_key(connect: Connect, key: str | None) -> None:
    stage = connect(REFUSED, BROKEN, problem(503, "stopping"), task(202))
    await stage.client.submit("count-words", {"text": "one"}, idempotency_key=key, priority="high")
    bodies = [json.loads(request.content) for request in stage.asked]
    assert len(bodies) == 4
    assert all(body == bodies[0] for body in bodies)
    assert bodies[0]["idempotency_key"] == (key or bodies[0]["idempotency_key"])
    assert bodies[0]["idempotency_key"]
    assert bodies[0]["priority"] == "high"


async def test_two_submissions_have_two_keys(connect: Connect) -> None:
    stage = connect(task(202), task(202))
    await stage.client.submit("count-words")
    await stage.client.submit("count-words")
    first, second = (json.loads(request.content)["idempotency_key"] for request in stage.asked)
    assert first != second


@pytest.mark.parametrize("status", [429, 503])
async def test_the_answer_says_when_to_come_back(connect: Connect, status: int) -> None:
    stage = connect(httpx.Response(status, headers={"Retry-After": "7"}), task())
    await stage.client.get("t-1")
    assert stage.pauses == [7]


async def test_the_time_to_come_back_may_be_a_date(connect: Connect) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    stage = connect(httpx.Response(503, headers={"Retry-After": date}), task())
    await stage.client.get("t-1")
    assert 0 < stage.pauses[0] <= 20


async def test_pauses_grow_if_the_answer_gives_no_time(connect: Connect) -> None:
    stage = connect(*[REFUSED] * 5, httpx.Response(503, headers={"Retry-After": "soon"}), task())
    await stage.client.get("t-1")
    assert len(stage.pauses) == 6
    assert all(pause <= 0.1 * 2**n for n, pause in enumerate(stage.pauses))


async def test_a_wait_longer_than_the_patience_is_an_error_at_once(connect: Connect) -> None:
    stage = connect(problem(503, "too_many_connections", headers={"Retry-After": "31"}))
    with pytest.raises(ApiUnavailableError) as told:
        await stage.client.get("t-1")
    assert (told.value.status, told.value.code, told.value.message, told.value.hint) == (
        *(503, "too_many_connections"),
        *("No.", "Go."),
    )
    assert stage.pauses == []


async def test_a_call_is_repeated_no_longer_than_the_patience(connect: Connect) -> None:
    stage = connect(*[REFUSED] * 1000, patience=timedelta(minutes=1))
    with pytest.raises(ApiUnavailableError, match="refused"):
        await stage.client.get("t-1")
    assert 50 < sum(stage.pauses) < 60


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            r"verify failed\. Set SSL_CERT_FILE .* authority",
        ),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", r"number\. The server does not use TLS"),
        ("Server disconnected without sending a response.", r"a response\. Check that .* begins with https://"),
    ],
)
async def test_a_connection_error_of_the_wrong_protocol_names_tls(connect: Connect, reason: str, said: str) -> None:
    stage = connect(httpx.ConnectError(reason), patience=timedelta(0))
    with pytest.raises(ApiUnavailableError, match=said):
        await stage.client.get("t-1")


async def test_an_untrusted_certificate_is_an_error_at_once(connect: Connect) -> None:
    stage = connect(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"))
    with pytest.raises(ApiUnavailableError, match="SSL_CERT_FILE"):
        await stage.client.get("t-1")
    assert (len(stage.asked), stage.pauses) == (1, [])


async def test_a_client_without_patience_sends_each_request_once(connect: Connect) -> None:
    stage = connect(REFUSED, problem(503, "store_unavailable"), patience=timedelta(0))
    with pytest.raises(ApiUnavailableError, match=r"No answer from http://api: refused\. Check that"):
        await stage.client.get("t-1")
    with pytest.raises(StoreUnavailableError):
        await stage.client.get("t-1")


@pytest.mark.parametrize("answer", [REFUSED, httpx.Response(404, text="nothing"), httpx.Response(500, text="broken")])
async def test_a_password_in_the_address_is_masked(connect: Connect, answer: Any) -> None:
    stage = connect(answer, url="http://ada:secret@api", patience=timedelta(0))
    with pytest.raises(ApiError, match=r"http://ada:\*\*\*@api") as told:
        await stage.client.get("t-1")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("answer", [problem(404, "task_not_found"), httpx.LocalProtocolError("an illegal header")])
async def test_an_error_that_no_repetition_mends_is_not_repeated(connect: Connect, answer: Any) -> None:
    stage = connect(answer)
    with pytest.raises(Exception, match=r"No\.|illegal"):
        await stage.client.get("t-1")
    assert len(stage.asked) == 1


async def test_a_proxy_without_an_interface_behind_it_is_asked_again(connect: Connect) -> None:
    stage = connect(httpx.Response(502), httpx.Response(504), task())
    await stage.client.get("t-1")
    assert len(stage.asked) == 3


async def test_a_retry_that_was_possibly_heard_is_not_repeated(connect: Connect) -> None:
    """The first request may have been heard; the task may have failed again since."""
    for answer in (BROKEN, httpx.ReadTimeout("late"), problem(503, "stopping"), httpx.Response(502)):
        stage = connect(answer)
        with pytest.raises(ApiUnavailableError):
            await stage.client.retry("t-1")
        assert len(stage.asked) == 1


async def test_a_retry_that_was_surely_not_heard_is_repeated(connect: Connect) -> None:
    stage = connect(REFUSED, httpx.ConnectTimeout("late"), problem(429, "rate_limited"), task(202, status="QUEUED"))
    await stage.client.retry("t-1")
    assert len(stage.asked) == 4


async def test_every_call_has_a_time_limit(connect: Connect) -> None:
    stage = connect(task(), task(), timeout=timedelta(seconds=3))
    await stage.client.get("t-1")
    assert stage.asked[0].extensions["timeout"] == dict.fromkeys(("connect", "read", "write", "pool"), 3)


async def test_an_id_is_one_part_of_the_path(connect: Connect) -> None:
    stage = connect(problem(404, "task_not_found"))
    with pytest.raises(Exception, match="No"):
        await stage.client.get("a..b?c#d")
    assert stage.asked[0].url.raw_path == b"/api/v1/tasks/a..b%3Fc%23d"


@pytest.mark.parametrize("task_id", ["", ".", "..", "a/../b"])
async def test_an_id_that_would_lead_elsewhere_is_that_of_no_task(connect: Connect, task_id: str) -> None:
    stage = connect()
    with pytest.raises(TaskNotFoundError) as told:
        await stage.client.get(task_id)
    assert told.value.task_id == task_id
    with pytest.raises(TaskNotFoundError, match="There is no batch"):
        await stage.client.batch(task_id)
    with pytest.raises(InvalidRequestError, match="name: "):
        await stage.client.signal("t-1", task_id)
    assert stage.asked == []


async def test_a_value_that_is_no_id_is_refused(connect: Connect) -> None:
    with pytest.raises(TypeError, match="expected an id, or a task or batch that a client has returned, not None"):
        await connect().client.get(None)


@pytest.mark.parametrize("client", [TaskClient, SyncTaskClient])
@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "amqp://localhost", "http://", "http://[::", "http://localhost:99999", "/tasks"),
        *("http://localhost?key=x", "http://localhost/tasks#x", "http://localhost/?"),
    ],
)
def test_a_text_that_is_no_address_is_refused(client: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of an API"):
        client(url)


@pytest.mark.parametrize("client", [TaskClient, SyncTaskClient])
def test_a_user_in_the_address_does_not_replace_the_key(client: Any) -> None:
    with pytest.raises(ConfigurationError, match="would be sent in place of the API key"):
        client("http://ann:secret@localhost:8000", api_key="tf_1_2")
    client("http://ann:secret@localhost:8000")


async def test_an_upload_may_take_long_until_it_is_answered(connect: Connect) -> None:
    stage = connect(BATCH, BATCH, timeout=3)
    await stage.client.submit_batch("mail", list(range(2_000)))
    await stage.client.submit_batch("mail", [1])
    as_lines, whole = (request.extensions["timeout"] for request in stage.asked)
    assert (as_lines["connect"], whole["connect"], whole["read"]) == (3, 3, 3)
    assert min(as_lines["read"], as_lines["write"]) >= 600, "all of it is stored before it is answered"


async def test_an_upload_that_went_well_for_long_is_not_given_up_with_its_first_break(connect: Connect) -> None:
    def breaks_late(_: httpx.Request) -> httpx.Response:
        stage.passed += 1_000
        raise BROKEN

    stage = connect(breaks_late, REFUSED, BATCH)
    await stage.client.submit_batch("mail", list(range(2_000)))
    assert len(stage.asked) == 3
    stage = connect(breaks_late)
    with pytest.raises(ApiUnavailableError):
        await stage.client.submit_batch("mail", [1])


CANCELLED = problem(409, "transition_refused", members={"task_id": "t-1", "task_status": "CANCELLED"})


async def test_a_cancel_whose_answer_was_lost_is_not_taken_for_a_refusal(connect: Connect) -> None:
    stage = connect(BROKEN, CANCELLED, task(task_id="t-1", status="CANCELLED"))
    assert (await stage.client.cancel("t-1")).status == "CANCELLED"
    assert [(request.method, request.url.path) for request in stage.asked[-2:]] == [
        ("POST", "/api/v1/tasks/t-1/cancel"),
        ("GET", "/api/v1/tasks/t-1"),
    ]
    stage = connect(BROKEN, CANCELLED, BATCH)
    assert (await stage.client.cancel_batch("b")).batch_id == "b"


@pytest.mark.parametrize(
    "answers",
    [
        [CANCELLED],
        [REFUSED, CANCELLED],
        [problem(429, "too_many_requests"), CANCELLED],
        [BROKEN, problem(409, "transition_refused")],
    ],
)
async def test_a_cancel_that_comes_too_late_is_refused(connect: Connect, answers: list[Any]) -> None:
    with pytest.raises(TransitionRefusedError):
        await connect(*answers).client.cancel("t-1")
