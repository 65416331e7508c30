"""What a worker declares of a type is enough to check a submission, without the code and without the network."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest
from pydantic import BaseModel, ConfigDict, Field

from taskframework import BackgroundTaskExecutable, InvalidParametersError, TaskContext, TaskOptions
from taskframework.errors import ValueNotStorableError
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration
from taskframework.tasks.registry import Registration, TaskRegistry


class Colour(enum.Enum):
    RED = "red"


class Card(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["card"] = "card"
    number: str = Field(alias="cardNumber", pattern=r"^(\d+)+$")


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


class Order(BaseModel):
    amount: float = Field(ge=3)
    pays: Annotated[Card | Transfer, Field(discriminator="kind")] | None = None
    parts: list[Order] = []
    colour: Colour = Colour.RED
    at: datetime | None = None
    order: UUID | None = None


class Charge(BackgroundTaskExecutable[Order, int]):
    task_type = "charge"
    options = TaskOptions(priority="high", max_attempts=7)

    async def execute(self, context: TaskContext[Order]) -> int:
        return 1


@pytest.fixture(scope="module")
def registration() -> Registration:
    return TaskRegistry().register(Charge)


@pytest.fixture(scope="module")
def declaration(registration: Registration) -> TaskDeclaration:
    return read_again(TaskDeclaration.of(registration))


def read_again(declaration: TaskDeclaration) -> TaskDeclaration:
    """What another process reads, of the record as JSON."""
    record = DECLARATION.new(declaration.task_type, content=declaration)
    return DECLARATION.content(replace(record, data=json.loads(record.data_as_json())))


def declared(schema: Any) -> TaskDeclaration:
    return TaskDeclaration(task_type="a", parameters_schema=schema, result_schema={}, priority="normal")


def test_a_declaration_has_all_that_a_submission_needs(declaration: TaskDeclaration) -> None:
    assert (declaration.task_type, declaration.priority, declaration.max_attempts) == ("charge", "high", 7)
    assert declaration.result_schema == {"type": "integer"}
    assert declaration.declared_at is None


@pytest.mark.parametrize(
    "parameters",
    [
        {"amount": 3},
        {"amount": 3.5, "pays": None, "parts": [{"amount": 4, "parts": [{"amount": 5}]}], "unknown": 1},
        {"amount": 3, "pays": {"kind": "card", "cardNumber": "12"}, "colour": "red", "at": "2027-01-31T12:00:00Z"},
        {"amount": 3, "pays": {"kind": "transfer", "iban": "x"}},
        {"amount": 3, "at": "2027-01-31 12:00", "order": "9b2c5a8e0f6e4a2bb6d9d5c0a1f2e3d4"},
    ],
)
def test_registration_and_declaration_accept_the_same_parameters(
    registration: Registration, declaration: TaskDeclaration, parameters: Any
) -> None:
    assert declaration.accept(parameters) == registration.accept(parameters)
    assert declaration.accept(parameters)[0] == parameters


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({}, ["amount"]),
        (None, ["(whole)"]),
        ({"amount": 1}, ["amount"]),
        ({"amount": 3, "colour": "blue"}, ["colour"]),
        ({"amount": 3, "parts": [{"amount": 3}, {"amount": None}, {}]}, ["parts.1.amount", "parts.2.amount"]),
        ({"amount": 3, "parts": 5}, ["parts"]),
        ({"amount": 3, "at": "yesterday"}, ["at"]),
        ({"amount": 3, "order": "9b2c"}, ["order"]),
    ],
)
def test_registration_and_declaration_refuse_the_same_parameters(
    registration: Registration, declaration: TaskDeclaration, parameters: Any, fields: list[str]
) -> None:
    for kind in (registration, declaration):
        with pytest.raises(InvalidParametersError) as refusal:
            kind.accept(parameters)
        assert [problem["field"] for problem in refusal.value.problems] == fields
        assert refusal.value.task_type == "charge"
        assert "(whole)" not in refusal.value.message, "a word of programs, which people do not know"
        named = [field for field in fields if field != "(whole)"]
        assert all(field in refusal.value.message for field in named), "so that nobody mends one after the other"


def test_parameters_that_are_no_object_are_refused_with_the_fields_of_the_type(
    registration: Registration, declaration: TaskDeclaration
) -> None:
    for kind in (registration, declaration):
        with pytest.raises(InvalidParametersError) as refusal:
            kind.accept(None)
        assert refusal.value.hint == (
            "It takes an object with amount (number), pays (value or null, may be left out), "
            "parts (list, may be left out), colour (text, may be left out), at (text or null, may be left out), "
            "order (text or null, may be left out). "
            "GET /api/v1/task-types has its schema."
        )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string"}, "It takes JSON of this kind: text."),
        (
            {"type": "object", "properties": {f"f{n}": {} for n in range(12)}},
            "f9 (value, may be left out), and 2 more.",
        ),
        ({"type": "object", "properties": {"a": True}}, "Give the parameters that the type accepts."),
    ],
)
def test_a_refusal_describes_any_schema_in_words(schema: Any, said: str) -> None:
    with pytest.raises(InvalidParametersError) as refusal:
        declared(schema | {"not": {}}).accept(None)
    assert said in refusal.value.hint


def test_a_refusal_names_each_alternative_except_null(declaration: TaskDeclaration) -> None:
    with pytest.raises(InvalidParametersError) as refusal:
        declaration.accept({"amount": 3, "at": 5, "pays": {"kind": "card", "cardNumber": "1", "more": 1}})
    problems = [(problem["field"], problem["message"]) for problem in refusal.value.problems]
    assert ("at", 'Input is not of type "string"') in problems
    assert ("pays.more", "there is no such field") in problems
    assert [message for _, message in problems if "null" in message] == []


def test_no_refusal_shows_the_given_values(declaration: TaskDeclaration) -> None:
    secret = {
        "amount": "hidden",
        "colour": "hidden",
        "pays": {"kind": "card", "cardNumber": "hidden"},
        "at": ["hidden"],
    }
    with pytest.raises(InvalidParametersError) as refusal:
        declaration.accept(secret)
    assert len(refusal.value.problems) > 3
    assert "hidden" not in str(refusal.value.problems)


def test_a_refusal_names_a_limited_number_of_wrong_fields(declaration: TaskDeclaration) -> None:
    with pytest.raises(InvalidParametersError) as refusal:
        declaration.accept({"amount": 3, "parts": [{}] * 1000})
    assert len(refusal.value.problems) == 50
    assert refusal.value.message.endswith("; and 45 more.")


@dataclass
class Line:
    amount: float
    parts: tuple[int, ...] = ()


def test_objects_in_parameters_become_json(declaration: TaskDeclaration) -> None:
    card = Card(cardNumber="12")
    assert declaration.accept(Order(amount=3, pays=card))[0]["pays"] == {"kind": "card", "cardNumber": "12"}
    assert declaration.accept(Line(4))[0] == {"amount": 4, "parts": []}


def test_a_value_that_cannot_be_stored_is_refused_before_the_schema_is_used(declaration: TaskDeclaration) -> None:
    nested: Any = {"amount": 3}
    for _ in range(100_000):  # the library follows it to the end of its stack
        nested = {"amount": 3, "parts": [nested]}
    for value in (nested, {"amount": object()}, {"amount": float("nan")}, {"amount": 2**70}, {1: 2}):
        with pytest.raises(ValueNotStorableError) as refused:
            declaration.accept(value)
        assert ("register the task type" in str(refused.value)) is ("object is not a JSON type" in str(refused.value))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/hostname"},
        {"type": "string", "pattern": "(?(1)a|b)"},
    ],
)
def test_a_schema_that_cannot_be_applied_leaves_it_to_the_worker(schema: Any) -> None:
    assert declared(schema).accept("x") == ("x", b'"x"')


def test_a_pattern_takes_no_time_that_grows_with_the_input(declaration: TaskDeclaration) -> None:
    with pytest.raises(InvalidParametersError):
        declaration.accept({"amount": 3, "pays": {"kind": "card", "cardNumber": "1" * 100_000 + "x"}})


class Unusual(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    made: object = object()
    call: Annotated[Any, Field(json_schema_extra={"examples": [datetime(2026, 1, 1, tzinfo=UTC)]})] = None
    most: int = Field(default=0, le=10**30)


class HasUnusual(BackgroundTaskExecutable[Unusual, complex]):
    task_type = "unusual"

    async def execute(self, context: TaskContext[Unusual]) -> complex:
        return 1j


def test_a_type_that_no_schema_describes_whole_is_declared_all_the_same() -> None:
    declaration = TaskDeclaration.of(TaskRegistry().register(HasUnusual))
    again = read_again(declaration)
    assert again.accept({"made": 1, "call": {}})[0] == {"made": 1, "call": {}}
    with pytest.raises(InvalidParametersError):
        again.accept({"most": "x"})


def refused_by_its_author(_: dict[str, Any]) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "extra", [{"note": object()}, {"$ref": "#/nowhere"}, refused_by_its_author], ids=["value", "reference", "code"]
)
def test_a_type_without_a_schema_is_declared_open(extra: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Own(BaseModel):
        model_config = ConfigDict(json_schema_extra=extra)

        count: Annotated[int, Field(json_schema_extra=extra)] = 0

    class HasOwn(BackgroundTaskExecutable[Own, int]):
        task_type = "own"

        async def execute(self, context: TaskContext[Own]) -> int:
            return 1

    declaration = TaskDeclaration.of(TaskRegistry().register(HasOwn))
    assert declaration.accept({"count": "anything"})[0] == {"count": "anything"}
    assert declaration.result_schema == {"type": "integer"}
    assert "task type own has no JSON schema (validation): " in caplog.text


def test_a_schema_is_json_in_the_process_that_declares_it_too() -> None:
    class Unset(BaseModel):
        ratio: float = float("nan")

    class HasUnset(BackgroundTaskExecutable[Unset, None]):
        task_type = "unset"

        async def execute(self, context: TaskContext[Unset]) -> None: ...

    declaration = TaskDeclaration.of(TaskRegistry().register(HasUnset))
    assert declaration.parameters_schema["properties"]["ratio"]["default"] is None
    assert read_again(declaration) == declaration


def test_a_declaration_of_another_release_can_be_read(declaration: TaskDeclaration) -> None:
    record = DECLARATION.new("a", content=declaration)
    newer = replace(record, data={**record.data, "more": {"a": 1}})
    older = {"task_type": "a", "parameters_schema": {}, "result_schema": {}, "priority": "normal"}
    assert DECLARATION.content(newer) == declaration
    assert DECLARATION.content(replace(record, data=older)).max_attempts is None
