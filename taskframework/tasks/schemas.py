"""JSON Schemas (2020-12) of the parameters and results of task types, and a description of a schema in words."""

from __future__ import annotations

import functools
import logging
from typing import Any, get_args

from pydantic import AliasChoices, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import from_json, to_json

from taskframework.model.values import Json

logger = logging.getLogger(__name__)

#: The schema of a type without parameters. Many callers send an empty object, and mean null.
NO_PARAMETERS: Json = {"anyOf": [{"type": "null"}, {"type": "object", "maxProperties": 0}]}
#: The most fields that a message names.
_MAX_NAMED_FIELDS = 10
_TYPE_NAMES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
    "null": "null",
}


class _Schemas(GenerateJsonSchema):
    """Makes JSON Schemas and never fails: a type that cannot be described becomes a schema that accepts everything."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own form

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def schema_of(task_type: str, adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> Json:
    """A schema as JSON. If it cannot be made, the schema accepts everything, so that the worker starts anyway."""
    try:
        schema = adapter.json_schema(mode=mode, schema_generator=_Schemas)
        return from_json(to_json(schema, inf_nan_mode="null"))
    except Exception as error:  # authors add code and values of their own to a schema
        logger.warning("task type %s has no JSON schema (%s): %s: %s", task_type, mode, type(error).__name__, error)
        return {}


@functools.lru_cache(maxsize=256)
def describe_parameters_cached(task_type: str, adapter: TypeAdapter[Any]) -> str:
    """The same for a task type, cached: a schema takes a millisecond, and all items of an upload may be wrong."""
    return describe_parameters(schema_of(task_type, adapter, "validation"))


def fields_in(schema: Json, root: Json | None = None) -> frozenset[str] | None:
    """The names of the fields that values with this schema can have; None if the schema does not list them.

    Args:
        schema: the schema, or a part of one.
        root: the whole schema, whose definitions a part refers to; None: `schema` is the whole.
    """
    root = schema if root is None else root
    if schema == NO_PARAMETERS:
        return frozenset()
    schema = _resolve_reference(schema, root)
    if (alternatives := schema.get("anyOf", schema.get("oneOf"))) is not None:
        found = [fields_in(alternative, root) for alternative in alternatives]
        return frozenset().union(*[names for names in found if names is not None]) if None not in found else None
    if schema.get("type", "object") != "object":
        return frozenset()
    is_open = schema.get("additionalProperties", "properties" not in schema)
    return None if is_open else frozenset(schema.get("properties", ()))


def names_of_field(model: Any, name: str) -> tuple[str, ...]:
    """The names under which a model takes the field that is submitted as `name`: this one first, then its aliases, and
    the name of its attribute if the model is populated by name too.
    """
    for part in get_args(model):  # of a union, or of an annotated type
        if len(names := names_of_field(part, name)) > 1:
            return names
    config = getattr(model, "model_config", {})
    for attribute, field in getattr(model, "__pydantic_fields__", {}).items():
        alias = field.validation_alias
        aliases = [it for it in (alias.choices if isinstance(alias, AliasChoices) else [alias]) if isinstance(it, str)]
        if alias is None or config.get("populate_by_name") or config.get("validate_by_name"):
            aliases.append(attribute)
        if name in aliases:
            return tuple(dict.fromkeys((name, *aliases)))
    return (name,)


def describe_parameters(schema: Json) -> str:
    """A sentence about the parameters that a type with this schema takes; empty if the schema cannot be read."""
    try:
        return _sentence(_resolve_reference(schema, schema), schema)
    except Exception:  # as above; the sentence only adds help to an error, which must be raised in any case
        return ""


def _sentence(schema: Json, root: Json) -> str:
    if schema == NO_PARAMETERS:
        return "It takes no parameters: null or {}."
    fields = schema.get("properties")
    if not fields:
        return f"It takes JSON of this kind: {_type_names_of(schema)}."
    required = schema.get("required", ())
    named = []
    for name in sorted(fields, key=lambda name: name not in required):
        kind = _type_names_of(_resolve_reference(fields[name], root))
        named.append(f"{name} ({kind})" if name in required else f"{name} ({kind}, may be left out)")
    if len(named) > _MAX_NAMED_FIELDS:
        named[_MAX_NAMED_FIELDS:] = [f"and {len(named) - _MAX_NAMED_FIELDS} more"]
    return f"It takes an object with {', '.join(named)}."


def _type_names_of(schema: Json) -> str:
    kinds = [_TYPE_NAMES.get(each.get("type"), "value") for each in schema.get("anyOf", [schema])]
    return " or ".join(dict.fromkeys(kinds))


def _resolve_reference(schema: Json, root: Json) -> Json:
    """The schema to which a reference into the root schema leads; a schema without a reference stays as it is."""
    place = schema.get("$ref")
    return schema if place is None else root["$defs"][place.removeprefix("#/$defs/")]
