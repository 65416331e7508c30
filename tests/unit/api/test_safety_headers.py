"""The headers that keep a browser from doing with an answer what nobody meant."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx
import pytest

from taskframework.api.app import create_app, create_health_app
from taskframework.api.safety_headers import SAFETY_HEADERS
from tests.unit.api.conftest import TASKS, Api

_PATHS = ("/", "/docs", "/openapi.json", "/healthz", "/metrics", "/nowhere", TASKS, f"{TASKS}/nobody", "/api/v1/me")


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE", "BREW"])
async def test_every_answer_has_the_safety_headers(api: Api, method: str) -> None:
    for path in _PATHS:
        answer = await api.request(method, path)
        wanted = dict(SAFETY_HEADERS) | (
            {"cache-control": "no-cache"} if (path, answer.status_code) == ("/", 200) else {}
        )
        del wanted["content-security-policy"]
        assert {name: answer.headers[name] for name in wanted} == wanted
        assert len(answer.headers.get_list("content-security-policy")) == 1, "two policies would both count"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "strict-transport-security" not in answer.headers, "this connection has no TLS"


async def test_the_answers_of_a_worker_have_the_safety_headers(api: Api) -> None:
    app = create_health_app(api.framework)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client:
        answer = await client.get("/healthz")
    assert {name: answer.headers[name] for name in SAFETY_HEADERS} == SAFETY_HEADERS


async def test_answers_over_tls_have_the_strict_transport_security_header(api: Api) -> None:
    app = create_app(api.framework)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://api") as client:
        answer = await client.get("/healthz")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_the_style_of_the_page_is_the_one_its_policy_allows(api: Api) -> None:
    answer = await api.get("/docs")
    [style] = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert "<script" not in answer.text
    assert not re.search(r"\s(style|on\w+)=", answer.text), "a policy without 'unsafe-inline' ignores these"


async def test_no_other_site_may_read_an_answer(api: Api) -> None:
    foreign = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for path in _PATHS:
        for method in ("GET", "POST", "OPTIONS"):
            answer = await api.request(method, path, headers=foreign)
            assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert (await api.options(TASKS, headers=foreign)).status_code == 405, "so a browser sends nothing after that"
