"""A failed upload without a key of the caller leaves nothing behind, and touches no other batch."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from taskframework import InvalidRequestError
from tests.unit.client.conftest import Connect, problem
from tests.unit.client.test_repeating import BATCH


@pytest.mark.parametrize("name", ["unique", "debounce", "throttle"])
async def test_an_option_that_no_batch_has_cancels_no_other_batch(connect: Connect, name: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return problem(422, "invalid_request", members={"errors": [{"field": name, "message": "no such option"}]})
        is_by_key = "idempotency_key" in request.url.params
        return httpx.Response(200, json={"items": [] if is_by_key else [BATCH.json()], "next_cursor": None})

    stage = connect(*[answer] * 4)
    options: dict[str, Any] = {name: {"key": "k", "version": 1}}
    with pytest.raises(InvalidRequestError):
        await stage.client.submit_batch("mail", iter([1, 2]), **options)
    assert [request.url.path for request in stage.asked if request.url.path.endswith("/cancel")] == []
