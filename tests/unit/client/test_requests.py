"""What a client sends: its JSON, and what cannot be sent at all."""

from __future__ import annotations

import json
from collections import deque
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field

from taskframework import ApiError, TaskNotFoundError, ValueNotStorableError
from taskframework.client.requests import as_json
from tests.unit.client.conftest import Connect, task

#: An empty page of a list.
NOTHING = httpx.Response(200, json={"items": [], "next_cursor": None})

#: As many texts as a set hardly ever has in order by chance.
TAGS = [f"tag-{letter}" for letter in "abcdefghij"]


class Labels(BaseModel):
    tags: set[str]
    words: list[set[str]] = Field(alias="Words")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (set(TAGS), TAGS),
        ({"of": [frozenset(TAGS)]}, {"of": [TAGS]}),
        (deque([set(TAGS)]), [TAGS]),
        ([Labels(tags=set(TAGS), Words=[set(TAGS)])], [{"tags": TAGS, "Words": [TAGS]}]),
    ],
)
def test_sets_are_sent_in_order(content: Any, expected: Any) -> None:
    """Their own order is another one in each process, and a repeated submission would have other parameters."""
    assert json.loads(as_json(content)) == expected


async def test_a_model_is_sent_by_its_aliases(connect: Connect) -> None:
    """So does the model itself read its JSON."""
    stage = connect(task(202))
    await stage.client.submit("label", Labels(tags=set(), Words=[]))
    assert json.loads(stage.asked[0].content)["parameters"] == {"tags": [], "Words": []}


@pytest.mark.parametrize("items", [[1], iter([1])])
async def test_an_option_of_a_batch_that_is_no_json_is_refused(connect: Connect, items: Any) -> None:
    stage = connect()
    with pytest.raises(ValueNotStorableError):
        await stage.client.submit_batch("mail", items, policy=object())
    assert stage.asked == []


@pytest.mark.parametrize(("task_id", "error"), [("x" * 70_000, ApiError), ("\ud800", TaskNotFoundError)])
async def test_an_id_that_cannot_be_sent_is_refused(connect: Connect, task_id: str, error: type[Exception]) -> None:
    stage = connect()
    with pytest.raises(error):
        await stage.client.get(task_id)
    assert stage.asked == []


@pytest.mark.parametrize("text", ["\ud800", "x" * 70_000])
async def test_a_condition_that_cannot_be_sent_is_refused(connect: Connect, text: str) -> None:
    with pytest.raises(ApiError, match=r"The request cannot be sent: .*") as refused:
        await anext(connect().client.list_tasks(error=text))
    assert isinstance(refused.value.__cause__, httpx.InvalidURL | UnicodeEncodeError)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("batches", {"status": "RUNNING", "task_type": "mail", "user_id": "ann", "idempotency_key": "news"}),
        ("dead_letters", {"finished_after": datetime(2026, 1, 1, tzinfo=UTC), "finished_before": "2026-02-01T00:00Z"}),
        ("dead_letter_groups", {"task_type": "mail", "user_id": "ann"}),
    ],
)
async def test_a_list_takes_the_conditions_of_the_interface(connect: Connect, name: str, where: dict[str, Any]) -> None:
    stage = connect(NOTHING)
    assert [one async for one in getattr(stage.client, name)(**where)] == []
    texts = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in where.items()}
    assert dict(stage.asked[0].url.params) == texts


async def test_what_is_queued_again_takes_a_reason_and_reopens_its_parent(connect: Connect) -> None:
    begun: dict[str, Any] = {
        "replay_id": "r",
        "action": "retry",
        "status": "RUNNING",
        "by": "ann",
        "at": "2026-01-01T00:00:00Z",
    }
    begun |= dict.fromkeys(["total", "done", "refused", "failed"], 0) | dict.fromkeys(["rate", "reason", "finished_at"])
    stage = connect(task(), httpx.Response(200, json={"items": []}), httpx.Response(202, json=begun))
    more: dict[str, Any] = {"reopen": True, "reason": "it is back"}
    await stage.client.retry("t-1", **more)
    await stage.client.replay_edited(["t-1"], 5, **more)
    await stage.client.retry_all({"task_type": "mail"}, **more)
    sent = [json.loads(request.content) for request in stage.asked]
    assert sent == [
        more,
        {"ids": ["t-1"], "parameters": 5, "dry_run": False, **more},
        {"filter": {"task_type": "mail"}, **more},
    ]
