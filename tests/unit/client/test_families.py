"""The streams of several tasks and the lines of results, over connections that break anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from taskframework import ApiError, ApiUnavailableError
from taskframework.api.feed import sse_frame
from taskframework.api.task_follower import RESYNC
from taskframework.client.stream_readers import RECONNECT_PAUSE_SECONDS
from taskframework.model.view import public_view
from tests.unit.client.conftest import Connect, Pieces, Stage, problem, stream
from tests.unit.client.test_streaming import BROKEN, OVER, lived


def result(index: int, value: Any = None) -> dict[str, Any]:
    return {"index": index, "task_id": f"t-{index}", "status": "COMPLETED", "result": value, "error": None}


def lines(*pieces: bytes, error: Exception | None = None) -> Callable[[httpx.Request], httpx.Response]:
    headers = {"Content-Type": "application/x-ndjson"}
    return lambda _: httpx.Response(200, headers=headers, stream=Pieces(pieces, error))


def line(index: int, value: Any = None) -> bytes:
    return orjson.dumps(result(index, value)) + b"\n"


def asked(stage: Stage, name: str = "cursor") -> list[str | None]:
    return [request.url.params.get(name) for request in stage.asked]


async def followed(stage: Stage, **options: Any) -> list[int]:
    return [one.index async for one in stage.client.batch_results("b", follow=True, **options)]


@pytest.mark.parametrize("cut", [0, 1, -2])
async def test_a_line_that_is_cut_is_asked_for_again(connect: Connect, cut: int) -> None:
    stage = connect(lines(line(0), line(1)[:cut], error=BROKEN), lines(line(1), line(2)))
    assert await followed(stage) == [0, 1, 2]
    assert asked(stage) == ["0", "1"]
    assert {request.headers["accept"] for request in stage.asked} == {"application/x-ndjson"}
    assert stage.pauses == []


async def test_a_line_without_an_end_is_a_broken_connection(connect: Connect) -> None:
    stage = connect(lines(line(0), line(1)[:-1]), lines(line(1)))
    assert await followed(stage) == [0, 1]


async def test_a_batch_that_takes_long_is_asked_for_again(connect: Connect) -> None:
    silent = [lines(error=httpx.ReadTimeout("late")) for _ in range(3)]
    stage = connect(*silent, lines(line(7)))
    assert await followed(stage, first=7) == [7]
    assert asked(stage) == ["7"] * 4
    assert stage.pauses == [RECONNECT_PAUSE_SECONDS] * 3


async def test_line_ends_within_a_text_end_no_line(connect: Connect) -> None:
    text = "a\u2028b\x85c\x1cd"
    whole = line(0, text)
    stage = connect(lines(whole[:60], whole[60:]))
    assert [one.result async for one in stage.client.batch_results("b", follow=True)] == [text]
    whole_item = sse_frame("item", result(0, text), "b-items-1")
    stage = connect(stream(whole_item[:60], whole_item[60:]), OVER)
    assert [one.result async for one in stage.client.stream_items("b")] == [text]


async def test_an_answer_that_has_no_json_lines_is_an_error(connect: Connect) -> None:
    with pytest.raises(ApiError, match="a line that is not JSON"):
        await followed(connect(lines(b"<p>Hello</p>\n")))


async def test_results_are_given_up_when_the_patience_is_over(connect: Connect) -> None:
    with pytest.raises(ApiUnavailableError):
        await followed(connect(lines(line(0), error=BROKEN), problem(503, "stopping"), patience=0))


async def test_an_empty_page_ends_what_is_there_now(connect: Connect) -> None:
    pages = [{"items": [result(0)], "next_cursor": "1"}, {"items": [], "next_cursor": "1"}]
    stage = connect(*(httpx.Response(200, json=page) for page in pages))
    assert [one.index async for one in stage.client.batch_results("b")] == [0]


async def test_each_event_of_a_snapshot_is_given_and_the_place_moves_after_the_last(connect: Connect) -> None:
    task = lived("submitted", "started", "completed")
    stage = connect(stream(sse_frame("snapshot", public_view(task), "t-1-tree-a"), RESYNC), OVER)
    heard = [(event.type, event.place) async for event in stage.client.stream_tree("t-1", after="t-1-tree-0")]
    assert heard == [("task.submitted", "t-1-tree-0"), ("task.started", "t-1-tree-0"), ("task.completed", "t-1-tree-a")]
    assert [request.headers["last-event-id"] for request in stage.asked] == ["t-1-tree-0", "t-1-tree-a"]
    assert asked(stage, "tree") == ["true", "true"]


async def test_events_of_the_batch_itself_move_the_place_forward(connect: Connect) -> None:
    of_batch = sse_frame("snapshot", {"batch_id": "b"}, "b-items-a")
    stage = connect(stream(of_batch, sse_frame("item", result(4), "b-items-b"), error=BROKEN), OVER)
    assert [(one.index, one.place) async for one in stage.client.stream_items("b")] == [(4, "b-items-b")]
    stage = connect(stream(of_batch, error=BROKEN), OVER)
    assert [one async for one in stage.client.stream_items("b")] == []
    assert [request.headers.get("last-event-id") for request in stage.asked] == [None, "b-items-a"]
