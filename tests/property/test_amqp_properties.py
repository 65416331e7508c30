"""Our encoder of message properties against the driver's: the same bytes, or an error before anything is sent."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiormq import spec
from hypothesis import given
from hypothesis import strategies as st

from taskframework.brokers.rabbitmq.messages import encode_properties
from tests.support.amqp import read_properties_as_driver

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
#: The driver reads an empty text back as none, and its own encoder leaves it out.
FILLED = TEXTS.filter(bool)
NAMES = TEXTS.filter(lambda name: len(name.encode()) < 128)  # what the driver allows
INTEGERS = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.dictionaries(NAMES, TEXTS | INTEGERS | st.sampled_from([0, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1]))


@given(FILLED, HEADERS, st.none() | FILLED, FILLED)
def test_encoded_properties_are_decoded_with_their_types(
    content_type: str, headers: dict[str, str | int], correlation_id: str | None, message_id: str
) -> None:
    ours = encode_properties(content_type, headers, correlation_id=correlation_id, message_id=message_id)
    read = read_properties_as_driver(ours)
    assert (read.content_type, read.delivery_mode, read.message_id) == (content_type, 2, message_id)
    assert read.correlation_id == correlation_id
    assert read.headers == headers
    assert {name: type(value) for name, value in (read.headers or {}).items()} == {
        name: type(value) for name, value in headers.items()
    }


@given(FILLED, st.dictionaries(NAMES, TEXTS | st.integers(2**17, 2**31 - 1), min_size=1), st.none() | FILLED, FILLED)
def test_the_bytes_are_those_of_the_driver(
    content_type: str, headers: dict[str, str | int], correlation_id: str | None, message_id: str
) -> None:
    # Integers that the driver would not put into fewer bytes than the four that we always take.
    fields: dict[str, Any] = {"correlation_id": correlation_id, "message_id": message_id}
    table = dict(sorted(headers.items()))
    by_driver = spec.Basic.Properties(content_type=content_type, headers={**table}, delivery_mode=2, **fields)
    assert encode_properties(content_type, table, **fields) == by_driver.marshal()


@given(TEXTS, HEADERS, st.none() | st.just(""), FILLED)
def test_an_empty_text_is_read_as_none(
    content_type: str, headers: dict[str, str | int], correlation_id: str | None, message_id: str
) -> None:
    read = read_properties_as_driver(
        encode_properties(content_type, headers, correlation_id=correlation_id, message_id=message_id)
    )
    assert (read.content_type or "", read.correlation_id, read.message_id) == (content_type, None, message_id)


@pytest.mark.parametrize(
    "fields",
    [
        {"message_id": "x" * 256},
        {"correlation_id": "ä" * 128},
        {"content_type": "x" * 256},
        {"headers": {"x" * 256: "v"}},
        {"headers": {"x": 2**63}},
        {"headers": {"x": None}},
        {"headers": {"x": 1.5}},
        {"headers": {"x": ["a"]}},
        {"headers": {"x": b"a"}},
        {"headers": {"x": "\ud800"}},
    ],
    ids=repr,
)
def test_properties_that_cannot_be_encoded_are_an_error(fields: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"content_type": "a", "headers": {}, "correlation_id": None, "message_id": "m"}
    encode_properties(**usual)
    with pytest.raises((TypeError, ValueError, OverflowError, struct.error)):
        encode_properties(**usual | fields)


@given(st.booleans())
def test_a_truth_value_is_sent_as_the_number_it_is(value: bool) -> None:
    read = read_properties_as_driver(encode_properties("a", {"x": value}, correlation_id=None, message_id="m"))
    assert read.headers == {"x": int(value)}
