"""The OpenAPI document: FastAPI's own, with the request models and problem documents that FastAPI cannot see."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import TypeAdapter

from taskframework.api.bodies import BODIES
from taskframework.api.callers import OPEN_PATHS
from taskframework.api.codes import CODES
from taskframework.api.problems import PROBLEM_JSON
from taskframework.api.stream_views import StreamedResult, StreamResultPage
from taskframework.api.views import (
    BatchResultPage,
    BatchResultView,
    CloudEventView,
    ProblemView,
    ResyncView,
    StreamedEvent,
)
from taskframework.submission.acceptance import option_schemas

_MODELS: tuple[type, ...] = (
    *BODIES,
    BatchResultPage,
    BatchResultView,
    ProblemView,
    StreamedEvent,
    StreamedResult,
    StreamResultPage,
    CloudEventView,
    ResyncView,
)
_REFERENCE = "#/components/schemas/{model}"
#: Problems of every route that needs a caller. `invalid_request`: none ignores a query that it has no place for.
_CODES_OF_ALL = ("unauthorized", "forbidden", "invalid_request", "too_many_requests")

#: The entry for every other status, which any route may answer with. Without this entry FastAPI would document its own
#: form of 422.
_DEFAULT_RESPONSE = "default"
#: The schema of one event or line of a stream. OpenAPI 3.2 calls it `itemSchema`, which 3.1 does not allow.
ITEM_SCHEMA = "x-item-schema"
STREAM_CONTENT = {"text/event-stream": {ITEM_SCHEMA: {"$ref": _REFERENCE.format(model=StreamedEvent.__name__)}}}
PROBLEM_CONTENT = {PROBLEM_JSON: {"schema": {"$ref": _REFERENCE.format(model=ProblemView.__name__)}}}


def request_body(model: type, *, is_optional: bool = False) -> dict[str, Any]:
    """Document the body of a route that reads its body itself; the result goes into `openapi_extra`."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": not is_optional, "content": {"application/json": {"schema": schema}}}}


def location_header(what: str) -> dict[str, Any]:
    """Document the header `Location` of an answer; the result goes into its `headers`."""
    description = f"Address of the {what}"
    return {"Location": {"description": description, "schema": {"type": "string", "format": "uri-reference"}}}


def key_header(description: str) -> dict[str, Any]:
    """Document the header `Idempotency-Key` of a route; the result goes into the `parameters` of `openapi_extra`."""
    schema = option_schemas()["idempotency_key"]["anyOf"][0]
    return {"name": "Idempotency-Key", "in": "header", "description": description, "schema": schema}


def problem_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Document the problems of a route by their codes; the result goes into `responses`."""
    by_status: dict[int | str, list[str]] = {}
    for code in sorted(codes, key=lambda code: CODES[code][0]):
        by_status.setdefault(CODES[code][0], []).append(code)
    by_status[_DEFAULT_RESPONSE] = ["internal_error"]
    return {
        status: {
            "description": "; ".join(f"{CODES[code][1]} (`{code}`)" for code in found),
            "content": dict(PROBLEM_CONTENT),  # its own, since some releases of FastAPI write into it
        }
        for status, found in by_status.items()
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an optional parameter without null, because a query leaves the parameter out instead."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return {**kinds[0], **{name: value for name, value in schema.items() if name != "anyOf"}} if kinds else schema


class DocumentedApi(FastAPI):
    """A FastAPI application whose document is complete."""

    #: FastAPI cannot make two documents at once: the second one fails. Two requests for it run in two threads.
    _making: ClassVar = threading.Lock()

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        with self._making:
            if self.openapi_schema is None:
                self.openapi_schema = self._make_document()
        return self.openapi_schema

    def _make_document(self) -> dict[str, Any]:
        document = super().openapi()
        _, definitions = TypeAdapter.json_schemas(
            [(model, "validation", TypeAdapter(model)) for model in _MODELS], ref_template=_REFERENCE
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions["$defs"])
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if path not in OPEN_PATHS:
                    for status, response in problem_responses(*_CODES_OF_ALL).items():
                        operation["responses"].setdefault(str(status), response)
                    # The empty entry: until the first key is made, callers need no key.
                    operation["security"] = [{"key": []}, {}]
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = _without_null(parameter["schema"])
        return document
