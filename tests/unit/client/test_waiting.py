"""Waiting for an end: by the event stream, by asking where there is none, never longer than was said."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx
import pytest

from taskframework import ApiUnavailableError, ResultTimeoutError, TaskFailedError, TaskNotFoundError
from taskframework import task as declare_task
from taskframework.api.feed import event_frame
from taskframework.api.task_follower import HEARTBEAT
from taskframework.client import TaskClient
from taskframework.client.stream_readers import MAX_WAITING_STREAMS
from taskframework.events.external import lifecycle_events
from taskframework.testing.factories import new_task
from tests.unit.client.conftest import Connect, Stage, problem, stream, task
from tests.unit.client.test_repeating import BATCH

DONE = task(status="COMPLETED", result={"words": 3})
RUNNING = task(status="RUNNING")
#: Of a task that goes on.
EVENT = event_frame(lifecycle_events(new_task(task_id="t-1"), 0, "here")[0])
END = EVENT.replace(b'"QUEUED"', b'"COMPLETED"')


def paths(stage: Stage) -> list[str]:
    return [request.url.path.removeprefix("/api/v1/tasks/") for request in stage.asked]


async def test_waiting_for_an_ended_task_opens_no_stream(connect: Connect) -> None:
    stage = connect(DONE)
    assert await stage.client.wait("t-1", timeout=5) == {"words": 3}
    assert paths(stage) == ["t-1"]


async def test_a_text_is_no_time_to_wait(connect: Connect) -> None:
    stage = connect(RUNNING)
    text: Any = "5s"
    with pytest.raises(TypeError, match="'5s' is no length of time: use a timedelta or a number of seconds, such as 5"):
        await stage.client.wait("t-1", timeout=text)
    assert stage.asked == []


async def test_the_stream_tells_the_end(connect: Connect) -> None:
    stage = connect(
        RUNNING, stream(HEARTBEAT, END.replace(b"t-1-1", b"t-1-9").replace(b'"sequence":1', b'"sequence":9')), DONE
    )
    assert await stage.client.wait("t-1") == {"words": 3}
    assert paths(stage) == ["t-1", "t-1/events", "t-1"]
    assert stage.pauses == []
    assert stage.asked[1].headers["last-event-id"] == "t-1-1", "what is known is not told again"


@pytest.mark.parametrize(
    "refusal",
    [
        httpx.Response(404),
        httpx.Response(405),
        httpx.Response(200, html="<p>Hello</p>"),
        stream(error=httpx.ReadTimeout("late")),
    ],
    ids=["not found", "not allowed", "no events", "held back"],
)
async def test_waiting_without_a_stream_asks_less_and_less_often(connect: Connect, refusal: Any) -> None:
    stage = connect(RUNNING, refusal, *[RUNNING] * 15, DONE)
    assert await stage.client.wait("t-1") == {"words": 3}
    assert paths(stage).count("t-1/events") == 1, "and does not try again"
    assert stage.pauses == sorted(stage.pauses)
    assert stage.pauses[0] < 0.1
    assert stage.pauses[-1] == 2


async def test_a_stream_that_is_refused_for_now_is_tried_again(connect: Connect) -> None:
    stage = connect(RUNNING, problem(503, "too_many_streams", headers={"Retry-After": "5"}), RUNNING, stream(END), DONE)
    assert await stage.client.wait("t-1") == {"words": 3}
    assert paths(stage).count("t-1/events") == 2
    assert sum(stage.pauses) < 1


async def test_broken_streams_are_opened_again(connect: Connect) -> None:
    broken = stream(HEARTBEAT, error=httpx.ReadError("broken"))
    stage = connect(RUNNING, broken, RUNNING, httpx.ConnectError("refused"), RUNNING, broken, DONE)
    assert await stage.client.wait("t-1") == {"words": 3}
    assert len(stage.pauses) == 3


@pytest.mark.parametrize(("message", "told_as"), [("a bug", "a bug."), ("a bug.", "a bug."), ("a bug?", "a bug?")])
async def test_a_task_without_a_result_is_an_error(connect: Connect, message: str, told_as: str) -> None:
    error = {"code": "x", "type": "ValueError", "message": message, "retryable": False, "fingerprint": "f"}
    with pytest.raises(TaskFailedError, match=f"^Task t-1 ended FAILED: ValueError: {re.escape(told_as)}$") as told:
        await connect(task(status="FAILED", error=error)).client.wait("t-1")
    assert (told.value.status, told.value.error) == ("FAILED", error)


async def test_waiting_for_an_unknown_task_is_an_error(connect: Connect) -> None:
    with pytest.raises(TaskNotFoundError):
        await connect(RUNNING, problem(404, "task_not_found"), problem(404, "task_not_found")).client.wait("t-1")


@pytest.mark.parametrize("timeout", [10, timedelta(seconds=10)])
async def test_a_wait_ends_on_time_without_a_stream(connect: Connect, timeout: Any) -> None:
    stage = connect(RUNNING, httpx.Response(404), *[RUNNING] * 100)
    with pytest.raises(ResultTimeoutError, match="is still RUNNING") as told:
        await stage.client.wait("t-1", timeout)
    assert told.value.task_id == "t-1"
    assert sum(stage.pauses) == pytest.approx(10)


async def test_a_silent_stream_does_not_make_a_wait_longer(connect: Connect) -> None:
    """No read of the stream may last longer than the rest of the time, and little longer after a sign of life."""

    def silent(request: httpx.Request) -> httpx.Response:
        seconds = request.extensions["timeout"]["read"]
        stage.pauses.append(seconds * 0.6)
        return stream(HEARTBEAT, EVENT, HEARTBEAT, error=httpx.ReadTimeout("must not be read so far"))(request)

    stage = connect(RUNNING, *[silent, RUNNING] * 20)
    with pytest.raises(ResultTimeoutError):
        await stage.client.wait("t-1", timeout=20)
    assert sum(stage.pauses) < 21


async def test_a_wait_that_is_over_at_once_looks_once(connect: Connect) -> None:
    stage = connect(RUNNING)
    with pytest.raises(ResultTimeoutError):
        await stage.client.wait("t-1", timeout=0)
    assert paths(stage) == ["t-1"]


async def test_an_interface_that_stays_away_is_an_error_after_the_waiting_time(connect: Connect) -> None:
    stage = connect(RUNNING, *[httpx.ConnectError("refused")] * 100)
    with pytest.raises(ApiUnavailableError):
        await stage.client.wait("t-1", timeout=0.1)
    assert sum(stage.pauses) < 2.2


async def test_many_waits_leave_connections_for_other_calls() -> None:
    """httpx has 100 connections; a stream of each wait would take them all."""
    streams, looks = 0, Counter[str]()
    ends = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal streams
        if not request.url.path.endswith("/events"):
            looks[request.url.path] += 1
            if looks.most_common(20)[-1][1] > 2:  # so long ago has everybody tried to get a stream
                ends.set()
            return httpx.Response(200, json=(DONE if ends.is_set() else RUNNING).json())
        streams += 1
        await ends.wait()
        return stream(END)(request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with http, TaskClient("http://api", http=http) as client:
        waits = [client.wait(f"t-{n}", timeout=60) for n in range(MAX_WAITING_STREAMS + 20)]
        assert await asyncio.gather(*waits) == [{"words": 3}] * len(waits)
    assert streams == MAX_WAITING_STREAMS


async def test_a_batch_that_is_asked_for_as_a_task_keeps_its_own_result(connect: Connect) -> None:
    """The class of a batch says what its tasks return, and not what `on_batch_finished` returns."""

    @declare_task("mail")
    def mail(parameters: int) -> int:
        return parameters

    ended = task(task_id="b", status="COMPLETED", result={"sent": 3})
    stage = connect(BATCH, ended, ended)
    batch = await stage.client.submit_batch(mail, [1])
    assert (await stage.client.get(batch)).result == {"sent": 3}
    assert (await stage.client.finished(batch)).result == {"sent": 3}
