"""`TaskFramework.submit`: how a task type may be named, and what is said about everything else."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, computed_field, model_validator

from taskframework import (
    BackgroundTaskExecutable,
    ConfigurationError,
    IdempotencyConflictError,
    InvalidParametersError,
    InvalidRequestError,
    Settings,
    StoreUnavailableError,
    SubmitRequest,
    TaskContext,
    TaskFramework,
    TaskOptions,
    UnknownTaskTypeError,
    ValueNotStorableError,
    task,
)
from taskframework.model.attempts import Claim, Fail
from taskframework.model.scope import EVERYONE
from taskframework.model.subtasks import subtask_id
from taskframework.model.transitions import Fence
from taskframework.submission.acceptance import accept_options
from taskframework.tasks.kinds import read_result
from taskframework.testing.conformance.store_suite import make_error


class Counts(BackgroundTaskExecutable[str, int]):
    task_type = "counts"
    options = TaskOptions(max_chunk_size=2)

    def execute(self, context: TaskContext[str]) -> int:
        return len(context.parameters)


class Login(BaseModel):
    user: str = "ada"
    passwords: list[SecretStr] = []


class LogsIn(BackgroundTaskExecutable[Login, int]):
    task_type = "logs-in"

    def execute(self, context: TaskContext[Login]) -> int:
        return len(context.parameters.passwords)


def exits(value: int) -> int:
    sys.exit(value)


class Exits(BackgroundTaskExecutable[Annotated[int, AfterValidator(exits)], None]):
    task_type = "exits"

    def execute(self, context: TaskContext[int]) -> None: ...


class Unregistered(Counts):
    task_type = "unregistered"


@pytest.fixture
async def framework(tmp_path: Path) -> AsyncIterator[TaskFramework]:
    framework = TaskFramework(Settings.model_validate({"store": {"url": f"sqlite:///{tmp_path}/tasks.db"}}))
    framework.register(Counts)
    framework.register(LogsIn)
    framework.register(Exits)
    async with framework.store_only():
        yield framework


@pytest.mark.parametrize("wrong", [{"$ne": None}, None, 5, ["x"], b"x"], ids=str)
async def test_an_id_is_a_text(framework: TaskFramework, wrong: Any) -> None:
    """MongoDB would take a dictionary for a condition, and return the task of somebody else."""
    await framework.submit("counts", "text")
    calls: list[Callable[[Any], Any]] = [framework.get, framework.handle, framework.batch, framework.stream]
    for call in calls:
        with pytest.raises(InvalidRequestError, match=f"must be a text, not a {type(wrong).__name__}"):
            await call(wrong)
    if wrong is not None:
        with pytest.raises(InvalidRequestError, match="user_id: must be a text"):
            framework.stream("key", user_id=wrong)


@pytest.mark.parametrize("wrong", [-1, 2.5, "1", None, True], ids=str)
async def test_results_begin_at_a_whole_number(framework: TaskFramework, wrong: Any) -> None:
    for results in (framework.batch("b").results(first=wrong), framework.stream("s").results(first=wrong)):
        with pytest.raises(InvalidRequestError, match="first: must be a whole number from 0 on"):
            await anext(results)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (b"\xff", InvalidRequestError),
        (5, InvalidRequestError),
        ({"a": 1}, InvalidRequestError),
        ("x" * 1001, InvalidRequestError),
        ("\ud800", ValueNotStorableError),
    ],
    ids=["bytes", "number", "object", "long", "surrogate"],
)
async def test_a_reason_is_a_short_text(framework: TaskFramework, wrong: Any, error: type[Exception]) -> None:
    handle = await framework.submit("counts", "text")
    for action in ("cancel", "retry", "discard"):
        with pytest.raises(error, match="reason"):
            await getattr(framework.services.tasks, action)(handle.task_id, EVERYONE, by="ada", reason=wrong)
    assert (await handle.task()).status == "QUEUED"
    assert (await handle.cancel("ключ " * 200)).status == "CANCELLED"


@pytest.mark.parametrize("named", ["counts", Counts, Counts()], ids=["name", "class", "instance"])
async def test_a_task_type_is_named_by_its_name_its_class_or_an_instance(framework: TaskFramework, named: Any) -> None:
    one = await framework.submit(named, "text", idempotency_key="key")
    many = await framework.submit_many([SubmitRequest(task_type=named, parameters="text", idempotency_key="key")])
    assert (await framework.get(one.task_id)).task_type == "counts"
    assert [getattr(handle, "task_id", handle) for handle in many] == [one.task_id], "it is the same request"


@pytest.mark.parametrize("wrong", [5, None, int, b"counts", BackgroundTaskExecutable], ids=str)
async def test_a_task_type_that_is_named_in_another_way_is_refused(framework: TaskFramework, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"task_type: .*Give the type's name, its class or an instance"):
        await framework.submit(wrong, "text")


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 5},
        {"not_before": 5},
        {"deadline": "tomorrow"},
        {"max_attempts": "3"},
        {"max_attempts": True},
        {"idempotency_key": 5},
        {"user_id": b"ada"},
        {"correlation_id": 5},
    ],
    ids=str,
)
async def test_a_value_of_another_type_is_refused_by_the_name_of_its_argument(
    framework: TaskFramework, wrong: dict[str, Any]
) -> None:
    (name,) = wrong
    with pytest.raises(InvalidRequestError, match=f"^{name}: "):
        await framework.submit("counts", "text", **wrong)


@pytest.mark.parametrize("wrong", [{"kez": "k", "version": 1}, {"version": 1}])
async def test_an_option_with_missing_fields_is_refused_without_showing_a_value(
    framework: TaskFramework, wrong: Any
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await framework.submit("counts", "text", unique=wrong)
    assert ", not" not in refused.value.message
    assert refused.value.hint.startswith("Its fields are key, version, on_running (optional). Only the newest version")


async def test_a_single_value_is_not_taken_for_the_items_of_a_batch(framework: TaskFramework) -> None:
    for one in ("text", {"text": "a"}, 5, Settings()):
        with pytest.raises(TypeError, match=f"not one {type(one).__name__}; for a single task write a list of one"):
            await framework.submit_batch("counts", one)  # type: ignore[arg-type]


async def test_an_option_that_does_not_exist_is_a_mistake_that_type_checkers_see_too(framework: TaskFramework) -> None:
    with pytest.raises(TypeError, match=r"no option prioriti; did you mean priority\?"):
        await framework.submit("counts", "text", prioriti="high")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no option paramters; did you mean parameters\?"):
        SubmitRequest(task_type="counts", paramters="text")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no option colour; the options are correlation_id, "):
        SubmitRequest(task_type="counts", colour="red")  # type: ignore[call-overload]


async def test_a_secret_that_would_be_stored_as_asterisks_is_refused(framework: TaskFramework) -> None:
    with pytest.raises(ValueNotStorableError, match="a SecretStr becomes asterisks"):
        await framework.submit(LogsIn, Login(passwords=[SecretStr("hunter2")]))
    assert (await (await framework.submit(LogsIn, Login())).task()).parameters == {"user": "ada", "passwords": []}


async def test_a_validator_that_exits_ends_neither_the_program_nor_other_submissions(framework: TaskFramework) -> None:
    with pytest.raises(InvalidParametersError, match=r"a validator of the task type broke \(SystemExit\)"):
        await framework.submit("exits", 4)


class WritesOtherNames(BaseModel):
    order_id: str = Field(serialization_alias="orderId")


class WritesMore(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2


class WritesLess(BaseModel):
    order_id: str = Field(exclude=True)


class WantsItself(BaseModel):
    order_id: str

    @model_validator(mode="before")
    @classmethod
    def check(cls, given: Any) -> Any:
        return {"order_id": given["order_id"].removeprefix("#") if "#" in given["order_id"] else 1 / 0}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (WritesOtherNames(order_id="5"), "order_id: Field required"),
        (WritesMore(width=3), "area: there is no such field"),
        (WritesLess(order_id="5"), "order_id: Field required"),
        (WantsItself(order_id="#5"), "ZeroDivisionError"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_object_that_no_attempt_could_read_is_refused(
    framework: TaskFramework, value: BaseModel, reason: str
) -> None:
    class Reads(BackgroundTaskExecutable[type(value), None]):  # type: ignore[misc]
        task_type = "reads"

        def execute(self, context: TaskContext[Any]) -> None: ...

    framework.register(Reads)
    with pytest.raises(InvalidParametersError) as refused:
        await framework.submit(Reads, value)
    assert f"{type(value).__name__} does not accept its own JSON ({reason})" in refused.value.message
    assert "see its aliases, and its excluded and computed fields" in refused.value.hint


class Parcel(BaseModel):
    weight: int


class Insured(Parcel):
    value: int


class Renamed(Parcel):
    """Has no field of its own, so nothing is lost."""


async def test_an_object_of_a_subclass_whose_fields_would_be_lost_is_refused(framework: TaskFramework) -> None:
    class Sends(BackgroundTaskExecutable[Parcel, None]):
        task_type = "sends"

        def execute(self, context: TaskContext[Parcel]) -> None: ...

    framework.register(Sends)
    with pytest.raises(InvalidParametersError) as refused:
        await framework.submit(Sends, Insured(weight=1, value=2))
    assert "value of Insured would be lost: an attempt gets an instance of Parcel" in refused.value.message
    assert refused.value.hint.startswith(
        "Declare Insured as the parameters of the task type, or submit an instance of Parcel."
    )
    await framework.submit(Sends, Renamed(weight=1))


async def test_no_parameters_are_the_same_as_an_empty_object(framework: TaskFramework) -> None:
    """One key with both was a conflict of parameters."""

    @task("clean-up")
    def clean_up() -> None: ...

    framework.register(clean_up)
    same: list[Any] = [{}, None, {}]
    handles = [await framework.submit("clean-up", given, idempotency_key="daily") for given in same]
    assert len({handle.task_id for handle in handles}) == 1
    assert (await handles[0].task()).parameters is None


class Tagged(BaseModel):
    tags: set[str] = Field(serialization_alias="Tags", validation_alias="Tags")
    more: dict[str, list[frozenset[int]]] = {}


class Tags(BackgroundTaskExecutable[Tagged | set[str], None]):
    task_type = "tags"

    def execute(self, context: TaskContext[Tagged | set[str]]) -> None: ...


async def test_a_set_is_stored_in_the_same_order_by_every_process(framework: TaskFramework) -> None:
    framework.register(Tags)
    words = [f"w{number}" for number in range(40)]  # as many as no process has in this order by chance
    tagged = Tagged.model_validate({"Tags": words, "more": {"a": [frozenset({8, 16, 0}), frozenset({5})]}})
    stored = (await (await framework.submit(Tags, tagged)).task()).parameters
    assert stored == {"Tags": sorted(words), "more": {"a": [[0, 16, 8], [5]]}}
    assert (await (await framework.submit(Tags, set(words))).task()).parameters == sorted(words)


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime
    price: Decimal
    name: str


class TakesExact(BackgroundTaskExecutable[Exact, Exact]):
    task_type = "takes-exact"

    async def execute(self, context: TaskContext[Exact]) -> Exact:
        return context.parameters


async def test_a_strict_model_reads_its_types_from_json(framework: TaskFramework) -> None:
    registration = framework.register(TakesExact)
    exact = Exact(at=datetime(2026, 1, 1, tzinfo=UTC), price=Decimal("1.50"), name="x")
    plain = {"at": "2026-01-01T00:00:00Z", "price": "1.50", "name": "x"}
    given: list[Any] = [exact, plain]
    for parameters in given:
        assert (await (await framework.submit(TakesExact, parameters)).task()).parameters == plain
    assert read_result(TakesExact, plain) == registration.validate_parameters(plain) == exact
    with pytest.raises(InvalidParametersError) as refused:
        await framework.submit("takes-exact", {**plain, "name": 5})
    assert [problem["field"] for problem in refused.value.problems] == ["name"]


class Holds(BaseModel):
    value: Any


class Keeps(BackgroundTaskExecutable[Any, None]):
    task_type = "keeps"

    def execute(self, context: TaskContext[Any]) -> None: ...


@pytest.mark.parametrize("value", [b"\xff", object()], ids=["bytes", "object"])
async def test_a_value_that_is_not_json_is_refused_wherever_it_is(framework: TaskFramework, value: object) -> None:
    framework.register(Keeps)
    for parameters in (value, [value], Holds(value=value)):
        with pytest.raises(ValueNotStorableError):
            await framework.submit(Keeps, parameters)


async def test_a_class_that_is_not_registered_is_an_unknown_type(framework: TaskFramework) -> None:
    with pytest.raises(UnknownTaskTypeError, match="'unregistered'"):
        await framework.submit(Unregistered, "text")


def test_a_framework_refuses_what_are_no_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"given a dict as its settings\. Give Settings"):
        TaskFramework({"api": {"port": 1}})  # type: ignore[arg-type]  # that it is refused is what the test is about


async def test_the_tasks_of_one_call_have_their_places_in_a_stream_in_the_order_of_the_list(
    framework: TaskFramework,
) -> None:
    uniques: list[Any] = [{"key": "a", "version": 1}, None, None, {"key": "b", "version": 1}, None]
    place: Any = {"key": "s"}
    requests = [
        SubmitRequest(task_type="counts", parameters="text", stream=place, unique=unique)
        if unique
        else SubmitRequest(task_type="counts", parameters="text", stream=place)
        for unique in uniques
    ]
    handles = await framework.submit_many(requests)
    stored = [await handle.task() for handle in handles if not isinstance(handle, Exception)]
    assert [task.stream and task.stream.position for task in stored] == [0, 1, 2, 3, 4]


async def _away(*_: Any) -> Any:
    raise StoreUnavailableError("The store is away.")


async def test_an_error_of_the_store_is_the_outcome_of_those_that_it_was_to_store(
    framework: TaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework.services.store, "get_many", _away)
    stream: Any = {"key": "s"}
    requests: list[SubmitRequest[Any]] = [
        SubmitRequest(task_type="counts", parameters="first"),
        SubmitRequest(task_type="counts", parameters="second", unique={"key": "k", "version": 1}),
        SubmitRequest(task_type="counts", parameters="third", stream=stream, idempotency_key="k"),
    ]
    first, second, third = await framework.submit_many(requests)
    assert isinstance(third, StoreUnavailableError)
    for handle in (first, second):
        assert not isinstance(handle, Exception)
        assert (await handle.task()).sequence == 1


async def test_types_that_cannot_be_found_now_are_the_outcome_of_their_requests(
    framework: TaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework.services.store, "read_records", _away)
    requests: list[SubmitRequest[Any]] = [SubmitRequest(task_type="counts", parameters="text") for _ in range(1_000)]
    *stored, last = await framework.submit_many([*requests, SubmitRequest(task_type="elsewhere")])
    assert isinstance(last, StoreUnavailableError)
    assert not [handle for handle in stored if isinstance(handle, Exception)]


async def fail(framework: TaskFramework, task_id: str) -> None:
    task = await framework.get(task_id)
    claim = Claim(task_id, task.dispatch_epoch, "claim", "worker", timedelta(minutes=1))
    fence = Fence(task_id, task.fencing_token + 1, "claim")
    for move in (claim, Fail(fence, "worker", make_error(), False, timedelta(0))):
        assert await framework.services.store.apply(move) is not None


async def correct(framework: TaskFramework, task_id: str, parameters: Any) -> None:
    """Let a task fail, and replay it with other parameters."""
    await fail(framework, task_id)
    [outcome] = await framework.services.dead_letters.replay_edited([task_id], parameters, EVERYONE, by="ann")
    assert outcome.problem is None


async def test_a_repeated_submission_finds_the_task_whose_parameters_an_operator_has_corrected(
    framework: TaskFramework,
) -> None:
    handle = await framework.submit("counts", "wrong", idempotency_key="k")
    await correct(framework, handle.task_id, "corrected")
    again = await framework.submit("counts", "wrong", idempotency_key="k")
    assert (again.task_id, again.is_new, (await again.task()).parameters) == (handle.task_id, False, "corrected")
    with pytest.raises(IdempotencyConflictError):
        await framework.submit("counts", "corrected", idempotency_key="k")


@pytest.mark.parametrize("chunk_size", [1, 2])
async def test_a_repeated_upload_finds_the_item_that_an_operator_has_corrected(
    framework: TaskFramework, chunk_size: int
) -> None:
    async def items() -> AsyncIterator[str]:
        for item in ("one", "two"):
            yield item

    options: Any = {"idempotency_key": "k", "chunk_size": chunk_size}
    batch = await framework.submit_batch("counts", items(), **options)
    corrected: Any = "corrected" if chunk_size == 1 else ["corrected", "two"]
    await correct(framework, subtask_id(batch.batch_id, 0, 1, 0), corrected)
    again = await framework.submit_batch("counts", items(), **options)
    assert (again.batch_id, again.is_new) == (batch.batch_id, False)


def test_a_time_that_is_too_far_away_is_shown_whole() -> None:
    far = datetime(2140, 12, 25, tzinfo=UTC)
    with pytest.raises(InvalidRequestError, match=r"within ten years, not 2140-12-25 00:00:00\+00:00"):
        accept_options({"not_before": far})
