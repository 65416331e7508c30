"""What a task type says of its rate limit is checked where it is written, and where it is registered."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field

from taskframework import (
    BackgroundTaskExecutable,
    ConcurrencyLimit,
    QueueTimeout,
    RateLimit,
    RegistrationError,
    TaskContext,
    TaskOptions,
)
from taskframework.limits.task_limits import bucket_id, check_limits, slots_id
from taskframework.model.limits import limit_ids
from taskframework.model.options import StartLimit
from taskframework.model.rate_limits import RATE
from taskframework.tasks.limits import limit_key, start_limit_of
from taskframework.tasks.registry import Registration, TaskRegistry


class Parameters(BaseModel):
    user_id: str
    sent_as: str = Field(default="", alias="as")


@pytest.mark.parametrize("wrong", [5, True, ("openai", "user")])
def test_an_option_that_is_no_limit_is_refused(wrong: Any) -> None:
    accepted = r"Use the name of a bucket in the settings, or RateLimit\(name, key=field\)"
    with pytest.raises(RegistrationError, match=f"rate_limit.*{accepted}"):
        TaskOptions(rate_limit=wrong)


@pytest.mark.parametrize("name", ["", "10/s", "Open AI", "a" * 101])
def test_a_name_that_no_bucket_can_have_is_refused_where_it_is_written(name: str) -> None:
    expected = "Use the name of a bucket in the settings.*rate_limiter.providers.mail.rate=10"
    for make in (lambda: RateLimit(name), lambda: TaskOptions(rate_limit=name)):
        with pytest.raises(RegistrationError, match=expected) as refused:
            make()
        assert f"The name of a rate limit is {name!r}." in refused.value.message


def test_a_name_that_is_no_text_is_refused_where_it_is_written() -> None:
    wrong: Any = 5
    with pytest.raises(RegistrationError, match="The name of a rate limit is 5"):
        RateLimit(wrong)


@pytest.mark.parametrize("key", ["", 7])
def test_a_key_of_a_limit_that_is_no_text_is_refused(key: Any) -> None:
    for make in (lambda: RateLimit("openai", key), lambda: ConcurrencyLimit(3, key)):
        with pytest.raises(RegistrationError, match="Use a text: the name of a field"):
            make()


def test_a_name_alone_is_a_limit_of_the_whole_type() -> None:
    assert TaskOptions(rate_limit="openai").limit == RateLimit("openai")
    assert TaskOptions(rate_limit=RateLimit("openai", "user")).limit == RateLimit("openai", "user")
    assert TaskOptions().limit is None


def registered(parameters: Any, key: str) -> Registration:
    class Limited(BackgroundTaskExecutable[parameters, None]):
        task_type = "limited"
        options = TaskOptions(rate_limit=RateLimit("openai", key=key))

        async def execute(self, context: TaskContext[Any]) -> None: ...

    registration = TaskRegistry().register(Limited)
    check_limits(registration, ["openai"])
    return registration


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        (Parameters, "user_id"),
        (Parameters, "as"),
        (dict[str, str], "anything"),
        (Any, "x"),
        (Parameters | None, "user_id"),
        (Parameters | dict[str, int], "x"),
    ],
)
def test_a_key_may_be_any_field_that_there_may_be(parameters: Any, key: str) -> None:
    registered(parameters, key)


@pytest.mark.parametrize(
    ("parameters", "key", "hint"),
    [
        (Parameters, "userid", r"Did you mean 'user_id'\?"),
        (Parameters, "sent_as", "There is: as, user_id"),
        (None, "user_id", "There is: none"),
        (str, "user_id", "There is: none"),
        (list[Parameters], "user_id", "There is: none"),
        (Parameters | None, "userid", r"Did you mean 'user_id'\?"),
    ],
)
def test_a_key_that_is_no_field_is_refused(parameters: Any, key: str, hint: str) -> None:
    with pytest.raises(RegistrationError, match=rf"key '{key}', which is not a field of its parameters\. {hint}"):
        registered(parameters, key)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("alice", "alice"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (None, ""),
        ({"b": 1, "a": [2]}, '{"a": [2], "b": 1}'),
    ],
)
def test_a_key_is_a_text(value: Any, text: str) -> None:
    assert limit_key({"user": value}, "user") == text


@pytest.mark.parametrize("parameters", [None, [], "user", {}, {"other": 1}])
def test_without_a_value_the_key_is_empty(parameters: Any) -> None:
    assert limit_key(parameters, "user") == ""


@pytest.mark.parametrize(
    ("users", "key"), [(["ann", "ann"], "ann"), (["ann", "bob"], ""), (["ann", None], ""), ([7, "7"], "7"), ([], "")]
)
def test_a_chunk_has_the_key_that_all_its_items_have(users: list[Any], key: str) -> None:
    assert limit_key([{"user": user} for user in users], "user") == key


class ByAnyName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    user_id: str = Field(alias="userId")
    region: str = Field(default="", validation_alias=AliasChoices("region", "zone", AliasPath("places", 0)))


@pytest.mark.parametrize(
    ("model", "key", "names"),
    [
        (ByAnyName, "userId", ("userId", "user_id")),
        (ByAnyName, "region", ("region", "zone")),
        (ByAnyName | None, "userId", ("userId", "user_id")),
        (Annotated[ByAnyName, "of a customer"], "userId", ("userId", "user_id")),
        (Parameters, "user_id", ("user_id",)),
        (Parameters, "as", ("as",)),
        (dict[str, str], "any", ("any",)),
    ],
)
def test_a_key_is_read_under_each_name_that_the_model_takes(model: Any, key: str, names: tuple[str, ...]) -> None:
    registration = registered(model, key)
    assert registration.names_of(key) == names
    limit, other = ConcurrencyLimit(1, key=key), RateLimit("openai", key=key)
    for name in names:
        assert slots_id(limit, registration, {name: "ann"}) == "slots/limited/ann"
        assert bucket_id(other, registration, {name: "ann"}) == "rate/openai/ann"


def test_a_limit_is_named_by_a_key_of_any_length() -> None:
    for key in ("ann", "Müller/2", "x" * 900):
        assert limit_ids(f"charge/{key}") == limit_ids(f"charge/{limit_key({'user': key}, 'user')}")
        assert limit_ids(f"charge/{key}")[0] == RATE.id_of("charge", limit_key({"user": key}, "user"))


def test_a_long_key_is_shortened_and_stays_another_one() -> None:
    keys = {limit_key({"user": "x" * length}, "user") for length in (200, 201, 202, 10_000)}
    assert (len(keys), max(map(len, keys))) == (4, 200)


@pytest.mark.parametrize("wrong", [0, -1, "5m", True, timedelta(0), timedelta(days=4000), float("nan"), 1e300])
def test_a_queue_timeout_that_is_no_time_is_refused(wrong: Any) -> None:
    with pytest.raises(RegistrationError, match=r"queue_timeout.*Use a timedelta or seconds, from a millisecond"):
        TaskOptions(queue_timeout=wrong)
    with pytest.raises(RegistrationError, match=r"queue_timeout.*Use a timedelta or seconds, from a millisecond"):
        QueueTimeout(wrong)


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        (None, None),
        (1.5, StartLimit(1_500)),
        (timedelta(minutes=1), StartLimit(60_000)),
        (QueueTimeout(2, counts_limits=True), StartLimit(2_000, counts_limits=True)),
    ],
)
def test_a_queue_timeout_is_carried_by_tasks(given: Any, carried: StartLimit | None) -> None:
    assert start_limit_of(TaskOptions(queue_timeout=given).queue_timeout) == carried
