"""What task code hands over to be stored: plain JSON, or a pydantic model in its place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter

from taskframework.errors import ValueNotStorableError
from taskframework.model.values import MAX_PARAMETERS_BYTES, Json, check_storable


def storable_parameters(value: Any, adapter: TypeAdapter[Any] | None = None) -> tuple[Json, bytes]:
    """Parameters in the form they are stored in, and as canonical JSON.

    Args:
        value: JSON already, or an object of the caller's, which becomes JSON.
        adapter: writes such an object; without it, its own class does.

    Raises:
        ValueNotStorableError: if a store could not keep them.
    """
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        adapter = adapter or TypeAdapter(type(value))
        if any(isinstance(leaf, (Secret, SecretStr, SecretBytes)) for leaf in _leaves(adapter.dump_python(value))):
            # The task would get the asterisks of a SecretStr, and nobody would know before it runs.
            raise ValueNotStorableError("parameters", "a SecretStr becomes asterisks in JSON; name where the secret is")
        value = adapter.dump_python(value, mode="json", by_alias=True)
    return value, check_storable(value, "parameters", MAX_PARAMETERS_BYTES)


def storable(value: object, what: str, max_bytes: int) -> Json:
    """A value of task code as plain JSON that every store keeps.

    Args:
        value: JSON already, or a pydantic model, which becomes its JSON form (by alias, so that the model can read it
            again).
        what: its name in the error, for example "progress".
        max_bytes: largest size as JSON.

    Raises:
        ValueNotStorableError: for anything else, and beyond the limits of `check_storable`.
    """
    plain = _dumped(value, what) if isinstance(value, BaseModel) else value
    check_storable(plain, what, max_bytes)
    return plain


def refuse_non_finite(value: Any, what: str) -> None:
    """Refuse NaN and infinities before pydantic sees them: where a type is Any it turns them into null.

    Raises:
        ValueNotStorableError: if there is one in the value.
    """
    for leaf in _leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise ValueNotStorableError(what, f"{leaf} is not a JSON number")


def _leaves(value: Any) -> Iterator[Any]:
    """Every value inside the collections of a value."""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _dumped(model: BaseModel, what: str) -> Json:
    try:
        refuse_non_finite(model.model_dump(), what)
        return model.model_dump(mode="json", by_alias=True)
    except (ValueError, TypeError, RecursionError) as error:  # a field of type Any may hold anything
        raise ValueNotStorableError(what, str(error)[:500]) from error
