"""Making, changing and deleting schedules, by hand and from the settings; and a year of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import (
    ConfigurationError,
    InvalidParametersError,
    InvalidRequestError,
    StoreUnavailableError,
    UnknownTaskTypeError,
    ValueNotStorableError,
)
from taskframework.model.interventions import Cancel
from taskframework.model.query import TaskFilter
from taskframework.model.records import Record
from taskframework.model.schedules import MAX_SCHEDULES, SCHEDULE, LastRun, Schedule, run_key
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.moves import TaskMoves
from taskframework.operations.schedule_errors import (
    ScheduleExistsError,
    ScheduleFromSettingsError,
    ScheduleNotFoundError,
    TooManySchedulesError,
)
from taskframework.operations.schedules import ScheduleOperations
from taskframework.recovery.schedules import ScheduleRepair
from taskframework.schedules import all_schedules
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.schedules import MAX_SCHEDULE_BYTES, ScheduleDefinition, parse_definition
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from tests.support.kitchen_sink import CountWords, Returns
from tests.support.submission import submission_into

HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
SECOND = timedelta(seconds=1)
TEXT = {"text": "one two"}


class Stage:
    """A store, the operations, and a process that runs what is due."""

    def __init__(self, store: SqliteStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        registry, bus = TaskRegistry(), EventBus()
        registry.register(CountWords())
        registry.register(Returns())
        types = TaskTypes(registry, store)
        submission = submission_into(store, types, bus, dispatch_after=MINUTE)
        self.schedules = ScheduleOperations(store, types, submission)
        self.repair = ScheduleRepair(store, TaskMoves(store, bus), submission, 100)

    async def create(self, name: str = "nightly", **values: Any) -> Schedule:
        return await self.schedules.create(name, definition(**values))

    async def runs(self) -> list[str]:
        found = await self.store.list_tasks(EVERYONE, TaskFilter(), limit=500)
        return [task.correlation_id for task in found.items]

    async def names(self) -> list[str]:
        return [seen.schedule.name for seen in (await self.schedules.list_schedules(limit=500)).items]


def definition(**values: Any) -> ScheduleDefinition:
    rule = {} if "cron" in values else {"every": "1h"}
    return parse_definition({"task_type": "count-words", "parameters": TEXT, **rule, **values})


@pytest.fixture
def stage(store: SqliteStore, clock: FakeClock) -> Stage:
    return Stage(store, clock)


async def test_a_schedule_field_that_is_left_out_has_its_default(stage: Stage) -> None:
    made = await stage.create()
    view = await stage.schedules.view(made)
    assert view == {
        "name": "nightly",
        "cron": None,
        "every": "1h",
        "timezone": "UTC",
        "task_type": "count-words",
        "parameters": TEXT,
        "user_id": "scheduler",
        "missed": "once",
        "overlap": "allow",
        "jitter": "0s",
        "is_paused": False,
        "is_from_settings": False,
        "next_run_at": "2026-01-01T01:00:00.000Z",
        "next_runs": [f"2026-01-01T0{hour}:00:00.000Z" for hour in range(1, 6)],
        "last_run": None,
        "problem": None,
    }


@pytest.mark.parametrize(
    ("name", "values", "error", "told"),
    [
        ("nightly", {"task_type": "count-word"}, UnknownTaskTypeError, "Did you mean 'count-words'?"),
        ("nightly", {"parameters": {"text": 5}}, InvalidParametersError, "text: Input should be a valid string"),
        ("nightly", {"timezone": "Europe/Berln"}, InvalidRequestError, "Did you mean Europe/Berlin?"),
        ("nightly", {"parameters": {"text": "x" * MAX_SCHEDULE_BYTES}}, ValueNotStorableError, "16,384"),
        ("Nightly!", {}, InvalidRequestError, "name: 'Nightly!' is not a valid name for a schedule"),
        ("", {}, InvalidRequestError, "name: '' is not a valid name"),
    ],
)
async def test_a_wrong_schedule_is_refused_with_the_reason_when_it_is_created(
    stage: Stage, name: str, values: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as caught:
        await stage.create(name, **values)
    assert told in str(caught.value)
    assert await stage.names() == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"task_type": "a"}, "needs a rule: cron or every"),
        ({"task_type": "a", "every": "1m", "cron": "* * * * *"}, "needs either cron or every, not both"),
        ({"every": "1m"}, "task_type: Field required"),
        ({"task_type": "a", "cron": "61 * * * *"}, "cron: has a wrong minute '61': it is 0-59"),
        ({"task_type": "a", "every": 5}, "every: needs a unit: 5s for seconds"),
        ({"task_type": "a", "every": "10ms"}, "every: must be from one second to ten years"),
        ({"task_type": "a", "every": "1m", "jitter": "2d"}, "jitter: must be at most a day"),
        ({"task_type": "a", "every": "1m", "missed": "x"}, "missed: Input should be 'skip', 'once' or 'all'"),
        ({"task_type": "a", "every": "1m", "rate": 1}, "rate: there is no such field"),
    ],
)
def test_a_wrong_definition_names_the_field(values: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_definition(values)
    assert told in caught.value.message
    assert caught.value.hint


async def test_a_second_schedule_with_one_name_is_refused(stage: Stage) -> None:
    await stage.create()
    with pytest.raises(ScheduleExistsError):
        await stage.create()


async def test_defining_a_schedule_again_keeps_its_next_time_unless_the_rule_changes(stage: Stage) -> None:
    first = await stage.create()
    stage.clock.advance(30 * MINUTE)
    same = await stage.schedules.put("nightly", definition(parameters={"text": "x"}, jitter="10s"))
    assert (same.next_at, same.since, same.parameters) == (first.next_at, first.since, {"text": "x"})
    assert first.next_at <= same.due_at <= first.next_at + timedelta(seconds=10)
    other = await stage.schedules.put("nightly", definition(every="2h"))
    assert other.next_at == stage.clock.now() + 2 * HOUR


async def test_a_schedule_that_does_not_exist_is_not_found(stage: Stage) -> None:
    operations = stage.schedules
    for ask in (operations.get, operations.delete, operations.pause, operations.resume, operations.run):
        with pytest.raises(ScheduleNotFoundError):
            await ask("none")
    with pytest.raises(ScheduleNotFoundError):
        await operations.put("none", definition())


async def test_a_paused_schedule_stops_and_has_no_missed_runs_of_the_pause(stage: Stage) -> None:
    await stage.create(missed="all")
    assert (await stage.schedules.pause("nightly")).is_paused
    paused = await stage.schedules.pause("nightly")
    assert (await stage.schedules.view(paused))["next_run_at"] is None
    stage.clock.advance(5 * HOUR + MINUTE)
    await stage.repair.run_once()
    assert await stage.runs() == []
    defined = await stage.schedules.put("nightly", definition(missed="all"))
    assert defined.is_paused, "a definition that does not say changes nothing about it"
    resumed = await stage.schedules.resume("nightly")
    assert resumed.next_at == stage.clock.now() + HOUR
    assert await stage.schedules.resume("nightly") == resumed
    stage.clock.advance(HOUR)
    await stage.repair.run_once()
    assert len(await stage.runs()) == 1
    await stage.schedules.put("nightly", definition(missed="all", is_paused=True))
    assert (await stage.schedules.get("nightly")).is_paused


async def test_a_run_now_is_the_last_run_and_moves_nothing(stage: Stage) -> None:
    made = await stage.create(overlap="skip")
    first = await stage.schedules.run("nightly")
    assert (await stage.schedules.get("nightly")).last_run == LastRun(stage.clock.now(), first.task.task_id)
    assert (await stage.schedules.get("nightly")).next_at == made.next_at
    again = await stage.schedules.run("nightly")
    assert again.task.task_id != first.task.task_id
    keyed = [await stage.schedules.run("nightly", key="k") for _ in range(2)]
    assert [run.is_new for run in keyed] == [True, False]
    stage.clock.advance(HOUR)
    await stage.repair.run_once()
    assert len(await stage.runs()) == 3, "the run of now is not over, and the policy is to skip"


@pytest.mark.parametrize("length", [5, 185, 186, 200])
async def test_a_run_now_takes_every_key_that_a_submission_takes(stage: Stage, length: int) -> None:
    await stage.create()
    same = [await stage.schedules.run("nightly", key="k" * length) for _ in range(2)]
    other = await stage.schedules.run("nightly", key="k" * (length - 1) + "l")
    assert [run.is_new for run in (*same, other)] == [True, False, True]
    stored = same[0].task.idempotency_key
    assert stored is not None
    assert (stored == f"schedule/nightly/run/{'k' * length}") == (len(f"schedule/nightly/run/{'k' * length}") <= 200)


@pytest.mark.parametrize("key", ["k" * 201, "schlüssel" * 30])
async def test_a_run_now_with_a_wrong_key_is_refused(stage: Stage, key: str) -> None:
    await stage.create()
    with pytest.raises(InvalidRequestError):
        await stage.schedules.run("nightly", key=key)


async def test_a_schedule_shows_the_status_of_its_last_run(stage: Stage) -> None:
    await stage.create("never")
    await stage.create()
    task = (await stage.schedules.run("nightly")).task
    for status in (TaskStatus.QUEUED, TaskStatus.CANCELLED):
        seen = {each.schedule.name: each for each in (await stage.schedules.list_schedules(limit=9)).items}
        assert (seen["nightly"].last_status, seen["never"].last_status) == (status, None)
        assert seen["nightly"].view()["last_run"]["status"] == status
        assert (await stage.schedules.view(seen["nightly"].schedule))["last_run"]["status"] == status
        await stage.store.apply(Cancel(task.task_id, EVERYONE, "ada", None))


async def test_a_schedule_with_an_unknown_time_zone_shows_the_problem(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    template = await stage.create("other", cron="0 3 * * *")
    made_elsewhere = replace(template, name="elsewhere", timezone="Mars/Base")
    await stage.store.write_records([SCHEDULE.new("elsewhere", content=made_elsewhere)])
    clock.advance(timedelta(days=1))
    for _ in range(3):
        assert not await stage.repair.run_once()
    view = await stage.schedules.view(await stage.schedules.get("elsewhere"))
    assert "'Mars/Base' is not a time zone" in view["problem"]["message"]
    assert view["next_runs"] == []
    assert caplog.text.count("schedule elsewhere cannot run here") == 1
    assert (await stage.schedules.view(await stage.schedules.pause("elsewhere")))["is_paused"]
    await stage.schedules.put("elsewhere", definition(every="1h"))


async def test_deleting_a_schedule_leaves_its_tasks(stage: Stage) -> None:
    await stage.create()
    await stage.schedules.run("nightly")
    await stage.schedules.delete("nightly")
    assert (await stage.names(), len(await stage.runs())) == ([], 1)


async def test_schedules_are_listed_page_by_page(stage: Stage) -> None:
    for name in ("b", "a", "c"):
        await stage.create(name)
    page = await stage.schedules.list_schedules(limit=2)
    assert ([each.schedule.name for each in page.items], page.next_cursor) == (["a", "b"], "b")
    page = await stage.schedules.list_schedules(limit=2, after="b")
    assert ([each.schedule.name for each in page.items], page.next_cursor) == (["c"], None)


async def test_the_number_of_schedules_is_limited_and_the_error_names_the_limit(stage: Stage) -> None:
    template = await stage.create("s0")
    records = [SCHEDULE.new(f"s{n}", content=template) for n in range(1, MAX_SCHEDULES)]
    await stage.store.write_records(records)
    with pytest.raises(TooManySchedulesError, match="1,000"):
        await stage.create("one-more")
    await stage.schedules.put("s0", definition(every="2h"))


class TestSettings:
    """The section `schedules`."""

    NIGHTLY = {"task_type": "count-words", "parameters": TEXT, "cron": "30 2 * * *", "timezone": "Europe/Berlin"}  # noqa: RUF012

    async def test_schedules_of_the_settings_are_created_changed_and_removed(self, stage: Stage) -> None:
        await stage.create("by-hand")
        await stage.schedules.apply({"nightly": self.NIGHTLY, "weekly": self.NIGHTLY})
        assert await stage.names() == ["by-hand", "nightly", "weekly"]
        await stage.schedules.apply({"nightly": {**self.NIGHTLY, "cron": "30 3 * * *"}})
        assert await stage.names() == ["by-hand", "nightly"]
        assert (await stage.schedules.get("nightly")).next_at == datetime(2026, 1, 1, 2, 30, tzinfo=UTC)
        await stage.schedules.apply({})
        assert await stage.names() == ["by-hand"]

    async def test_a_schedule_that_runs_while_it_is_removed_is_removed(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await stage.schedules.apply({"nightly": self.NIGHTLY})
        delete = stage.store.delete_records

        async def after_a_run(records: Sequence[Record]) -> int:
            monkeypatch.setattr(stage.store, "delete_records", delete)
            await stage.schedules.run("nightly")  # writes the record
            return await delete(records)

        monkeypatch.setattr(stage.store, "delete_records", after_a_run)
        await stage.schedules.apply({})
        assert (await stage.names(), len(await stage.runs())) == ([], 1)

    async def test_a_schedule_of_the_settings_that_did_not_change_keeps_its_record(self, stage: Stage) -> None:
        every = {"task_type": "count-words", "parameters": TEXT, "every": "8h"}
        await stage.schedules.apply({"nightly": every})
        await stage.schedules.run("nightly")
        await stage.schedules.pause("nightly")
        before = await stage.store.read_records([SCHEDULE.id_of("nightly")])
        stage.clock.advance(HOUR)
        await stage.schedules.apply({"nightly": every})
        assert await stage.store.read_records([SCHEDULE.id_of("nightly")]) == before

    async def test_a_schedule_of_the_settings_is_changed_and_deleted_only_there(self, stage: Stage) -> None:
        await stage.schedules.apply({"nightly": self.NIGHTLY})
        with pytest.raises(ScheduleFromSettingsError, match="nightly"):
            await stage.schedules.put("nightly", definition())
        with pytest.raises(ScheduleFromSettingsError):
            await stage.schedules.delete("nightly")
        assert (await stage.schedules.get("nightly")).cron == "30 2 * * *"

    async def test_a_schedule_made_by_hand_is_taken_over_by_the_settings(self, stage: Stage) -> None:
        await stage.create("nightly")
        await stage.schedules.apply({"nightly": self.NIGHTLY})
        taken = await stage.schedules.get("nightly")
        assert (taken.is_from_settings, taken.cron) == (True, "30 2 * * *")

    async def test_a_type_that_no_worker_has_declared_yet_is_taken_on_trust(self, stage: Stage) -> None:
        await stage.schedules.apply({"nightly": {**self.NIGHTLY, "task_type": "of-another-worker"}})
        stage.clock.advance(DAY)
        await stage.repair.run_once()
        problem = (await stage.schedules.get("nightly")).problem
        assert problem is not None
        assert "There is no task type 'of-another-worker'." in problem.message

    @pytest.mark.parametrize(
        ("named", "told"),
        [
            ({"nightly": {"task_type": "count-words"}}, "schedules.nightly: needs a rule: cron or every"),
            ({"nightly": 5}, "schedules.nightly: 5 is not a schedule"),
            ({"Nightly!": NIGHTLY}, "schedules.Nightly!: name: 'Nightly!' is not a valid name"),
            (
                {"nightly": {**NIGHTLY, "cron": "x"}},
                "schedules.nightly: cron: needs five fields, not 1; for seconds there is `every`. Minute, hour, day",
            ),
            ({"nightly": {**NIGHTLY, "parameters": {"text": 5}}}, "text: Input should be a valid string"),
            (
                {"nightly": {**NIGHTLY, "task_type": "x", "parameters": datetime(2026, 1, 1, tzinfo=UTC)}},
                "not a JSON type",
            ),
            ({"nightly": {**NIGHTLY, "task_type": "x", "parameters": "x" * MAX_SCHEDULE_BYTES}}, "16,384"),
            ({"nightly": {**NIGHTLY, "timezone": "Berln"}}, "Did you mean Europe/Berlin?"),
        ],
    )
    async def test_wrong_settings_are_refused_with_the_reason_and_no_schedule_is_created(
        self, stage: Stage, named: Any, told: str
    ) -> None:
        with pytest.raises(ConfigurationError) as caught:
            await stage.schedules.apply({"first": self.NIGHTLY, **named})
        assert told in str(caught.value)
        assert await stage.names() == []


async def test_two_processes_and_a_clock_that_is_set(stage: Stage) -> None:
    """Back by an hour and forward by a day: each time once, whoever looks."""
    await stage.create(missed="all")
    for step in (HOUR, MINUTE, -HOUR, 30 * MINUTE, 31 * MINUTE, DAY, -DAY, HOUR, DAY):
        stage.clock.advance(step)
        while any(await asyncio.gather(stage.repair.run_once(), stage.repair.run_once())):
            pass
    began = datetime(2026, 1, 1, tzinfo=UTC)
    hours = (stage.clock.now() - began) // HOUR
    assert await _submitted(stage) == [run_key("nightly", began + n * HOUR) for n in range(1, hours + 1)]


async def test_a_year_of_schedules_submits_each_run_at_its_time(stage: Stage) -> None:
    """Virtual time, from one due time to the next; what was submitted is what calendar and clocks say."""
    berlin, new_york = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
    await stage.create("berlin", cron="30 2 * * *", timezone="Europe/Berlin")
    await stage.create("new-york", cron="30 1 * * *", timezone="America/New_York", jitter="20m")
    await stage.create("first-monday", cron="0 9 * * MON#1", timezone="Europe/Berlin")
    await stage.create("month-end", cron="0 12 L * *")
    await stage.create("interval", every="73h")

    end = stage.clock.now() + 365 * DAY
    while (due_at := await _soonest(stage)) < end:
        stage.clock.advance(due_at - stage.clock.now())
        await stage.repair.run_once()

    days = [datetime(2026, 1, 1) + n * DAY for n in range(365)]  # noqa: DTZ001 - days of a wall calendar
    gap = datetime(2026, 3, 29, 3, 0, tzinfo=berlin).astimezone(UTC)
    expected = {("berlin", _on(berlin, day, 2, 30) if day != datetime(2026, 3, 29) else gap) for day in days}  # noqa: DTZ001
    expected |= {("new-york", _on(new_york, day, 1, 30)) for day in days}
    expected |= {("first-monday", _on(berlin, day, 9, 0)) for day in days if day.weekday() == 0 and day.day <= 7}
    expected |= {("month-end", _on(UTC, day, 12, 0)) for day in days if (day + DAY).day == 1}
    expected |= {("interval", datetime(2026, 1, 1, tzinfo=UTC) + n * 73 * HOUR) for n in range(1, 120)}
    assert await _submitted(stage) == sorted(run_key(name, at) for name, at in expected)


async def _submitted(stage: Stage) -> list[str]:
    """The keys of all tasks."""
    keys: list[str] = []
    cursor = None
    while True:
        page = await stage.store.list_tasks(EVERYONE, TaskFilter(), limit=500, cursor=cursor)
        keys += [task.idempotency_key or "" for task in page.items]
        if (cursor := page.next_cursor) is None:
            return sorted(keys)


async def _soonest(stage: Stage) -> datetime:
    return min(seen.schedule.due_at for seen in (await stage.schedules.list_schedules(limit=10)).items)


def _on(zone: Any, day: datetime, hour: int, minute: int) -> datetime:
    """A time of a day on a zone's clocks; the first one, where there are two."""
    return day.replace(hour=hour, minute=minute, tzinfo=zone, fold=0).astimezone(UTC)


@pytest.mark.parametrize("overlap", ["skip", "cancel_previous"])
async def test_a_run_by_hand_between_a_due_run_and_its_record_is_left_alone(
    stage: Stage, overlap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.create(overlap=overlap)
    stage.clock.advance(HOUR)
    by_hand: list[str] = []

    async def run_by_hand(name: str) -> None:
        if name == "schedule.after_submit" and not by_hand:
            stage.clock.advance(1)
            by_hand.append((await stage.schedules.run("nightly")).task.task_id)

    with monkeypatch.context() as patch:
        patch.setattr(failpoint, "reached", run_by_hand)
        await stage.repair.run_once()
    await stage.repair.run_once()
    tasks = (await stage.store.list_tasks(EVERYONE, TaskFilter(), limit=9)).items
    assert len(tasks) == 2, "the run that was due is submitted once"
    assert [task.status for task in tasks] == [TaskStatus.QUEUED] * 2, "and cancels nothing"
    seen = await stage.schedules.get("nightly")
    assert (seen.next_at, seen.last_run and seen.last_run.task_id) == (stage.store.now() + HOUR - SECOND, by_hand[0])


async def test_a_repeated_run_by_hand_is_recorded_if_the_first_call_died_before(stage: Stage) -> None:
    await stage.create(overlap="skip")

    async def die(*_: object) -> None:
        raise StoreUnavailableError("gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskframework.operations.schedules.change_schedule", die)
        with pytest.raises(StoreUnavailableError):
            await stage.schedules.run("nightly", key="k")
    stage.clock.advance(MINUTE)
    repeated = await stage.schedules.run("nightly", key="k")
    last = (await stage.schedules.get("nightly")).last_run
    assert not repeated.is_new
    assert last == LastRun(repeated.task.created_at, repeated.task.task_id)
    newer = await stage.schedules.run("nightly", key="l")
    await stage.schedules.run("nightly", key="k")
    assert (await stage.schedules.get("nightly")).last_run == LastRun(newer.task.created_at, newer.task.task_id)


@pytest.mark.parametrize("missed", ["all", "once"])
async def test_the_next_run_keeps_its_stored_time_if_its_jitter_is_computed_anew(stage: Stage, missed: str) -> None:
    """As after a new release of the time zones, by which the run after it, and so the longest jitter, is another."""
    made = await stage.create(missed=missed, jitter="1h")
    [record] = await all_schedules(stage.store)
    sooner = replace(made, due_at=made.next_at)
    await stage.store.write_records([SCHEDULE.changed(record, sooner)])
    stage.clock.advance(HOUR)
    await stage.repair.run_once()
    seen = await stage.schedules.get("nightly")
    assert (len(await stage.runs()), seen.last_run and seen.last_run.at) == (1, made.next_at)
