"""What is wrong about a task type is said when it is declared or registered, with what to do."""

from __future__ import annotations

import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import pytest
from pydantic import AfterValidator, BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    RegistrationError,
    RetryableError,
    SubtaskSummary,
    TaskContext,
    TaskOptions,
)
from taskframework.errors import InvalidParametersError, UnknownTaskTypeError, ValueNotStorableError
from taskframework.tasks.registry import Registration, TaskRegistry

Item = TypeVar("Item")


class Base(BackgroundTaskExecutable[list[Item], int], Generic[Item]):
    """A generic base in between."""

    async def execute(self, context: TaskContext[list[Item]]) -> int:
        return len(context.parameters)


class Model(BaseModel):
    n: int


class OfModels(Base[Model]):
    task_type = "of-models"


class Abstract(BackgroundTaskExecutable[int, int]):
    task_type = "abstract"

    @abstractmethod
    def execute(self, context: TaskContext[int]) -> int: ...


class Bare(BackgroundTaskExecutable):  # type: ignore[type-arg]  # the mistake under test
    task_type = "bare"

    def execute(self, context: TaskContext[Any]) -> None: ...


class Unresolved(BackgroundTaskExecutable["Nowhere", int]):  # type: ignore[name-defined]
    task_type = "unresolved"

    def execute(self, context: TaskContext[Any]) -> int:
        return 0


class WithoutContext(BackgroundTaskExecutable[int, int]):
    task_type = "without-context"

    def execute(self) -> int:  # type: ignore[override]  # the mistake under test
        return 0


class Yields(BackgroundTaskExecutable[int, int]):
    task_type = "yields"

    async def execute(self, context: TaskContext[int]) -> Any:
        yield 1


class AsyncInProcess(BackgroundTaskExecutable[int, int]):
    task_type = "async-in-process"
    options = TaskOptions(run_in="process")

    async def execute(self, context: TaskContext[int]) -> int:
        return 0


class NeedsArguments(BackgroundTaskExecutable[int, int]):
    task_type = "needs-arguments"

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def execute(self, context: TaskContext[int]) -> int:
        return context.parameters * self.factor


class Refuses(BackgroundTaskExecutable[int, int]):
    task_type = "refuses"

    def __init__(self) -> None:
        raise TypeError("no config")

    def execute(self, context: TaskContext[int]) -> int:
        return 0


class FailsToBegin(Refuses):
    def __init__(self) -> None:
        raise RuntimeError("no config")


class TakesItsParameters(BackgroundTaskExecutable[list[int], int]):
    task_type = "takes-its-parameters"

    async def execute(self, numbers: list[int]) -> int:  # type: ignore[override]  # the mistake under test
        return sum(numbers)


class MisspeltOptions(BackgroundTaskExecutable[int, int]):
    task_type = "misspelt-options"
    option = TaskOptions(max_attempts=3)

    async def execute(self, context: TaskContext[int]) -> int:
        return 1


class Misspelt(BackgroundTaskExecutable[int, int | None]):
    task_type = "misspelt"

    async def execute(self, context: TaskContext[int]) -> None: ...

    async def on_subtask_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> int:
        return summary.succeeded


class NearlyMisspelt(BackgroundTaskExecutable[int, int]):
    task_type = "nearly-misspelt"

    async def execute(self, context: TaskContext[int]) -> int:
        return self.on_signal_received()

    def on_signal_received(self) -> int:
        return 0


class KeysOnly(TypedDict):
    """A type that pydantic refuses before Python 3.12."""

    key: str


def named(name: Any) -> type[BackgroundTaskExecutable[int, int]]:
    class Named(BackgroundTaskExecutable[int, int]):
        task_type = name

        def execute(self, context: TaskContext[int]) -> int:
            return 0

    return Named


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Abstract, "execute is missing"),
        (Bare, "does not say its parameter and result types"),
        (Unresolved, "not one pydantic can validate"),
        (WithoutContext, "cannot be called with a context"),
        (Yields, "is a generator"),
        (AsyncInProcess, "Make it a plain def"),
        (NeedsArguments, "Register an instance"),
        (int, "not a BackgroundTaskExecutable"),
        (named("Upper"), "lower-case"),
        (named(""), "lower-case"),
        (named("a" * 101), "at most 100"),
        (named("mail.high"), "ends with the name of a lane"),
        (named(None), "has no task_type"),
        (Refuses, r"test_declaring\.py, line \d+\) cannot be made: TypeError: no config"),
        (FailsToBegin, r"cannot be made: RuntimeError: no config.*"),
        (TakesItsParameters, r"takes the parameters as numbers, .* Write def execute\(self, context\)"),
        (MisspeltOptions, r"has its options under the name option, where nothing reads them\. Write options = Task"),
        (Misspelt, r"the method on_subtask_finished, which nobody calls\. Rename it to on_subtasks_finished"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:30],
)
def test_registering_is_refused_with_the_reason(wrong: Any, said: str) -> None:
    with pytest.raises(RegistrationError, match=said):
        TaskRegistry().register(wrong)


def test_an_option_that_is_written_beside_the_options_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Beside(BackgroundTaskExecutable[None, None]):
        task_type = "beside"
        max_attempts = 1
        retry_on = property(lambda self: ())  # of the author's own

        async def execute(self, context: TaskContext[None]) -> None: ...

        def timeout(self) -> int:
            return 5

    TaskRegistry().register(Beside)
    [said] = caplog.messages
    assert said.endswith(
        "the attribute max_attempts sets no option of the task type; write options = TaskOptions(max_attempts=...)"
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_attempts", 0),
        ("max_attempts", 2.5),
        ("max_attempts", True),
        ("max_attempts", 10**9),
        ("timeout", 0),
        ("timeout", -5),
        ("timeout", True),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", timedelta(0)),
        ("priority", "urgent"),
        ("initial_delay", "1s"),
        ("initial_delay", timedelta(seconds=-5)),
        ("initial_delay", timedelta(days=4_000)),
        ("max_delay", "1h"),
        ("max_delay", timedelta(days=4_000_000)),
        ("retry_on", ("ValueError",)),
        ("retry_on", ["ValueError", KeyError]),
        ("retry_on", "ValueError"),
        ("retry_on", int),
        ("run_in", "space"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(name: str, wrong: Any) -> None:
    with pytest.raises(RegistrationError, match=rf"option {name} is .* Use "):
        TaskOptions(**{name: wrong})


def test_the_longest_delay_is_not_less_than_the_first() -> None:
    with pytest.raises(RegistrationError, match=r"is 1\. Use a time that is not less than initial_delay"):
        TaskOptions(initial_delay=timedelta(seconds=100), max_delay=1)
    TaskOptions(initial_delay=1, max_delay=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("name", "hint"), [("max_attempt", "Did you mean max_attempts?"), ("x", "The options are max_attempts, timeout, ")]
)
def test_an_option_that_does_not_exist_is_named_with_the_nearest(name: str, hint: str) -> None:
    wrong: dict[str, Any] = {name: 3}
    with pytest.raises(RegistrationError, match=f"TaskOptions has no option {name}") as refused:
        TaskOptions(**wrong)
    assert str(refused.value.hint).startswith(hint)


def test_a_refusal_tells_the_line_of_the_author() -> None:
    lines: dict[Any, int] = {Bare: inspect.getsourcelines(Bare)[1]}
    for wrong in (WithoutContext, Yields, AsyncInProcess):  # here it is the method
        lines[wrong] = inspect.getsourcelines(wrong.execute)[1]
    for wrong, line in lines.items():
        with pytest.raises(RegistrationError, match=rf"{wrong.__name__} \(.*test_declaring\.py, line {line}\)"):
            TaskRegistry().register(wrong)


def test_two_executables_of_one_task_type_are_refused_with_both_lines() -> None:
    registry = TaskRegistry()
    registry.register(NeedsArguments(2))
    place = rf"NeedsArguments \(.*test_declaring\.py, line {inspect.getsourcelines(NeedsArguments)[1]}\)"
    with pytest.raises(RegistrationError, match=f"by .*{place} and .*{place}.* Register this class once"):
        registry.register(NeedsArguments(3))
    registry.register(named("one"))
    with pytest.raises(RegistrationError, match="Give one of them another task_type"):
        registry.register(named("one"))


def test_types_are_found_through_generic_bases() -> None:
    registration = TaskRegistry().register(OfModels)
    assert registration.validate_parameters([{"n": 1}]) == [Model(n=1)]
    with pytest.raises(InvalidParametersError, match=r"0\.n"):
        registration.validate_parameters([{"n": "x"}])


def test_instances_inside_of_a_collection_are_accepted_as_their_json() -> None:
    registration = TaskRegistry().register(OfModels)
    assert registration.accept([Model(n=1), {"n": 2}]) == ([{"n": 1}, {"n": 2}], b'[{"n":1},{"n":2}]')


class Point(NamedTuple):
    x: int


class Sealed(BaseModel):
    numbers: set[int]
    name: str = "none"


def registered(parameters: Any) -> Registration:
    class Takes(BackgroundTaskExecutable[parameters, Any]):
        task_type = "takes"

        async def execute(self, context: TaskContext[Any]) -> None: ...

    return TaskRegistry().register(Takes)


@pytest.mark.parametrize(
    ("parameters", "given", "stored"),
    [
        (list[int], lambda: (number for number in range(3)), [0, 1, 2]),
        (Iterable[int], lambda: iter([1, 2]), [1, 2]),
        (Any, lambda: map(str, [1, 2]), ["1", "2"]),
        (Sealed, lambda: {"numbers": map(int, "12")}, {"numbers": [1, 2], "name": "none"}),
        (list[Sealed], lambda: iter([Sealed(numbers={1})]), [{"numbers": [1], "name": "none"}]),
        (set[int], lambda: {1, 2}, [1, 2]),
        (Point, lambda: Point(1), [1]),
        (dict[int, str], lambda: {1: "a"}, {"1": "a"}),
    ],
)
def test_parameters_that_are_not_json_are_stored_as_their_type_reads_them(
    parameters: Any, given: Callable[[], Any], stored: Any
) -> None:
    registration = registered(parameters)
    accepted, _ = registration.accept(given())
    assert accepted == stored
    read, expected = registration.validate_parameters(accepted), given()
    if not isinstance(expected, Iterator | dict):
        assert read == expected


@pytest.mark.parametrize(
    ("parameters", "given", "said"),
    [
        (Any, {1, 2}, "set is not a JSON type"),
        (Any, {1: "a"}, "a key is of type int"),
        (dict[tuple[int, int], str], {(1, 2): "a"}, "a key is of type tuple"),
        (bytes, b"\xff", "bytes that are not UTF-8 need a model with ser_json_bytes and val_json_bytes set to base64"),
        (list[float], (number for number in [1.0, float("nan")]), "nan is not a JSON number"),
    ],
)
def test_a_value_that_would_be_another_one_when_it_is_read_is_refused(parameters: Any, given: Any, said: str) -> None:
    with pytest.raises(ValueNotStorableError, match=said):
        registered(parameters).accept(given)


def test_a_method_of_another_name_is_the_authors_own() -> None:
    TaskRegistry().register(NearlyMisspelt)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads this type there")
def test_a_parameter_type_that_pydantic_refuses_is_named_with_its_task() -> None:
    with pytest.raises(RegistrationError, match=r"Takes .*is not one pydantic can validate: .*typing_extensions"):
        registered(KeysOnly)


def test_the_message_of_a_validator_of_the_author_is_not_changed() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    class OfEven(Base[Annotated[int, AfterValidator(even)]]):
        task_type = "of-even"

    with pytest.raises(InvalidParametersError, match=r": 0: must be even\. "):
        TaskRegistry().register(OfEven).validate_parameters([1])


def test_a_submission_that_breaks_a_validator_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def looks_up(value: int) -> int:
        return {1: 2}[value]

    class OfKnown(Base[Annotated[int, AfterValidator(looks_up)]]):
        task_type = "of-known"

    with pytest.raises(InvalidParametersError, match=r"a validator of the task type broke \(KeyError\)"):
        TaskRegistry().register(OfKnown).accept([5])
    assert "in looks_up" in caplog.text


def test_a_second_task_type_of_one_name_and_an_unknown_one_are_refused() -> None:
    registry = TaskRegistry()
    registry.register(NeedsArguments(2))
    with pytest.raises(RegistrationError, match="registered twice"):
        registry.register(NeedsArguments(3))
    with pytest.raises(UnknownTaskTypeError, match="Did you mean 'needs-arguments'"):
        registry.require("need-arguments")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (2, timedelta(seconds=2)),
        (timedelta(minutes=1), timedelta(minutes=1)),
        (-5, timedelta(0)),
        (float("nan"), None),  # the policy decides
        ("soon", None),
        (1e18, timedelta(days=3650)),
        (float("inf"), timedelta(days=3650)),
    ],
)
def test_a_delay_that_task_code_asks_for_can_always_be_kept(given: Any, kept: timedelta | None) -> None:
    assert RetryableError("later", delay=given).delay == kept


@pytest.mark.parametrize(("given", "is_told"), [("5s", True), (float("nan"), True), ("5", False), (5, False)])
def test_a_retry_delay_that_is_not_used_is_logged(given: Any, is_told: bool, caplog: pytest.LogCaptureFixture) -> None:
    RetryableError("later", delay=given)
    told = f"the delay {given!r} is neither a timedelta nor a number of seconds; the policy decides"
    assert caplog.messages == [told] * is_told


def test_a_function_without_the_decorator_is_refused_with_its_line() -> None:
    def plain(parameters: int) -> int:
        return parameters

    line = plain.__code__.co_firstlineno
    with pytest.raises(RegistrationError, match=rf"plain \(.*test_declaring\.py, line {line}\) is not a task.*@taskfr"):
        TaskRegistry().register(plain)  # type: ignore[arg-type]


def test_a_mixin_before_the_base_need_not_name_the_types() -> None:
    class Mixin(BackgroundTaskExecutable):  # type: ignore[type-arg]
        def describe(self) -> str:
            return self.task_type

    class Named(Mixin, BackgroundTaskExecutable[int, str]):
        task_type = "named"

        def execute(self, context: TaskContext[int]) -> str:
            return self.describe()

    registration = TaskRegistry().register(Named)
    assert registration.validate_parameters(5) == 5
    with pytest.raises(InvalidParametersError):
        registration.validate_parameters("five")
