"""The example that generates details: its tasks against the stand-in endpoint, and what it makes of answers."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from taskframework import NonRetryableError, RetryableError
from taskframework.deduplication import deduplicate
from tests.support.command import Folder, Started, environment_with, start_program
from tests.support.pages import ROOT
from tests.support.process import free_ports

EXAMPLE = ROOT / "docs" / "examples" / "detail_generation"
URL = "OPENAI_BASE_URL"


@pytest.fixture(scope="module")
def details() -> Iterator[Any]:
    """The module of the tasks."""
    spec = importlib.util.spec_from_file_location("details", EXAMPLE / "details.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["details"] = importlib.util.module_from_spec(spec)  # pydantic looks for its types there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["details"]


@pytest.fixture
def endpoint(folder: Folder) -> Iterator[Callable[..., str]]:
    """Starts the stand-in with options and gives its address; the example is in the folder then."""
    running: list[Started] = []

    def start(*options: str) -> str:
        shutil.copytree(EXAMPLE, folder.path, dirs_exist_ok=True)
        [port] = free_ports(1)
        command = [sys.executable, "endpoint.py", "--port", str(port), *options]
        running.append(start_program(command, folder.path, environment_with({})))
        running[-1].line("Listening on")
        return f"http://localhost:{port}/v1"

    yield start
    for started in running:
        started.kill()


def _start_dev(folder: Folder, url: str) -> None:
    [port] = free_ports(1)
    folder.start("dev", "--app", "details", "--port", str(port), env={URL: url}).event("ready")


def test_batches_are_full_and_without_duplicates_though_the_endpoint_is_busy_and_dies(
    folder: Folder, endpoint: Callable[..., str]
) -> None:
    bad = ("--busy", "0.4", "--retry-after", "0.1", "--dies", "0.1", "--fastest", "0", "--slowest", "0.02")
    _start_dev(folder, endpoint(*bad, "--names", "80"))
    wanted = '{"kind": "place", "count": 50, "style": "a cold coast", "threshold": 0.94}'
    done = folder.json("submit", "detail-batch", wanted, "--wait", "--timeout", "45s")
    names = [item["name"] for item in done["result"]["items"]]
    assert len(names) == 50
    assert deduplicate(names, threshold=0.94).duplicates == []
    assert done["result"]["rounds"] > 1, "fifty out of eighty names: some came twice and were replaced"
    calls = folder.json("tasks", "list", "--type", "invent-group", "--limit", "500")["items"]
    assert any(call["attempt"] > 1 for call in calls), "half of the calls failed, and were repeated"


def test_an_endpoint_that_refuses_fails_the_batch_with_the_reason(folder: Folder, endpoint: Callable[..., str]) -> None:
    _start_dev(folder, endpoint().replace("/v1", "/v2"))
    wanted = '{"kind": "item", "count": 10, "style": "left behind"}'
    batch = folder.json("submit", "detail-batch", wanted, "--wait", "--timeout", "45s", code=1)
    assert batch["error"]["message"] == "the endpoint gave nothing; the sub-tasks say why"
    groups = folder.json("tasks", "list", "--type", "invent-group")["items"]
    assert [group["error"]["message"] for group in groups] == ["the endpoint answered 404: Not Found"] * 2
    assert {group["attempt"] for group in groups} == {1}


def _answer(text: str) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"message": {"content": text}}]})


def test_lines_of_an_answer_are_read_whatever_models_put_around_them(details: Any) -> None:
    answer = _answer(
        "Here you are:\n1. Oakham | A town.\n - Elm |  Trees | and more.\n\n**Moor** | x\nno description |\n"
    )
    found = [(detail.name, detail.description) for detail in details.details_in(answer)]
    assert found == [("Oakham", "A town."), ("Elm", "Trees | and more."), ("Moor", "x")]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(429), RetryableError),
        (httpx.Response(503), RetryableError),
        (httpx.Response(200, text="<html>"), RetryableError),
        (httpx.Response(200, json={"choices": []}), RetryableError),
        (httpx.Response(200, json={"choices": [{"message": {"content": None}}]}), RetryableError),
        (httpx.Response(401, text="no key"), NonRetryableError),
        (httpx.Response(302), NonRetryableError),
    ],
    ids=lambda value: str(value.status_code) if isinstance(value, httpx.Response) else value.__name__,
)
def test_a_wrong_answer_is_asked_for_again_unless_it_was_refused(
    details: Any, answer: httpx.Response, error: type[Exception]
) -> None:
    with pytest.raises(error):
        details.details_in(answer)


def test_a_busy_endpoint_says_when_to_ask_again(details: Any) -> None:
    with pytest.raises(RetryableError) as caught:
        details.details_in(httpx.Response(429, headers={"Retry-After": "2.5"}))
    assert caught.value.delay is not None
    assert caught.value.delay.total_seconds() == 2.5


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        ("7", lambda seconds: seconds == 7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", lambda seconds: seconds < 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", lambda seconds: seconds > 1e9),
        ("Wed, 21 Oct 2015 07:28:00 -0000", lambda seconds: seconds is None),
        ("soon", lambda seconds: seconds is None),
        (None, lambda seconds: seconds is None),
    ],
)
def test_retry_after_is_seconds_or_a_date(details: Any, header: str | None, fits: Callable[[Any], bool]) -> None:
    assert fits(details.retry_after(header))


def test_groups_ask_for_what_is_missing_and_name_what_is_there(details: Any) -> None:
    wanted = details.Wanted(kind="place", count=12, style="cold")
    assert [group.count for group in details.groups(wanted, [])] == [5, 5, 2]
    kept = [details.Detail(name=f"name {number}", description="") for number in range(9)]
    [group] = details.groups(wanted, kept)
    assert (group.count, group.avoid) == (3, [detail.name for detail in kept])
