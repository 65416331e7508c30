"""What would be different in parameters that were written as JSON and read again: a field lost, another class."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

_SCALARS = frozenset({str, int, float, bool, type(None)})
Place = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An object that would be another one after it was read."""

    #: Where it is in the parameters; empty: the parameters themselves.
    place: Place
    message: str
    hint: str


def change_when_read(accepted: Any, read: Any) -> Change | None:
    """What an attempt would get in another form than the submitter gave it; None if nothing.

    Args:
        accepted: what the type of the parameters made of the given value.
        read: what it makes of the stored JSON.
    """
    for place, given, got in _pairs((), accepted, read, set()):
        kind, gets = type(given), type(got)
        if kind is gets or not _is_object(kind):
            continue
        names = _fields_of(kind)
        lost = [name for name in names if not hasattr(got, name)]
        # A dictionary or another class may be meant inside, or in place of a dataclass: the type says Any, or has a
        # serializer that writes a reference. In place of a model, it is not.
        is_meant = bool(place) or not isinstance(given, BaseModel)
        if lost and (not is_meant or (_is_object(gets) and issubclass(kind, gets))):
            # pydantic writes an instance of a subclass with the fields of the declared class
            wrong = f"{', '.join(lost)} of {kind.__name__} would be lost: an attempt gets an instance of"
            where = "there" if place else "as the parameters of the task type"
            hint = f"Declare {kind.__name__} {where}, or submit an instance of {gets.__name__}."
            return Change(place, f"{wrong} {gets.__name__}", hint)
        if not lost and _is_object(gets) and not issubclass(kind, gets):  # a union takes the first class that fits
            wrong = f"an attempt gets an instance of {gets.__name__} and not of {kind.__name__}: their JSON is alike"
            return Change(place, wrong, "Give the union of these classes a discriminator: Field(discriminator=...).")
    return None


def _pairs(place: Place, value: Any, other: Any, seen: set[tuple[int, int]]) -> Iterator[tuple[Place, Any, Any]]:
    """Two values of one form, and the pairs of collections and objects at the same place in both. In sets there are no
    places.
    """
    if (pair := (id(value), id(other))) in seen:  # objects may refer to each other
        return
    seen.add(pair)
    yield place, value, other
    match value, other:
        case (list() | tuple() | deque(), list() | tuple() | deque()):
            parts: Iterable[tuple[str | int, Any, Any]] = (
                (index, *both) for index, both in enumerate(zip(value, other, strict=False))
            )
        case (dict(), dict()):
            parts = ((str(key), value[key], other[key]) for key in value.keys() & other.keys())
        case _:
            names = _fields_of(type(value))
            parts = ((name, getattr(value, name, None), getattr(other, name, None)) for name in names)
    for name, part, counterpart in parts:
        if type(counterpart) not in _SCALARS:  # there may be a hundred thousand
            yield from _pairs((*place, name), part, counterpart, seen)


def _is_object(kind: type) -> bool:
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def _fields_of(kind: type) -> Sequence[str]:
    """The names of the fields of a model or a dataclass that are in its JSON; none for any other class."""
    if issubclass(kind, BaseModel):
        return [name for name, field in kind.model_fields.items() if not field.exclude]
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else ()
