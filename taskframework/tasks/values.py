"""Values of task code that are to be stored: plain JSON, or a pydantic model."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections import deque
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from taskframework.errors import InvalidRequestError, ValueNotStorableError
from taskframework.model.values import MAX_PARAMETERS_BYTES, Json, check_storable

Many = TypeVar("Many")

_SECRETS = (Secret, SecretStr, SecretBytes)
_COLLECTIONS = (list, tuple, set, frozenset, deque, dict)


def check_iterable(values: Many) -> Many:
    """Check that a value holds the parameters of several tasks, and return it unchanged.

    Raises:
        TypeError: for a single value. A text, an object or a model could be iterated, and would become one task for
            each letter or field.
    """
    if isinstance(values, str | bytes | Mapping | BaseModel) or not isinstance(values, Iterable | AsyncIterable):
        raise TypeError(
            f"the parameters of several tasks are a list, or another iterable, not one {type(values).__name__}; "
            "for a single task write a list of one"
        )
    return values


def own_copy(item: Any) -> Any:
    """An item of an iterable as it is now: whoever makes the next item may fill the same list or dictionary again."""
    if not isinstance(item, list | dict):
        return item
    try:
        return copy.deepcopy(item)
    except Exception:  # an object in it that cannot be copied can neither be stored; its error comes later
        return item


def copy_json(value: Json) -> Json:
    """A copy of JSON that a store can keep: its author may change the original before it is stored."""
    copied: Json = orjson.loads(orjson.dumps(value))
    return copied


def check_first(first: object) -> None:
    """Check where results are to begin.

    Raises:
        InvalidRequestError: if it is no whole number from 0 on.
    """
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        hint = "Items and positions are counted from 0."
        raise InvalidRequestError("first", f"must be a whole number from 0 on, not {first!r:.50}", hint)


def storable_parameters(
    value: Any, adapter: TypeAdapter[Any] | None = None, accepted: Any = None
) -> tuple[Json, bytes]:
    """Parameters in the form they are stored in, and as canonical JSON.

    Args:
        value: JSON already, or an object of the caller, which becomes JSON.
        adapter: writes such an object as JSON; None: the class of the object does.
        accepted: what the adapter made of the value. It is stored if the value is neither JSON nor an object: a
            generator is used up when the adapter has read it.

    Raises:
        ValueNotStorableError: if a store could not keep them.
    """
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        try:
            value = _as_json(value, adapter or TypeAdapter(type(value)))
        except (ValueError, RecursionError) as error:  # a field of type Any or bytes may hold anything
            raise ValueNotStorableError("parameters", reason_of(error)) from None
        return value, check_storable(value, "parameters", MAX_PARAMETERS_BYTES)
    try:
        return value, check_storable(value, "parameters", MAX_PARAMETERS_BYTES)
    except ValueNotStorableError:  # the value may be a set or a generator, or contain objects, such as models in a list
        if adapter is None or (plain := _accepted_as_json(accepted, adapter)) is None:
            raise
    return plain, check_storable(plain, "parameters", MAX_PARAMETERS_BYTES)


def _as_json(value: Any, adapter: TypeAdapter[Any]) -> Json:
    # A wrong value was refused before. The serializer would also warn of a value that mixes JSON and instances.
    known = adapter.dump_python(value, by_alias=True, warnings=False)
    refuse_values_lost_in_json(known, "parameters")
    return with_sorted_sets(known, adapter.dump_python(value, mode="json", by_alias=True, warnings=False))


def with_sorted_sets(value: Any, plain: Json) -> Json:
    """The JSON of a value, with the items of its sets in order: a set has another order in each process, so that a
    repeated submission would seem to have other parameters.
    """
    match value, plain:
        case (set() | frozenset(), list()):
            return sorted(plain, key=lambda item: json.dumps(item, sort_keys=True))
        case (list() | tuple() | deque(), list()) if len(value) == len(plain):
            return [with_sorted_sets(*pair) for pair in zip(value, plain, strict=True)]
        case (dict(), dict()) if len(value) == len(plain):
            pairs = zip(value.values(), plain.items(), strict=True)
            return {name: with_sorted_sets(part, written) for part, (name, written) in pairs}
    return plain


def read_json(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Read JSON, or an instance, as the type of an adapter.

    Raises:
        ValidationError: naming each field that does not fit.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        # A strict type takes the text of a date, a Decimal or a UUID only where pydantic knows that it reads JSON.
        try:
            return adapter.validate_json(json.dumps(value, allow_nan=False))
        except ValidationError as of_json:
            raise min(error, of_json, key=ValidationError.error_count) from None
        except (TypeError, ValueError, RecursionError):  # it is not JSON
            raise error from None


def _accepted_as_json(accepted: Any, adapter: TypeAdapter[Any]) -> Json:
    """What an adapter made of a value, as JSON; None if that cannot be written, or would be another value when read."""
    try:
        plain = _as_json(accepted, adapter)
        read = read_json(adapter, plain)
    except UnicodeDecodeError as error:
        raise ValueNotStorableError("parameters", reason_of(error)) from None
    except (PydanticSerializationError, ValidationError, RecursionError):
        return None
    # Classes of the caller need not be comparable.
    is_comparable = all(isinstance(part, (str, int, float, type(None), *_COLLECTIONS)) for part in _parts(accepted))
    return None if is_comparable and read != accepted else plain


def to_storable_json(value: object, what: str, max_bytes: int) -> Json:
    """A value of task code as plain JSON that every store keeps, and that no later change of the value affects.

    Args:
        value: JSON already, or a pydantic model, which becomes its JSON form (by alias, so that the model can read it
            again).
        what: its name in the error, for example "progress".
        max_bytes: largest size as JSON.

    Raises:
        ValueNotStorableError: for anything else, and beyond the limits of `check_storable`.
    """
    plain = _dump_model(value, what) if isinstance(value, BaseModel) else value
    check_storable(plain, what, max_bytes)
    return copy_json(plain)


def refuse_values_lost_in_json(value: Any, what: str) -> None:
    """Refuse values that pydantic changes without an error: NaN and infinities become null where a type is Any, a
    SecretStr becomes asterisks, and of two keys that are one text in JSON only one is left.

    Raises:
        ValueNotStorableError: if the value contains one of these.
    """
    for part in _parts(value):
        if isinstance(part, float) and not math.isfinite(part):
            raise ValueNotStorableError(what, f"{part} is not a JSON number")
        if isinstance(part, _SECRETS):
            raise ValueNotStorableError(what, "a SecretStr becomes asterisks in JSON; name where the secret is")
        if isinstance(part, dict) and len(set(map(_key_in_json, part))) < len(part):
            raise ValueNotStorableError(what, "two keys of a dictionary are the same text in JSON")


def _key_in_json(key: Any) -> str:
    """The text that pydantic makes of a key of a dictionary."""
    key = key.value if isinstance(key, Enum) else key
    return str(key).lower() if isinstance(key, bool) else str(key)


def _parts(value: Any) -> Iterator[Any]:
    """A value, and every value inside its collections."""
    yield value
    if isinstance(value, _COLLECTIONS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _parts(item)


def _dump_model(model: BaseModel, what: str) -> Json:
    try:
        refuse_values_lost_in_json(model.model_dump(), what)
        return model.model_dump(mode="json", by_alias=True)
    except (ValueError, TypeError, RecursionError) as error:  # a field of type Any may hold anything
        raise ValueNotStorableError(what, reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Why pydantic cannot write a value as JSON."""
    text = str(error)
    return (
        "bytes that are not UTF-8 need a model with ser_json_bytes and val_json_bytes set to base64"
        if "utf-8" in text
        else text[:500]
    )
