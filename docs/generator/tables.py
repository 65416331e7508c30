"""Tables and JSON Schemas as Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
#: How a page writes the name of a model that a schema refers to.
Link = Callable[[str], str]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what would end a cell or a row is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def fields(schema: Schema, link: Link) -> str:
    """A row for each field of a model; what must be given, or is always there, is marked."""
    required = schema.get("required", ())
    return table(
        ("Field", "", "Type", "Meaning"),
        (
            (f"`{name}`", "required" if name in required else "", type_of(field, link), field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ),
    )


def type_of(schema: Schema, link: Link) -> str:
    """The type that a schema says, in words that fit into a cell."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(type_of(kind, link) for kind in kinds))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {type_of(schema.get('items', {}), link)}"
        case "object" if isinstance(values := schema.get("additionalProperties"), Mapping):
            return f"object of {type_of(values, link)}"
        case "object" if "properties" in schema:
            return "object of " + ", ".join(f"`{name}`" for name in schema["properties"])
        case "string":
            return {"date-time": "time"}.get(schema.get("format", ""), "string") + _bounds(schema)
        case None:
            return "any JSON"
        case kind:
            return str(kind) + _bounds(schema)


def _bounds(schema: Schema) -> str:
    """How long or large a value may be."""
    parts = []
    if "minimum" in schema:
        parts.append(f"from {schema['minimum']:,}")
    if "maximum" in schema:
        parts.append(f"to {schema['maximum']:,}")
    if "maxLength" in schema:
        parts.append(f"at most {schema['maxLength']:,} characters")
    return f", {' '.join(parts)}" if parts else ""
