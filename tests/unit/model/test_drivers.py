"""The drivers as data: when they are due, what lacks one, and that no task of this release is left to nobody."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from taskframework.model.drivers import (
    CHECK,
    DEADLINE,
    DISPATCH,
    DRIVERS,
    LEASE,
    OUTBOX,
    RETRY,
    SEAL,
    SPAWN,
    START,
    UNBLOCK,
    Driver,
    missing_drivers,
)
from taskframework.model.status import FINAL, LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease
from tests.unit.model.scenes import MINUTE, NOW, SECOND, in_status, queued, running, wish_to_stop


def with_time(driver: Driver, time: datetime | None) -> Task:
    """A task in a status that the driver drives, with this time of it."""
    if driver is LEASE:
        return running(lease=time and Lease("worker-1", "the-claim", time))
    status = TaskStatus.WAITING if TaskStatus.WAITING in driver.statuses else min(driver.statuses)
    return in_status(status, **{driver.field: time})


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_driver_is_due_when_its_time_has_passed(driver: Driver) -> None:
    assert driver.is_due(with_time(driver, NOW), NOW)
    assert not driver.is_due(with_time(driver, NOW + SECOND), NOW)
    assert not driver.is_due(with_time(driver, NOW), NOW, grace=SECOND)
    assert driver.is_due(with_time(driver, NOW + MINUTE), NOW, grace=-MINUTE)
    assert not driver.is_due(with_time(driver, None), NOW)


@pytest.mark.parametrize(
    "task",
    [
        (DISPATCH, running(next_dispatch_at=NOW)),
        (DISPATCH, queued(next_dispatch_at=NOW, not_before=NOW + SECOND)),
        (LEASE, queued(lease=Lease("worker-1", "the-claim", NOW))),
        (DEADLINE, in_status(TaskStatus.COMPLETED, deadline=NOW)),
        (DEADLINE, running(deadline=NOW, cancel=wish_to_stop())),
        (START, queued(start_by=NOW, started_at=NOW)),
        (START, in_status(TaskStatus.RETRYING, start_by=NOW)),
        (SPAWN, queued(spawn_at=NOW)),
        (CHECK, in_status(TaskStatus.COMPLETED, check_at=NOW)),
        (SEAL, in_status(TaskStatus.CANCELLED, seal_by=NOW)),
        (RETRY, in_status(TaskStatus.CANCELLED, retry_at=NOW)),
        (UNBLOCK, queued(unblock_at=NOW)),
    ],
)
def test_a_time_that_does_not_count_is_not_due(task: tuple[Driver, Task]) -> None:
    driver, not_driven = task
    assert not driver.is_due(not_driven, NOW)


@pytest.mark.parametrize(
    ("task", "missing"),
    [
        (queued(), []),
        (running(), []),
        (queued(next_dispatch_at=None), [DISPATCH]),
        (running(lease=None), [LEASE]),
        (queued(publish_at=None), [OUTBOX]),
        (queued(publish_at=None, published_sequence=1), []),
        (queued(next_dispatch_at=None, publish_at=None), [DISPATCH, OUTBOX]),
        (running(next_dispatch_at=None, deadline=None), []),
        (in_status(TaskStatus.COMPLETED, publish_at=None), []),
        (in_status(TaskStatus.WAITING), []),
        (in_status(TaskStatus.WAITING, check_at=None), [CHECK]),
        (in_status(TaskStatus.BLOCKED), []),
        (in_status(TaskStatus.BLOCKED, unblock_at=None), [UNBLOCK]),
    ],
)
def test_a_task_lacks_what_it_needs_and_has_not(task: Task, missing: list[Driver]) -> None:
    assert missing_drivers(task) == missing


@pytest.mark.parametrize("status", sorted(LIVE))
def test_every_live_status_of_this_release_has_a_driver_that_is_always_needed(status: TaskStatus) -> None:
    assert [driver for driver in DRIVERS if status in driver.needed_in and driver.needed_while_below is None]


def test_a_driver_is_needed_only_where_it_drives_and_by_live_tasks() -> None:
    for driver in DRIVERS:
        assert driver.needed_in <= driver.statuses
        assert not driver.needed_in & FINAL


@pytest.mark.parametrize("attribute", ["name", "field", "index"])
def test_no_two_drivers_share_a_name(attribute: str) -> None:
    names: list[Any] = [getattr(driver, attribute) for driver in DRIVERS]
    assert len(set(names)) == len(names)


def test_a_driver_that_is_changed_is_another_one() -> None:
    assert replace(LEASE, statuses=LIVE).is_due(queued(lease=Lease("worker-1", "the-claim", NOW)), NOW)
