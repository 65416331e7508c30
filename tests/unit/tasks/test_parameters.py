"""Objects as parameters: an attempt gets what was submitted, or it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, PlainSerializer, field_serializer, model_validator

from taskframework import BackgroundTaskExecutable, InvalidParametersError, TaskContext
from taskframework.tasks.registry import TaskRegistry


class Parcel(BaseModel):
    weight: int


class Insured(Parcel):
    value: int


@dataclass
class Item:
    name: str


@dataclass
class Gift(Item):
    card: str


@dataclass
class Animal:
    name: str


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


class Owner(BaseModel):
    pets: dict[str, list[Cat | Dog]] = {}
    more: Any = None


class Marked(BaseModel):
    kind: Literal["marked"] = "marked"
    name: str


class Pause(BaseModel):
    pass


class Resume(BaseModel):
    pass


class Created(Pause):
    number: int


class Command(BaseModel):
    event: Pause


class User(BaseModel):
    number: int
    name: str


class Reference(BaseModel):
    number: int


class Order(BaseModel):
    owner: Annotated[User, PlainSerializer(lambda user: {"number": user.number})] | Reference


class Home(BaseModel):
    pet: Cat | Dog = Field(default_factory=lambda: Cat(name="x"), exclude=True)


class Node(BaseModel):
    children: list[Node] = []
    parent: Node | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _link(self) -> Node:
        for child in self.children:
            child.parent = self
        return self


class Linked(BaseModel):
    children: list[Linked] = []
    parent: Linked | None = None

    @model_validator(mode="after")
    def _link(self) -> Linked:
        for child in self.children:
            child.parent = self
        return self

    @field_serializer("parent")
    def _is_in_no_json(self, parent: Linked | None) -> None:
        return None


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Cat | Dog, Dog(name="x"), "an attempt gets an instance of Cat and not of Dog: their JSON is alike"),
        (Item | Animal, Animal("x"), "an attempt gets an instance of Item and not of Animal"),
        (list[Cat | Dog], [Cat(name="x"), Dog(name="x")], "an instance of Cat and not of Dog"),
        (Owner, Owner(pets={"a": [Dog(name="x")]}), "an instance of Cat and not of Dog"),
        (Item, Gift("x", "y"), "card of Gift would be lost: an attempt gets an instance of Item"),
        (tuple[Parcel, ...], (Insured(weight=1, value=2),), "value of Insured would be lost"),
        (Pause | Resume, Resume(), "an instance of Pause and not of Resume"),
        (Command, Command(event=Created(number=1)), "event: number of Created would be lost"),
        (Order, Order(owner=User(number=1, name="x")), None),
        (Home, Home(pet=Dog(name="x")), None),
        (Node, Node(children=[Node()]), None),
        (Linked, Linked(children=[Linked()]), None),
        (Cat | Dog, Cat(name="x"), None),
        (Cat | Marked, Marked(name="x"), None),
        (list[Cat | Dog], [{"name": "x"}], None),
        (Owner, Owner(pets={"a": [Cat(name="x")]}, more=[Dog(name="y")]), None),
        (Item, Item("x"), None),
        (Any, Item("x"), None),
    ],
)
def test_an_object_that_an_attempt_would_get_as_another_one_is_refused(
    kind: Any, value: object, message: str | None
) -> None:
    class Takes(BackgroundTaskExecutable[kind, None]):
        task_type = "takes"

        def execute(self, context: TaskContext[Any]) -> None: ...

    registration = TaskRegistry().register(Takes)
    if message is None:
        registration.accept(value)
        return
    with pytest.raises(InvalidParametersError) as refused:
        registration.accept(value)
    assert message in refused.value.message
    assert ("Field(discriminator=...)" in str(refused.value)) is ("and not of" in message)
