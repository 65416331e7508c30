"""The shape of stored dataclasses, read from the types of their fields, so that no store lists fields by name.

The type of a field says how the field is stored. A `datetime` is a time. A dataclass is a document within the document,
and a tuple of dataclasses is a list of documents. `Json` is a user's value, and stores give no meaning to the names in
it. A field that few tasks use is `Rare`: a document contains it only if it differs from its default, because each field
makes writes slower. A new field is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from taskframework.model.values import Json

T = TypeVar("T")

_RARE = object()
Rare = Annotated[T, _RARE]

#: Tools with which people change documents may write a whole number as a fraction.
_REQUIRED_TYPES: Mapping[Any, Any] = {str: str, int: (int, float), datetime: datetime}


@dataclass(frozen=True, slots=True)
class Shape:
    """The names of a record's fields, and which of them hold times, users' values, records or lists of records."""

    names: tuple[str, ...]
    times: tuple[str, ...]
    #: The texts, numbers and times that every record has, each with the types that its values may have.
    required: Mapping[str, type[Any] | tuple[type[Any], ...]]
    user_values: tuple[str, ...]
    records: Mapping[str, type[Any]]
    lists: Mapping[str, type[Any]]
    rare: tuple[str, ...]

    def wrong_in(self, values: Mapping[str, Any]) -> str:
        """The names of these required fields whose values have a wrong type, for a message."""
        given = self.required.keys() & values.keys()
        return ", ".join(sorted(name for name in given if not isinstance(values[name], self.required[name])))


class Places(NamedTuple):
    """Where a document has values of one kind: in its own fields, in nested records, and in the records of lists."""

    own: tuple[str, ...]
    records: tuple[tuple[str, tuple[str, ...]], ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]

    def change(self, document: dict[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
        """Replace each value by another form of it, except None. Changes the document, and returns it."""
        _change(document, self.own, form)
        for name, inner in self.records:
            if (record := document.get(name)) is not None:
                _change(record, inner, form)
        for name, inner in self.lists:
            for record in document.get(name, ()):
                for within in inner:  # not `_change`: for each entry of a history the call costs more than the change
                    if (value := record.get(within)) is not None:
                        record[within] = form(value)
        return document


def _change(document: dict[str, Any], names: tuple[str, ...], form: Callable[[Any], Any]) -> None:
    for name in names:
        if (value := document.get(name)) is not None:
            document[name] = form(value)


def shape_of(record: type[Any]) -> Shape:
    """Read the shape of a record from its fields."""
    hints, marked = get_type_hints(record), get_type_hints(record, include_extras=True)
    names = tuple(field.name for field in fields(record))
    held: dict[str, type[Any]] = {
        name: kind for name in names for kind in get_args(hints[name]) if isinstance(kind, type) and is_dataclass(kind)
    }
    return Shape(
        names=names,
        times=tuple(name for name in names if datetime in (hints[name], *get_args(hints[name]))),
        required={name: _REQUIRED_TYPES[hints[name]] for name in names if hints[name] in _REQUIRED_TYPES},
        user_values=tuple(name for name in names if hints[name] is Json),
        records={name: kind for name, kind in held.items() if get_origin(hints[name]) is not tuple},
        lists={name: kind for name, kind in held.items() if get_origin(hints[name]) is tuple},
        rare=tuple(name for name in names if _RARE in getattr(marked[name], "__metadata__", ())),
    )


def places_in(shape: Shape, names_in: Callable[[Shape], tuple[str, ...]]) -> Places:
    """The places in a document of this shape of the fields that `names_in` chooses, such as its times."""

    def chosen(records: Mapping[str, type[Any]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple((name, names) for name, kind in records.items() if (names := names_in(shape_of(kind))))

    return Places(names_in(shape), chosen(shape.records), chosen(shape.lists))
