"""The events of a task come each once and in order, whatever the connections do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from taskframework import ApiError, ApiUnavailableError, ExternalEvent, TaskNotFoundError, TaskStatus
from taskframework.api.feed import event_frame, sse_frame
from taskframework.api.task_follower import HEARTBEAT, RESYNC
from taskframework.client.stream_readers import RECONNECT_PAUSE_SECONDS
from taskframework.events.external import lifecycle_events, progress_event
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.model.view import public_view
from taskframework.testing.factories import new_task
from tests.unit.client.conftest import Connect, Stage, problem, stream, task

BROKEN = httpx.RemoteProtocolError("the connection broke")
OVER = httpx.Response(204)
AT = datetime(2026, 11, 20, tzinfo=UTC)
LIFE = ("submitted", "started", "retrying", "started", "completed")


def lived(*types: str, forgotten: int = 0) -> Task:
    """A task with this history, of which the first entries are forgotten."""
    made = new_task(task_id="t-1", now=AT)
    entries = [HistoryEntry(n, kind, made.created_at, 1, None, None) for n, kind in enumerate(types, 1)]
    return made.evolve(status=TaskStatus.COMPLETED, sequence=len(types), history=tuple(entries[forgotten:]))


TASK = lived(*LIFE)
FRAMES = [event_frame(event) for event in lifecycle_events(TASK, 0, "here")]
WHOLE = [(f"task.{kind}", n) for n, kind in enumerate(LIFE, 1)]


async def heard(stage: Stage, **options: Any) -> list[tuple[str, int]]:
    return [(event.type, event.sequence) async for event in stage.client.stream("t-1", **options)]


def asked_after(stage: Stage) -> list[str]:
    return [request.headers["last-event-id"] for request in stage.asked if "last-event-id" in request.headers]


async def test_a_stream_gives_all_events_from_the_first_to_the_last(connect: Connect) -> None:
    stage = connect(stream(*FRAMES), OVER)
    events = [event async for event in stage.client.stream("t-1")]
    assert events == lifecycle_events(TASK, 0, "here")
    assert asked_after(stage) == ["t-1-0", "t-1-5"]
    assert stage.pauses == []


async def test_the_stream_of_a_task_is_opened_with_the_answer_to_its_submission(connect: Connect) -> None:
    stage = connect(task(task_id="t-1"), stream(*FRAMES), OVER)
    submitted = await stage.client.get("t-1")
    assert len([event async for event in stage.client.stream(submitted)]) == len(WHOLE)
    assert asked_after(stage) == ["t-1-0", "t-1-5"]


async def test_a_stream_continues_after_the_event_that_is_known(connect: Connect) -> None:
    stage = connect(stream(*FRAMES[3:]), OVER)
    assert await heard(stage, after=3) == WHOLE[3:]
    assert asked_after(stage)[0] == "t-1-3"


@pytest.mark.parametrize("cut", range(len(LIFE) + 1))
async def test_a_broken_connection_leaves_no_gap_and_repeats_nothing(connect: Connect, cut: int) -> None:
    stage = connect(
        stream(*FRAMES[:cut], FRAMES[min(cut, 4)][:-9], error=BROKEN),
        stream(*FRAMES[max(0, cut - 1) :]),  # with one that was heard
        OVER,
    )
    assert await heard(stage) == WHOLE
    assert asked_after(stage) == ["t-1-0", f"t-1-{cut}", "t-1-5"]


async def test_the_interface_may_be_away_for_a_while(connect: Connect) -> None:
    away = [httpx.ConnectError("refused"), problem(503, "stopping", headers={"Retry-After": "3"})]
    stage = connect(stream(*FRAMES[:2], error=BROKEN), *away, stream(*FRAMES[2:]), OVER)
    assert await heard(stage) == WHOLE
    assert 3 in stage.pauses


async def test_a_connection_that_tells_nothing_is_followed_by_a_pause(connect: Connect) -> None:
    stage = connect(stream(HEARTBEAT), stream(error=BROKEN), stream(*FRAMES), OVER)
    assert await heard(stage) == WHOLE
    assert stage.pauses == [RECONNECT_PAUSE_SECONDS, RECONNECT_PAUSE_SECONDS]


async def test_heartbeats_are_no_events_and_what_was_missed_is_asked_for(connect: Connect) -> None:
    stage = connect(stream(*FRAMES[:1], HEARTBEAT, HEARTBEAT, RESYNC), stream(*FRAMES[1:]), OVER)
    assert await heard(stage) == WHOLE
    assert asked_after(stage) == ["t-1-0", "t-1-1", "t-1-5"]


async def test_a_stream_whose_first_events_are_forgotten_gives_the_rest(connect: Connect) -> None:
    whole = public_view(lived(*LIFE, forgotten=2))
    stage = connect(stream(FRAMES[0], sse_frame("snapshot", whole, "t-1-5")), OVER)
    events: list[ExternalEvent] = [event async for event in stage.client.stream("t-1")]
    assert [(event.type, event.sequence) for event in events] == [WHOLE[0], *WHOLE[2:]]
    told = lifecycle_events(TASK, 4, "http://api")[0]
    assert events[-1] == told, "as if it had come by itself"


async def test_progress_comes_once_and_does_not_move_the_mark(connect: Connect) -> None:
    running = lived("submitted", "started")
    reports = [event_frame(progress_event(running.evolve(progress_revision=n, progress=n), "here")) for n in (1, 2)]
    stage = connect(stream(*FRAMES[:2], *reports, error=BROKEN), stream(*reports, *FRAMES[2:]), OVER)
    events = [event async for event in stage.client.stream("t-1")]
    assert [event.data["progress"] for event in events if event.progress_revision] == [1, 2]
    assert len(events) == len(LIFE) + 2
    assert asked_after(stage)[1] == "t-1-2"


async def test_following_an_unknown_task_is_an_error(connect: Connect) -> None:
    with pytest.raises(TaskNotFoundError) as told:
        await heard(connect(problem(404, "task_not_found")))
    assert told.value.task_id == "t-1"


async def test_an_answer_that_is_no_event_stream_is_an_error(connect: Connect) -> None:
    with pytest.raises(ApiError, match=r"No events at http://api/.*: the answer is text/html"):
        await heard(connect(httpx.Response(200, html="<p>Hello</p>")))


async def test_a_proxy_that_holds_events_back_is_an_error(connect: Connect) -> None:
    with pytest.raises(ApiError, match="sent nothing for 30 seconds"):
        await heard(connect(stream(error=httpx.ReadTimeout("late"))))


async def test_silence_after_events_is_a_broken_connection(connect: Connect) -> None:
    stage = connect(stream(*FRAMES[:3], error=httpx.ReadTimeout("late")), stream(*FRAMES[3:]), OVER)
    assert await heard(stage) == WHOLE


async def test_too_many_streams_are_an_error_after_the_patience(connect: Connect) -> None:
    with pytest.raises(ApiUnavailableError):
        await heard(connect(problem(503, "too_many_streams"), patience=0))


async def test_leaving_a_stream_early_closes_its_connection(connect: Connect) -> None:
    closed: list[str] = []

    class Watched(httpx.Response):
        def close(self) -> None:
            closed.append("close")
            super().close()

        async def aclose(self) -> None:
            closed.append("aclose")
            await super().aclose()

    def endless(request: httpx.Request) -> httpx.Response:
        told = stream(*FRAMES)(request)
        return Watched(200, headers=told.headers, stream=told.stream)

    stage = connect(endless)
    events = stage.client.stream("t-1")
    await anext(events)
    assert closed == []
    await events.aclose()
    assert closed
