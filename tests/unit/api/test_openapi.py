"""The OpenAPI document says all that the interface does, and /docs needs nothing from elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from fastapi.routing import APIRoute

import taskframework.api as api_package
from taskframework import Settings, TaskFramework
from taskframework.api.addresses import methods_at, query_names
from taskframework.api.app import create_app
from taskframework.api.codes import CODES, TASK_CODES
from taskframework.api.letter_views import DeadLetterView
from taskframework.api.tasks import TaskQuery
from taskframework.api.views import HistoryEntryView, TaskErrorView, TaskView
from taskframework.model.query import TaskFilter
from taskframework.model.task_fields import HistoryEntry, TaskError
from taskframework.model.view import entry_view, error_view, public_view
from taskframework.operations.letter_views import DeadLetter
from taskframework.testing.factories import new_task
from tests.unit.api.conftest import Api


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(TaskFramework(Settings())).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_the_routes_say_what_the_document_says(document: dict[str, Any]) -> None:
    """Refusals name methods and parameters; they ask the routes, because making the document takes long."""
    app = create_app(TaskFramework(Settings()))
    ways = {(path, method.upper()): operation for path, method, operation in operations(document)}
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    assert len(routes) == len(ways)
    for route in routes:
        path, [method] = route.path_format, list(route.methods or ())
        named = [one["name"] for one in ways[path, method].get("parameters", ()) if one["in"] == "query"]
        assert sorted(query_names(route)) == sorted(named), path
        assert [one for one in methods_at(app, path) if one != "HEAD"] == sorted(m for p, m in ways if p == path)


def test_every_route_is_documented(document: dict[str, Any]) -> None:
    documented = {(path, method.upper()) for path, method, _ in operations(document)}
    modules = [import_module(f"{api_package.__name__}.{found.name}") for found in iter_modules(api_package.__path__)]
    routers = [module.router for module in modules if hasattr(module, "router")]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    assert documented == {
        (route.path.replace(":key", ""), method)
        for route in routes
        if route.include_in_schema
        for method in route.methods or ()
    }


def test_every_parameter_is_described(document: dict[str, Any]) -> None:
    found = [
        (path, parameter)
        for path, _, operation in operations(document)
        for parameter in operation.get("parameters", ())
    ]
    assert [(path, parameter["name"]) for path, parameter in found if not parameter.get("description")] == []
    schemas = {parameter["name"]: parameter["schema"] for _, parameter in found}
    assert {name for name, schema in schemas.items() if "anyOf" in schema} == set(), "nothing in a query can be null"
    for name in ("cursor", "task_id", "letter_id", "Idempotency-Key"):
        assert "pattern" in schemas[name]


def test_every_operation_is_explained_and_named(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) for name in names), names
    assert [path for path, _, operation in operations(document) if not operation["description"]] == []


def test_every_operation_documents_its_errors_as_problems(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        answers = operation["responses"]
        wanted = {"default"}
        if path.startswith("/api"):
            wanted |= {"401", "403", "422", "429", "503"}
        if "{" in path:
            wanted |= {"404"}
        if "requestBody" in operation:
            wanted |= {"400", "413", "415", "422"}
        assert wanted <= answers.keys(), (method, path)
        for status, answer in answers.items():
            if (status == "default" or int(status) >= 400) and path != "/readyz":
                assert list(answer["content"]) == ["application/problem+json"], (method, path, status)


@pytest.mark.parametrize(
    ("method", "path", "codes"),
    [
        ("post", "/api/v1/tasks", ["stream_mode", "newer_version", "version_conflict", "record_unreadable"]),
        ("get", "/api/v1/events", ["not_running"]),
        ("get", "/api/v1/tasks/{task_id}/events", ["not_running"]),
        ("get", "/metrics", ["not_running"]),
    ],
)
def test_problems_that_belong_to_what_a_route_does_are_named(
    document: dict[str, Any], method: str, path: str, codes: list[str]
) -> None:
    answers = document["paths"][path][method]["responses"]
    for code in codes:
        assert f"`{code}`" in answers.get(str(CODES[code].status), {"description": ""})["description"]


def test_the_document_is_whole(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name in references(document) if name.rpartition("/")[2] not in schemas] == []
    assert "HTTPValidationError" not in schemas, "FastAPI's own form of 422 is never sent"
    for name in ("SubmitTask", "SubmitTasks", "CancelTask", "PauseQueue", "RetryTask", "ReplayDeadLetters"):
        assert schemas[name]["additionalProperties"] is False
    assert schemas["SubmitTask"]["examples"]


def test_media_types_have_only_fields_of_the_version(document: dict[str, Any]) -> None:
    """Generators of clients refuse a document with others, such as `itemSchema` of OpenAPI 3.2."""
    assert document["openapi"].startswith("3.1.")
    for path, method, operation in operations(document):
        for part in (operation.get("requestBody", {}), *operation["responses"].values()):
            for media_type in part.get("content", {}).values():
                names = {name for name in media_type if not name.startswith("x-")}
                assert names <= {"schema", "example", "examples", "encoding"}, (path, method)


def test_the_models_have_the_fields_that_are_sent() -> None:
    task = new_task()
    entry = HistoryEntry(1, "submitted", task.created_at, 0, None, None)
    error = TaskError("code", "type", "message", True, "fingerprint")
    said = "`public_view` in model/view.py, and TaskView and TaskSummaryView in api/views.py, have the same fields"
    assert TaskView.model_fields.keys() == public_view(task).keys(), said
    assert HistoryEntryView.model_fields.keys() == entry_view(entry).keys()
    assert TaskErrorView.model_fields.keys() == (error_view(error) or {}).keys()
    letter = DeadLetter("id", task.created_at, task).view(whole=True)
    assert letter.keys() <= DeadLetterView.model_fields.keys()
    assert TaskView.model_validate(public_view(task)).task_id == task.task_id


def test_tasks_are_listed_by_every_condition_of_the_store() -> None:
    of_other_lists = {"batches", "dead", "ended_by"}
    lacking = TaskFilter.__dataclass_fields__.keys() - TaskQuery.model_fields.keys() - of_other_lists
    assert lacking == set(), "`TaskQuery` in api/tasks.py needs it too: see docs/adding/list-condition.md"


def test_two_threads_may_want_the_document_at_the_same_time() -> None:
    """Each answer for an unknown address needs it; FastAPI raises a KeyError if it makes two at once."""
    app = create_app(TaskFramework(Settings()))
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as threads:
            first, second = threads.map(lambda _: app.openapi(), range(2))
    finally:
        sys.setswitchinterval(usual)
    assert first is second


async def test_the_page_shows_everything_and_loads_nothing(api: Api) -> None:
    answer = await api.get("/docs")
    text = answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//|<script|@import|url\(""", text)
    document = (await api.get("/openapi.json")).json()
    for path, method, _ in operations(document):
        assert f"<code>{method.upper()} {path}</code>" in text
    for code, (_, title, advice) in CODES.items():
        assert f'id="{code}"' in text
        assert title in text
        assert advice.partition("`")[0] in unescape(text), "what to do about it"
    assert all(f"<code>{code}</code>" in text for code in TASK_CODES)
    for name in document["components"]["schemas"]:
        assert f'id="model-{name}"' in text
    links = re.findall(r'href="#([^"]+)"', text)
    assert links
    assert all(f'id="{link}"' in text for link in links)
