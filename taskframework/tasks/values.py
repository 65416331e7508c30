"""What task code hands over to be stored: plain JSON, or a pydantic model in its place."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pydantic import BaseModel, TypeAdapter

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
        value = (adapter or TypeAdapter(type(value))).dump_python(value, mode="json", by_alias=True)
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
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueNotStorableError(what, f"{value} is not a JSON number")
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            refuse_non_finite(item, what)
    elif isinstance(value, dict):
        for item in value.values():
            refuse_non_finite(item, what)


def _dumped(model: BaseModel, what: str) -> Json:
    try:
        refuse_non_finite(model.model_dump(), what)
        return model.model_dump(mode="json", by_alias=True)
    except (ValueError, TypeError, RecursionError) as error:  # a field of type Any may hold anything
        raise ValueNotStorableError(what, str(error)[:500]) from error
