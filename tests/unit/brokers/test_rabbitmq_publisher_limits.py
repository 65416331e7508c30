"""How long a publication takes at most, whatever it waits for: a connection, a free place, or its confirm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taskframework.errors import BrokerUnavailableError
from taskframework.testing.eventually import eventually
from tests.support.publishing import FedPublisher, publication, settle


@pytest.fixture
async def opened() -> AsyncIterator[list[FedPublisher]]:
    """Filled by the test; closed behind it."""
    publishers: list[FedPublisher] = []
    yield publishers
    for publisher in publishers:
        publisher.may_connect.set()
        await publisher.close()


def _open(opened: list[FedPublisher], publisher: FedPublisher) -> FedPublisher:
    opened.append(publisher)
    publisher.open()
    return publisher


async def _is_late(sending: asyncio.Task[None]) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(BrokerUnavailableError, match=r"here:5672 confirmed nothing within 0\.05 s"):
            await sending


async def test_a_publication_without_a_confirm_ends_within_its_time_limit(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(0.05))
    (sending,) = await publisher.begins()
    await _is_late(sending)
    assert publisher.free_places == 10
    assert publisher.benches[0].channel.lost.is_set()


async def test_a_connection_that_does_not_come_costs_the_same_time(opened: list[FedPublisher]) -> None:
    publisher = FedPublisher(0.05, max_unconfirmed=1)
    publisher.may_connect.clear()
    _open(opened, publisher)
    for sending in await publisher.begins(3):
        await _is_late(sending)
    assert publisher.free_places == 1


async def test_the_wait_for_a_connection_counts_for_the_time_limit(opened: list[FedPublisher]) -> None:
    publisher = FedPublisher(30)
    publisher.may_connect.clear()
    _open(opened, publisher)
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    (early,) = await publisher.begins()
    connected_at = loop.time()
    publisher.may_connect.set()
    await settle()
    assert any(
        begun_at + 30 <= timer.when() <= connected_at + 30 and not timer.cancelled()
        for timer in loop._scheduled  # type: ignore[attr-defined]
    )
    publisher.benches[0].confirms(1)
    await early


async def test_a_publication_that_waited_for_the_connection_is_not_held_by_later_ones(
    opened: list[FedPublisher],
) -> None:
    publisher = FedPublisher(0.05)
    publisher.may_connect.clear()
    _open(opened, publisher)
    (early,) = await publisher.begins()
    late = asyncio.create_task(_at_once(publisher))
    await settle()
    publisher.may_connect.set()
    await _is_late(early)
    assert not late.done()
    publisher.benches[0].confirms(1)
    await late


async def _at_once(publisher: FedPublisher) -> None:
    """Publish with a long time limit, before anybody who waits for the same connection."""
    await publisher.came.wait()
    await publisher.benches[0].channel.send(publication(), asyncio.get_running_loop().time() + 30)


async def test_the_wait_for_a_place_counts_and_gives_none_away(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(0.05, max_unconfirmed=1))
    first, second, third = await publisher.begins(3)
    assert len(publisher.benches[0].sent_headers) == 1
    for sending in (first, second, third):
        await _is_late(sending)
    assert publisher.free_places == 1
    await eventually(lambda: len(publisher.benches) == 2)
    (again,) = await publisher.begins()
    publisher.benches[1].confirms(1)
    await again


async def test_a_publication_waits_for_a_place_no_longer_than_its_time_limit(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(0.05, max_unconfirmed=1))
    await publisher._publish_slots.acquire()
    (sending,) = await publisher.begins()
    await _is_late(sending)
    publisher._publish_slots.release()
    assert publisher.free_places == 1


async def test_a_cancelled_publication_leaves_its_place_to_the_next(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(30, max_unconfirmed=1))
    first, second, third = await publisher.begins(3)
    second.cancel()
    await settle()
    publisher.benches[0].confirms(1)
    await first
    await settle()
    publisher.benches[0].confirms(2)
    await third
    assert second.cancelled()
    assert publisher.free_places == 1


async def test_places_are_given_in_the_order_of_the_calls(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(30, max_unconfirmed=2))
    sending = await publisher.begins(6)
    for tag in range(1, 7):
        publisher.benches[0].confirms(tag)
        await settle()
    await asyncio.gather(*sending)
    sent = [(header.properties.headers or {})["task_id"] for header in publisher.benches[0].sent_headers]
    assert sent == [f"t{number}" for number in range(6)]


async def test_publications_that_wait_for_a_place_fail_with_the_alarm(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(30, max_unconfirmed=1))
    first, second = await publisher.begins(2)
    publisher.benches[0].connection.is_blocked = True
    (third,) = await publisher.begins()
    assert "memory or disk alarm" in str(third.exception()), "at once"
    publisher.benches[0].confirms(1)
    await first
    with pytest.raises(BrokerUnavailableError, match="memory or disk alarm"):
        await second
    assert publisher.free_places == 1


async def test_closing_waits_for_what_is_under_way_and_refuses_the_rest(opened: list[FedPublisher]) -> None:
    publisher = _open(opened, FedPublisher(30, max_unconfirmed=1))
    first, second = await publisher.begins(2)
    closing = asyncio.create_task(publisher.close())
    await settle()
    assert not closing.done()
    publisher.benches[0].confirms(1)
    await first
    with pytest.raises(BrokerUnavailableError, match="closed"):
        await second
    await closing
    assert publisher.benches[0].connection.is_closed
