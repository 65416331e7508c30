"""What may be stored."""

from __future__ import annotations

from typing import Any

import pytest

from taskframework.errors import ValueNotStorableError
from taskframework.model.values import MAX_DEPTH, check_storable, fingerprint


def nested(levels: int) -> Any:
    value: Any = 0
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**63 - 1,
        1.5,
        -0.0,
        1e308,
        "",
        "a\0b",
        "💥",
        [],
        {},
        {"": 1},
        {"$where": {"a.b": ["$x"]}},
        (1, 2),
        nested(MAX_DEPTH),
    ],
    ids=repr,
)
def test_plain_json_is_storable(value: Any) -> None:
    check_storable(value, "result", 10_000)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "nan is not a JSON number"),
        ([float("inf")], "inf is not a JSON number"),
        (2**63, "an integer needs 65 bits, more than 64"),
        (-(2**63) - 1, "more than 64"),
        (10**5000, "more than 64"),
        ("\ud800", "half of a surrogate pair"),
        ({"\udfff": 1}, "half of a surrogate pair"),
        ({"a\0b": 1}, "a key contains the NUL character"),
        ({1: "x"}, "a key is of type int, not a text"),
        ({10**5000: "x"}, "a key is of type int, not a text"),
        (b"bytes", "bytes is not a JSON type"),
        ({"a": {1, 2}}, "set is not a JSON type"),
        (object(), "object is not a JSON type"),
        (nested(MAX_DEPTH + 1), "nested deeper than 64 levels"),
        (nested(100_000), "nested deeper than 64 levels"),
        ("x" * 10_001, "it has 10,003 bytes as JSON, the limit is 10,000"),
    ],
    ids=lambda value: str(type(value)),
)
def test_a_value_that_no_store_could_keep_is_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(ValueNotStorableError) as refusal:
        check_storable(value, "result", 10_000)
    assert reason in str(refusal.value)
    assert refusal.value.what == "result"


def test_the_canonical_form_does_not_depend_on_the_order_of_keys() -> None:
    forms = {check_storable(value, "parameters", 100) for value in ({"a": 1, "b": [2]}, {"b": [2], "a": 1})}
    assert forms == {b'{"a":1,"b":[2]}'}


def test_the_values_1_and_1_point_0_are_different() -> None:
    assert check_storable(1, "parameters", 100) != check_storable(1.0, "parameters", 100)


def test_a_limit_counts_bytes() -> None:
    check_storable("é", "x", 4)
    with pytest.raises(ValueNotStorableError):
        check_storable("é", "x", 3)


def test_a_fingerprint_tells_its_parts_apart() -> None:
    assert fingerprint("ab", "c") != fingerprint("a", "bc")
    assert fingerprint("a") == fingerprint(b"a")
    assert len(fingerprint("\ud800")) == 16
