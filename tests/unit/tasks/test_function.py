"""`@task`: a function becomes a task type; what is wrong about it is said with its line."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from taskframework import InvalidParametersError, RegistrationError, TaskContext, TaskOptions, task
from taskframework.tasks.declarations import TaskDeclaration
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing import run


class Text(BaseModel):
    text: str


@task("count-words", max_attempts=3, priority="high")
async def count_words(parameters: Text, context: TaskContext[Text]) -> int:
    """Count them."""
    return len(parameters.text.split()) + context.attempt


@task("double", run_in="process")
def double(parameters: int) -> int:
    return parameters * 2


def test_a_task_function_is_registered_with_its_name_types_and_options() -> None:
    registration = TaskRegistry().register(count_words)
    assert registration.task_type == "count-words"
    assert registration.executable.options == TaskOptions(max_attempts=3, priority="high")
    assert registration.stages == {"execute": True}
    assert registration.validate_parameters({"text": "one"}) == Text(text="one")
    assert registration.result.validate_python("3") == 3
    assert inspect.getdoc(count_words) == "Count them."


@task("clean-up")
async def clean_up() -> str:
    return "clean"


@task("triple")
def triple(context: TaskContext[int]) -> int:
    return context.parameters * 3


async def test_a_task_function_may_have_no_parameters_and_no_context() -> None:
    assert (await run(clean_up)).result == "clean"
    assert (await run(triple, 2)).result == 6
    registration = TaskRegistry().register(clean_up)
    assert registration.validate_parameters(None) is registration.validate_parameters({}) is None
    with pytest.raises(InvalidParametersError):
        registration.validate_parameters({"path": "/tmp"})


@pytest.mark.parametrize(
    ("value", "is_accepted"), [(None, True), ({}, True), ({"path": "/tmp"}, False), (0, False), ("", False)]
)
def test_a_declaration_without_parameters_accepts_only_null_or_an_empty_object(
    value: object, is_accepted: bool
) -> None:
    declaration = TaskDeclaration.of(TaskRegistry().register(clean_up))
    if is_accepted:
        assert declaration.accept(value) == (None, b"null"), "so a key with one and the other is no conflict"
    else:
        with pytest.raises(InvalidParametersError, match=r"It takes no parameters: null or \{\}"):
            declaration.accept(value)


def test_a_module_registers_its_functions() -> None:
    registered = TaskRegistry().register_module(sys.modules[__name__])
    assert [each.task_type for each in registered] == ["count-words", "double", "clean-up", "triple"]


def test_a_task_function_for_a_process_can_be_pickled() -> None:
    [instance] = [TaskRegistry().register(double).executable]
    assert type(pickle.loads(pickle.dumps(instance))) is double


@pytest.mark.parametrize("call", [lambda: double(2), lambda: double(parameters=2)])  # type: ignore[call-arg]
def test_calling_a_task_function_directly_is_an_error_with_the_next_step(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"double is a task type.* framework\.submit\(double, .*testing\.run\(double"):
        call()


def test_types_defined_beside_a_task_function_are_found() -> None:
    class Here(BaseModel):
        n: int

    @task("here")
    def here(parameters: Here) -> None: ...

    assert TaskRegistry().register(here).validate_parameters({"n": 1}) == Here(n=1)


def no_result(parameters: int):  # type: ignore[no-untyped-def]
    return parameters


def no_parameters(parameters, context: TaskContext[int]) -> int:  # type: ignore[no-untyped-def]
    return 1


def too_many(parameters: int, context: TaskContext[int], more: int) -> int:
    return more


def context_first(context: TaskContext[int], parameters: int) -> int:
    return parameters


def no_context(order_id: str, cents: int) -> str:
    return order_id * cents


def context_of_anything(context: TaskContext) -> int:  # type: ignore[type-arg]
    return context.attempt


def unknown(parameters: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


def by_name(*, parameters: int) -> int:
    return parameters


def many(*parameters: int) -> int:
    return len(parameters)


def with_default(parameters: int = 3) -> int:
    return parameters


async def yields(parameters: int) -> Any:
    yield parameters


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (no_result, "does not say the type of its result"),
        (no_parameters, "does not say the type of parameters"),
        (too_many, "takes 3 arguments"),
        (context_first, "has the context in the wrong place"),
        (no_context, "takes 2 arguments, and neither is the context"),
        (context_of_anything, "does not say the type of its parameters"),
        (unknown, "uses an unknown type: name 'Nowhere' is not defined"),
        (by_name, "has an argument parameters that cannot be given by place"),
        (many, "has an argument parameters that cannot be given by place"),
        (with_default, "has an argument parameters that has a default, which is never used"),
        (yields, "is a generator"),
    ],
)
def test_a_wrong_task_function_is_refused_with_its_line(wrong: Any, said: str) -> None:
    line = wrong.__code__.co_firstlineno
    with pytest.raises(RegistrationError, match=rf"\.{wrong.__name__} \(.*test_function\.py, line {line}\) {said}"):
        task("wrong")(wrong)


def test_what_is_no_function_of_its_own_is_refused() -> None:
    class Callable:
        def __call__(self, parameters: int) -> int:
            return parameters

    others: list[Any] = [functools.partial(pow, 2), Callable(), classmethod(repr)]
    for other in others:
        with pytest.raises(RegistrationError, match=rf"@task is for functions, and this is a {type(other).__name__}\."):
            task("wrong")(other)


def test_a_task_function_refused_at_its_registration_is_named_with_its_line_too() -> None:
    @task("Wrong name")
    def named(parameters: int) -> int:
        return parameters

    @task("in-process", run_in="process")
    async def in_process(parameters: int) -> int:
        return parameters

    wrongs: list[Any] = [named, in_process]
    for wrong in wrongs:
        line = wrong.__wrapped__.__code__.co_firstlineno
        with pytest.raises(RegistrationError, match=rf"test_function\.py, line {line}\)"):
            TaskRegistry().register(wrong)


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"@task\('wrong'\): The option max_attempts is 0"):
        task("wrong", max_attempts=0)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [({"max_atempts": 3}, "Did you mean max_attempts?"), ({"options": TaskOptions()}, "Give them by name")],
)
def test_an_option_that_does_not_exist_is_named(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(RegistrationError, match=rf"@task\('wrong'\) has no option {min(wrong)}\.") as refused:
        task("wrong", **wrong)
    assert hint in str(refused.value)


def test_a_task_function_without_a_name_is_refused() -> None:
    line = no_result.__code__.co_firstlineno
    for nameless in ({}, {"task_type": "wrong"}):  # as in a class
        with pytest.raises(RegistrationError, match=r"@task does not give the name"):
            task(**nameless)  # type: ignore[call-arg, arg-type]
    with pytest.raises(RegistrationError, match=rf"@task \(.*test_function\.py, line {line}\) does not give the name"):
        task(no_result)  # type: ignore[arg-type]
