"""Steps that are done once, on the event loop and in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from taskframework.errors import StoreError, ValueNotStorableError
from taskframework.model.outcome import classify
from taskframework.model.task_fields import StepOutcome
from taskframework.model.values import MAX_STEP_BYTES, MAX_STEPS
from taskframework.tasks import steps as module
from taskframework.tasks.steps import Steps
from taskframework.testing.eventually import eventually
from tests.support.notebook import Notebook


class Calls:
    """A function of a step that counts its calls and gives what it is told to."""

    def __init__(self, *outcomes: Any) -> None:
        self.count = 0
        self._outcomes = outcomes or (1,)

    def __call__(self) -> Any:
        self.count += 1
        outcome = self._outcomes[min(self.count, len(self._outcomes)) - 1]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def on_loop(steps: Steps, step: str, function: Callable[[], Any]) -> Any:
    return await steps.once(step, function)


async def on_loop_as_coroutine(steps: Steps, step: str, function: Callable[[], Any]) -> Any:
    async def later() -> Any:
        await asyncio.sleep(0)
        return function()

    return await steps.once(step, later)


async def in_thread(steps: Steps, step: str, function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(steps.once_blocking, step, function)


async def on_another_loop(steps: Steps, step: str, function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(asyncio.run, steps.once(step, function))


Once = Callable[[Steps, str, Callable[[], Any]], Any]
everywhere = pytest.mark.parametrize("once", [on_loop, on_loop_as_coroutine, in_thread, on_another_loop])


@everywhere
async def test_a_step_is_done_once_and_its_outcome_kept(once: Once) -> None:
    notebook, calls = Notebook(), Calls({"n": 1}, {"n": 2})
    steps = Steps((), notebook)
    assert [await once(steps, "a", calls), await once(steps, "a", calls)] == [{"n": 1}, {"n": 1}]
    assert notebook.kept == [StepOutcome("a", {"n": 1})]
    assert calls.count == 1
    assert await once(Steps(notebook.kept, Notebook()), "a", calls) == {"n": 1}, "a later attempt"
    assert calls.count == 1


class Receipt(BaseModel):
    number: int = Field(alias="no")
    paid: tuple[float, ...] = ()


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (None, None),
        (False, False),
        ((1, 2), [1, 2]),
        ({"z": 1, "a": 1.0}, {"z": 1, "a": 1.0}),
        (Receipt(no=3, paid=(1.5,)), {"no": 3, "paid": [1.5]}),
        ("$$ROOT", "$$ROOT"),
    ],
)
async def test_the_first_attempt_gets_the_same_outcome_of_a_step_as_a_later_one(given: Any, plain: Any) -> None:
    notebook = Notebook()
    first = await Steps((), notebook).once("a", lambda: given)
    assert repr(first) == repr(plain), "types and order included"
    assert repr(await Steps(notebook.kept, Notebook()).once("a", Calls())) == repr(plain)


async def test_a_recorded_outcome_of_a_step_cannot_be_changed() -> None:
    notebook, mine = Notebook(), {"list": [1]}
    steps = Steps((), notebook)
    first = await steps.once("a", lambda: mine)
    first["list"].append(2)
    mine["list"].append(3)
    assert await steps.once("a", Calls()) == {"list": [1]}
    assert notebook.kept == [StepOutcome("a", {"list": [1]})]


@everywhere
async def test_a_step_that_fails_is_not_recorded(once: Once) -> None:
    notebook, calls = Notebook(), Calls(OSError("no answer"), "done")
    steps = Steps((), notebook)
    with pytest.raises(OSError, match="no answer"):
        await once(steps, "a", calls)
    assert notebook.kept == []
    assert await once(steps, "a", calls) == "done"


@pytest.mark.parametrize("once", [on_loop, in_thread])
async def test_a_call_in_place_of_a_function_is_refused(once: Once) -> None:
    async def charge() -> str:
        raise AssertionError("it is not called")

    wrong: list[Any] = [charge(), "done"]
    for given in wrong:
        with pytest.raises(TypeError, match=r"write once\('a', function\) without calling the function"):
            await once(Steps((), Notebook()), "a", given)


@pytest.mark.parametrize("step", ["$set", "a.b", "__proto__", "_id", "$$ROOT", "0", " ", "шаг 1", "x" * 200])
async def test_a_name_may_be_any_printable_text(step: str) -> None:
    notebook = Notebook()
    steps = Steps((), notebook)
    assert await steps.once(step, Calls("done")) == "done"
    assert await steps.once(step, Calls("of an item"), item=12) == "of an item"
    assert notebook.kept == [StepOutcome(step, "done"), StepOutcome(f"12/{step}", "of an item")]


@pytest.mark.parametrize("step", ["", "x" * 201, "a\0b", "\ud800", "a\nb", "\u202e", 7, None, b"a"])
@pytest.mark.parametrize("item", [None, 0])
async def test_a_wrong_name_of_a_step_is_refused_before_the_step_is_done(step: Any, item: int | None) -> None:
    calls = Calls()
    with pytest.raises(ValueNotStorableError, match="name of a step") as refused:
        await Steps((), Notebook()).once(step, calls, item=item)
    assert calls.count == 0
    assert not classify(refused.value).retryable


class Anything(BaseModel):
    value: Any


@pytest.mark.parametrize(
    "outcome",
    [
        float("nan"),
        {"deep": [float("inf")]},
        Anything(value=float("nan")),
        Anything(value=object()),
        object(),
        {1: 2},
        2**64,
        "\ud800",
        {"a\0": 1},
        "x" * MAX_STEP_BYTES,
    ],
    ids=lambda value: f"{value!r:.20}",
)
@everywhere
async def test_an_outcome_of_a_step_that_cannot_be_stored_is_a_final_error(once: Once, outcome: Any) -> None:
    notebook = Notebook()
    with pytest.raises(ValueNotStorableError, match="outcome of step 'a'") as refused:
        await once(Steps((), notebook), "a", lambda: outcome)
    assert notebook.kept == []
    assert not classify(refused.value).retryable
    assert len(str(refused.value)) < 1000


async def test_all_steps_of_a_task_have_a_common_size_limit() -> None:
    notebook = Notebook()
    steps = Steps((), notebook)
    large = "x" * (MAX_STEP_BYTES - 100)
    for n in range(4):
        await steps.once(f"large {n}", lambda: large)
    later = Steps(notebook.kept, Notebook())
    for attempt in (steps, later):
        with pytest.raises(ValueNotStorableError, match="1,048,576 bytes"):
            await attempt.once("one more", lambda: large)
        assert await attempt.once("a small one", Calls()) == 1


async def test_a_step_that_was_not_recorded_takes_no_room() -> None:
    notebook, large = Notebook(is_slow=True), "x" * (MAX_STEP_BYTES - 100)
    steps = Steps((), notebook)
    for _ in range(6):
        run = asyncio.create_task(steps.once("a", lambda: large))
        await eventually(lambda: notebook.recording == ["a"])
        notebook.refuse(StoreError("full"))
        with pytest.raises(StoreError):
            await run
    notebook.is_slow = False
    assert await steps.once("a", lambda: large) == large


async def test_the_number_of_steps_is_bounded_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_STEPS == 1000
    monkeypatch.setattr(module, "MAX_STEPS", 3)
    steps, calls = Steps([StepOutcome(str(n), n) for n in range(3)], Notebook()), Calls()
    with pytest.raises(ValueNotStorableError, match="the limit"):
        await steps.once("one more", calls)
    assert calls.count == 0
    assert await steps.once("2", calls) == 2, "what is there can be read"


@everywhere
async def test_two_calls_of_one_step_at_a_time_are_one(once: Once) -> None:
    notebook, calls = Notebook(is_slow=True), Calls("first", "second")
    steps = Steps((), notebook)
    both = [asyncio.create_task(once(steps, "a", calls)) for _ in range(2)]
    await eventually(lambda: notebook.recording == ["a"])
    notebook.keep()
    assert await asyncio.gather(*both) == ["first", "first"]
    assert calls.count == 1


async def test_a_thread_and_a_coroutine_share_a_step() -> None:
    entered, go_on = threading.Event(), threading.Event()
    steps = Steps((), Notebook())

    def slow() -> str:
        entered.set()
        go_on.wait(20)
        return "from the thread"

    thread = asyncio.create_task(in_thread(steps, "a", slow))
    await asyncio.to_thread(entered.wait, 20)
    other = asyncio.create_task(steps.once("a", Calls("from the loop")))
    await asyncio.sleep(0)
    go_on.set()
    assert [await thread, await other] == ["from the thread", "from the thread"]


async def test_the_second_of_two_calls_of_a_step_tries_again_if_the_first_fails() -> None:
    go_on = asyncio.Event()

    async def fails() -> None:
        await go_on.wait()
        raise OSError("no answer")

    steps = Steps((), Notebook())
    first = asyncio.create_task(steps.once("a", fails))
    await asyncio.sleep(0)
    second = asyncio.create_task(steps.once("a", Calls("second")))
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(OSError, match="no answer"):
        await first
    assert await second == "second"


async def test_a_cancelled_function_is_not_recorded_and_may_be_run_again() -> None:
    steps = Steps((), Notebook())
    run = asyncio.create_task(steps.once("a", asyncio.Event().wait))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await steps.once("a", Calls("again")) == "again"


async def test_a_cancel_does_not_tear_a_record() -> None:
    notebook, calls = Notebook(is_slow=True), Calls("first", "second")
    steps = Steps((), notebook)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await steps.once("a", calls)
    asyncio.get_running_loop().call_soon(notebook.keep)
    assert await steps.once("a", calls) == "first"
    assert calls.count == 1


@everywhere
async def test_no_step_continues_with_a_lost_lease(once: Once) -> None:
    notebook, calls = Notebook(is_slow=True), Calls()
    steps = Steps([StepOutcome("earlier", 0)], notebook)
    both = [asyncio.create_task(once(steps, "a", calls)) for _ in range(2)]
    await eventually(lambda: notebook.recording == ["a"])
    notebook.lose()
    for run in both:
        with pytest.raises(asyncio.CancelledError):
            await run
    with pytest.raises(asyncio.CancelledError):
        await once(steps, "b", calls)
    assert calls.count == 1, "no step begins any more"


async def test_a_store_that_refuses_is_an_error_of_the_step() -> None:
    notebook = Notebook(is_slow=True)
    steps = Steps((), notebook)
    run = asyncio.create_task(in_thread(steps, "a", Calls()))
    await eventually(lambda: notebook.recording == ["a"])
    notebook.refuse(StoreError("full"))
    with pytest.raises(StoreError, match="full"):
        await run


async def test_the_outcome_of_a_step_that_the_task_has_recorded_counts() -> None:
    """A record whose reply was lost as an error, and the code did the step again: the first outcome stays."""
    notebook = Notebook(is_slow=True)
    run = asyncio.create_task(Steps((), notebook).once("a", Calls("second")))
    await eventually(lambda: notebook.recording == ["a"])
    [(_, recorded)] = notebook._taken()
    recorded.set_result(StepOutcome("a", "first"))
    assert await run == "first"


async def test_a_step_inside_itself_is_an_error_and_not_a_hang() -> None:
    steps = Steps((), Notebook())
    with pytest.raises(RuntimeError, match="waits for the same step"):
        await steps.once("a", lambda: steps.once("a", Calls()))
    with pytest.raises(RuntimeError, match="waits for the same step"):
        await in_thread(steps, "b", lambda: steps.once_blocking("b", Calls()))
    assert await steps.once("c", lambda: steps.once("d", Calls("inner"))) == "inner"


async def test_blocking_on_the_event_loop_is_refused() -> None:
    calls = Calls()
    with pytest.raises(RuntimeError, match=r"await context\.once"):
        Steps((), Notebook()).once_blocking("a", calls)
    assert calls.count == 0


async def test_a_step_in_a_thread_may_be_a_coroutine_function() -> None:
    async def function() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await in_thread(Steps((), Notebook()), "a", function) == "done"
