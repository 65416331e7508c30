"""The key that a client shows."""

from __future__ import annotations

import httpx
import pytest
from pydantic import SecretStr

from taskframework.errors import ConfigurationError
from taskframework.events.http import HttpEvents
from tests.unit.client.conftest import Connect, problem, task


@pytest.mark.parametrize("key", ["tf_a_b", "tf_a_b\n", "Bearer tf_a_b"])  # as a file has it, and a request
async def test_each_call_sends_the_api_key(connect: Connect, key: str) -> None:
    stage = connect(task(), problem(503, "stopping"), task(), api_key=key)
    for _ in range(2):
        await stage.client.get("x")
    assert [request.headers["authorization"] for request in stage.asked] == ["Bearer tf_a_b"] * 3


@pytest.mark.parametrize("key", [None, "", " "])
async def test_a_client_without_an_api_key_sends_none(connect: Connect, key: str | None) -> None:
    stage = connect(task(), api_key=key)
    await stage.client.get("x")
    assert "authorization" not in stage.asked[0].headers


@pytest.mark.parametrize("key", ["ключ", "tf_a_…", "tf_a\nb"])
def test_a_wrong_api_key_is_refused_before_any_request(key: str) -> None:
    with pytest.raises(ConfigurationError, match="contains a character that is not allowed in keys"):
        HttpEvents("http://api", api_key=key)


async def test_a_key_is_text(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="An API key is text, not a SecretStr"):
        connect(api_key=SecretStr("tf_a_b"))


async def test_event_subscribers_send_the_api_key_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"})

    kind = httpx.AsyncClient
    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: kind(**{**options, "transport": transport}))
    events = HttpEvents("http://api", api_key="tf_a_b")
    await events.open()
    await events.close()
    assert asked[0].headers["authorization"] == "Bearer tf_a_b"
