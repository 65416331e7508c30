"""The HTTP interface, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generator.tables import Schema, fields, table, type_of
from taskframework import Settings, TaskFramework
from taskframework.api.app import create_app
from taskframework.api.openapi import ITEM_SCHEMA

_INTRODUCTION = """\
# HTTP

Every operation and every model. How they are used, with examples, is in [over HTTP](../http.md); what holds for all
of them [too](../http.md#what-holds-for-all-calls). A running API has the same at `/docs`, and for programs at
`/openapi.json`. Errors are [problem documents](errors.md).

This page is made from the OpenAPI document, by `make docs`.
"""
#: Answers of every operation that are told once, at the top, by the link to the errors.
_OF_ALL = {"401", "403", "429", "default"}


def document() -> dict[str, Any]:
    """What a running API answers at `/openapi.json`."""
    return create_app(TaskFramework(Settings())).openapi()


def markdown() -> str:
    """The operations by what they are about, then the models they name."""
    found = document()
    operations = list(_operations(found))
    parts = [_INTRODUCTION]
    for tag in sorted({tag: None for tag, _ in operations}, key=lambda tag: tag != "tasks"):
        parts.append(f"\n## {tag[0].upper()}{tag[1:]}\n")
        parts += [text for about, text in operations if about == tag]
    parts.append("\n## Models\n")
    parts += [_model(name, schema) for name, schema in sorted(found["components"]["schemas"].items())]
    return "".join(parts)


def _operations(found: Schema) -> Iterator[tuple[str, str]]:
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield operation["tags"][0], _operation(f"{method.upper()} {path}", operation)


def _operation(call: str, operation: Schema) -> str:
    parts = [f"\n### {operation['summary']}\n\n`{call}`\n"]
    if description := operation.get("description", ""):
        parts.append(f"\n{description.strip()}\n")
    if parameters := operation.get("parameters"):
        parts.append("\n" + table(("Parameter", "In", "Type", "Meaning"), map(_parameter, parameters)))
    if body := operation.get("requestBody"):
        kinds = (f"{type_of(part['schema'], _link)} as `{kind}`" for kind, part in body["content"].items())
        parts.append(f"\nBody: {', or '.join(kinds)}{'' if body.get('required') else '; may be left out'}.\n")
    answers = sorted((str(status), _answer(answer)) for status, answer in operation["responses"].items())
    parts.append("\n" + table(("Status", "Answer"), (row for row in answers if row[0] not in _OF_ALL)))
    return "".join(parts)


def _parameter(parameter: Schema) -> tuple[str, str, str, str]:
    name = f"`{parameter['name']}`" + (" (required)" if parameter.get("required") else "")
    return name, parameter["in"], type_of(parameter["schema"], _link), parameter.get("description", "")


def _answer(answer: Schema) -> str:
    content = answer.get("content", {})
    models = (part.get("schema") or part.get(ITEM_SCHEMA, {}) for part in content.values())
    named = dict.fromkeys(type_of(model, _link) for model in models if {"$ref", "anyOf"} & model.keys())
    return f"{answer['description']}{': ' if named else ''}{', '.join(named)}"


def _model(name: str, schema: Schema) -> str:
    parts = [f"\n### {name}\n", f"\n{schema['description']}\n" if "description" in schema else ""]
    if "properties" in schema:
        parts.append("\n" + fields(schema, _link))
    elif "enum" in schema:
        parts.append(f"\nOne of {type_of(schema, _link)}.\n")
    return "".join(parts)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"
