"""Which publications a confirm means, what a message that comes back does to its own, and answers nobody can read."""

from __future__ import annotations

import asyncio
import struct

import pytest
from aiormq import spec
from aiormq.exceptions import AMQPError
from pamqp import frame
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.fast.properties import read_message_id
from taskframework.brokers.rabbitmq.messages import Publication
from taskframework.errors import BrokerUnavailableError, PublishRefusedError
from tests.support.amqp import confirm_frame, delivery_frames, read_frames, returned_frames
from tests.support.publishing import CHANNEL, Bench, publication, settle

GOOD, RETURNED, REFUSED = "good", "No queue takes", "refused"


class Four:
    """Four publications under way, numbered from 1."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.publications: list[Publication] = [publication(f"t{number}") for number in range(1, 5)]
        self.sending: list[asyncio.Task[None]] = []

    async def begin(self) -> Four:
        self.sending = await self.bench.sends(*self.publications)
        return self

    def returns(self, number: int) -> None:
        self.bench.returns(self.publications[number - 1].message_id)

    async def outcomes(self) -> dict[int, str]:
        """What became of those that are over, by number."""
        await settle()
        over = {number: task.exception() for number, task in enumerate(self.sending, 1) if task.done()}
        for error in over.values():
            assert error is None or type(error) is PublishRefusedError
        return {
            number: GOOD if error is None else RETURNED if RETURNED in str(error) else REFUSED
            for number, error in over.items()
        }

    async def end(self) -> None:
        self.bench.closes(None)
        await asyncio.gather(*self.sending, return_exceptions=True)


@pytest.fixture
async def four() -> Four:
    return await Four().begin()


async def test_confirms_come_in_any_order_and_each_is_for_its_own(four: Four) -> None:
    four.bench.confirms(3)
    assert await four.outcomes() == {3: GOOD}
    four.bench.confirms(1, is_taken=False)
    assert await four.outcomes() == {3: GOOD, 1: REFUSED}
    four.bench.confirms(4)
    four.bench.confirms(2)
    assert await four.outcomes() == {1: REFUSED, 2: GOOD, 3: GOOD, 4: GOOD}


@pytest.mark.parametrize(("is_taken", "outcome"), [(True, GOOD), (False, REFUSED)])
async def test_a_multiple_confirm_means_all_before_it_and_none_behind(four: Four, is_taken: bool, outcome: str) -> None:
    four.bench.confirms(2)
    four.bench.confirms(3, multiple=True, is_taken=is_taken)
    assert await four.outcomes() == {1: outcome, 2: GOOD, 3: outcome}
    assert four.bench.unconfirmed == [4]
    four.bench.confirms(4, multiple=True)
    assert await four.outcomes() == {1: outcome, 2: GOOD, 3: outcome, 4: GOOD}


async def test_a_multiple_confirm_of_what_is_confirmed_already_means_what_is_open_before_it(four: Four) -> None:
    four.bench.confirms(3)
    four.bench.confirms(3, multiple=True)
    assert await four.outcomes() == {1: GOOD, 2: GOOD, 3: GOOD}
    await four.end()


async def test_a_confirm_twice_or_of_an_unknown_number_changes_nothing(four: Four) -> None:
    four.bench.confirms(2)
    four.bench.confirms(2, is_taken=False)
    for tag in (0, 5, 2**63 - 1):
        four.bench.confirms(tag, is_taken=False)
    assert await four.outcomes() == {2: GOOD}
    four.bench.confirms(2**63 - 1, multiple=True)
    assert await four.outcomes() == dict.fromkeys((1, 2, 3, 4), GOOD)


async def test_a_returned_publication_is_refused_although_it_is_confirmed_too(four: Four) -> None:
    four.returns(3)
    four.returns(1)
    assert await four.outcomes() == {3: RETURNED, 1: RETURNED}
    assert four.bench.unconfirmed == [1, 2, 3, 4], "their confirms still come"
    four.bench.confirms(4, multiple=True)
    assert await four.outcomes() == {1: RETURNED, 2: GOOD, 3: RETURNED, 4: GOOD}
    assert four.bench.unconfirmed == []
    assert not four.bench.channel.lost.is_set()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_the_first_answer_about_a_publication_counts(four: Four, is_taken: bool) -> None:
    four.returns(2)
    four.bench.confirms(2, is_taken=is_taken)
    assert await four.outcomes() == {2: RETURNED}
    await four.end()


async def test_confirms_and_returns_are_understood_in_one_read_of_the_socket(four: Four) -> None:
    heartbeat = frame.marshal(spec.Connection.Blocked("low"), 0)
    returned = [returned_frames(CHANNEL, four.publications[number].message_id) for number in (1, 2)]
    said = [*returned[0], confirm_frame(CHANNEL, 2, multiple=True), heartbeat, *returned[1], confirm_frame(CHANNEL, 3)]
    assert four.bench.hears(*said) == heartbeat
    assert await four.outcomes() == {1: GOOD, 2: RETURNED, 3: RETURNED}
    await four.end()


@pytest.mark.parametrize("message_id", ["somebody's", "", None])
async def test_an_unknown_returned_message_is_logged_and_harms_no_other(
    four: Four, message_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    four.bench.returns(message_id)
    four.bench.confirms(4, multiple=True)
    assert await four.outcomes() == dict.fromkeys((1, 2, 3, 4), GOOD)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "came back" in caplog.text


async def test_a_returned_body_may_be_empty_or_come_in_pieces(four: Four) -> None:
    for number, body in ((1, b""), (2, b"x" * 5000)):
        message_id = four.publications[number - 1].message_id
        for part in returned_frames(CHANNEL, message_id, body, frame_max=100):
            assert four.bench.hears(part) == b""
    assert await four.outcomes() == {1: RETURNED, 2: RETURNED}
    await four.end()


async def test_the_confirms_of_other_channels_are_not_ours(four: Four) -> None:
    others = confirm_frame(CHANNEL + 1, 4, multiple=True), *returned_frames(2, four.publications[0].message_id)
    assert four.bench.hears(*others) == b"".join(others)
    assert await four.outcomes() == {}
    await four.end()


async def test_a_delivery_on_a_channel_that_publishes_goes_to_the_driver(four: Four) -> None:
    delivery = delivery_frames(CHANNEL, 1, spec.Basic.Properties(), b"body")
    assert four.bench.hears(*delivery, confirm_frame(CHANNEL, 1)) == b"".join(delivery)
    assert await four.outcomes() == {1: GOOD}
    await four.end()


async def test_confirms_after_the_channel_was_closed_by_the_broker_do_not_count(four: Four) -> None:
    close = frame.marshal(spec.Channel.Close(404, "NOT_FOUND", 60, 40), CHANNEL)
    late = confirm_frame(CHANNEL, 4, multiple=True)
    assert four.bench.hears(confirm_frame(CHANNEL, 1), close, late) == close + late
    assert await four.outcomes() == {1: GOOD}
    await four.end()


def _header_frame(payload: bytes) -> bytes:
    return struct.pack(">BHI", 2, CHANNEL, len(payload)) + payload + b"\xce"


_BAD_HEADERS = {
    "not utf-8": struct.pack(">HHQHIB", 60, 0, 0, 1 << 13, 4, 1) + b"\xe4t\1",
    "no id": struct.pack(">HHQH", 60, 0, 0, 1 << 7),
    "no flags": struct.pack(">HHQ", 60, 0, 0),
    "no size": struct.pack(">HHQ", 60, 0, 0)[:11],
    "unknown type": struct.pack(">HHQHIB", 60, 0, 0, 1 << 13, 4, 1) + b"a?\1",
}


def _driver_fails_on(data: bytes) -> bool:
    try:
        read_frames(data)
    except Exception:
        return True
    return False


@pytest.mark.parametrize("payload", _BAD_HEADERS.values(), ids=_BAD_HEADERS)
async def test_a_returned_header_that_nobody_can_read_is_the_driver_s_to_fail_on(four: Four, payload: bytes) -> None:
    method = returned_frames(CHANNEL, None)[0]
    header, heartbeat = _header_frame(payload), frame.marshal(spec.Connection.Unblocked(), 0)
    assert _driver_fails_on(header)
    others = b"".join([four.bench.hears(part) for part in (method, heartbeat, header)])
    assert others == heartbeat + method + header
    assert await four.outcomes() == {}
    four.bench.closes(AMQPError("what the driver makes of it"))
    errors = await asyncio.gather(*four.sending, return_exceptions=True)
    assert {type(error) for error in errors} == {BrokerUnavailableError}


@pytest.mark.parametrize("size", range(4, 13))
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_confirm_that_is_too_short_is_the_driver_s_to_fail_on(four: Four, size: int, is_taken: bool) -> None:
    payload = confirm_frame(CHANNEL, 1, is_taken=is_taken)[7:-1][:size]
    short = struct.pack(">BHI", 1, CHANNEL, len(payload)) + payload + b"\xce"
    assert _driver_fails_on(short)
    assert four.bench.hears(short) == short
    assert await four.outcomes() == {}
    await four.end()


@pytest.mark.parametrize("cut", [1, 2])
async def test_a_return_without_its_end_goes_to_the_driver_with_all_of_it(four: Four, cut: int) -> None:
    begun = returned_frames(CHANNEL, four.publications[0].message_id)[:cut]
    confirm = confirm_frame(CHANNEL, 4, multiple=True)
    assert four.bench.hears(*begun) == b""
    assert four.bench.hears(confirm) == b"".join(begun) + confirm
    assert await four.outcomes() == {}
    await four.end()


@pytest.mark.parametrize("payload", [*_BAD_HEADERS.values(), b""], ids=[*_BAD_HEADERS, "nothing"])
def test_an_id_is_read_or_the_header_is_an_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_message_id(payload)


@pytest.mark.parametrize("message_id", [None, "", "x", "ä" * 100, "x" * 255])
def test_an_id_is_read_as_it_was_written(message_id: str | None) -> None:
    properties = spec.Basic.Properties(headers={"a": 1}, correlation_id="c", message_id=message_id, timestamp=None)
    assert read_message_id(ContentHeader(properties=properties).marshal()) == (message_id or "")
