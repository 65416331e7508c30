"""Task code with sub-tasks and signals: what it submits becomes a plan, and it goes on in the method for its stage."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from taskframework import (
    BackgroundTaskExecutable,
    InvalidParametersError,
    InvalidRequestError,
    Signal,
    SubtaskSummary,
    TaskContext,
    TaskOptions,
    UnknownTaskTypeError,
    ValueNotStorableError,
    at_least,
)
from taskframework.model.outcome import Failed, Outcome, Succeeded, Waits, describe
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import MAX_DEPTH, planned_tasks, subtask_id
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease, ParentLink, Subtasks
from taskframework.model.transitions import Fence
from taskframework.model.waiting import Wait
from taskframework.moves import TaskMoves
from taskframework.plans import delete_plan, read_plan
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker import plan as plans
from taskframework.worker.attempt import LeaseLostError, RunningAttempt
from taskframework.worker.executor import TaskExecutorService
from tests.support.families import CLOCK, Child, FamilyStore
from tests.unit.worker.family_tasks import COLOURS, ChooserInProcess

Execute = Callable[[TaskContext[Any]], Any]
HOUR = timedelta(hours=1)


class Running:
    """Runs attempts of one task after the other."""

    def __init__(self, store: FamilyStore) -> None:
        self.store = store
        self.executor = TaskExecutorService(cast(TaskMoves, None), CLOCK, store.services(), threads=2, processes=1)
        self.task = new_task(
            status=TaskStatus.RUNNING,
            fencing_token=1,
            attempts=1,
            next_dispatch_at=None,
            lease=Lease("worker-1", "claim", CLOCK.now() + HOUR),
        )
        self.progress: list[Any] = []

    async def __call__(self, code: type[BackgroundTaskExecutable[Any, Any]] | Execute, **fields: Any) -> Outcome:
        """An attempt of a task type, or of one that does this and goes on in no other method."""
        self.task = self.task.evolve(**fields)
        executable = code if isinstance(code, type) else task_type(code)
        registration = TaskRegistry().register(executable)
        self.attempt = RunningAttempt(
            self.task, Fence(self.task.task_id, self.task.fencing_token, "claim"), CLOCK.monotonic() + 3600
        )
        return await self.executor.execute(registration, self.attempt)

    def ids(self, count: int, round: int = 1) -> list[str]:
        return [subtask_id(self.task.task_id, self.task.generation, round, slot) for slot in range(count)]

    def waiting(self, outcome: Outcome) -> Task:
        """The task after this outcome was settled."""
        assert isinstance(outcome, Waits)
        wait = Wait(self.attempt.fence, "worker-1", outcome.subtasks, outcome.signal, outcome.timeout, outcome.result)
        waiting = wait.apply(self.task, CLOCK.now())
        assert waiting is not None
        return waiting


def task_type(code: Execute, chosen: TaskOptions | None = None) -> type[BackgroundTaskExecutable[Any, Any]]:
    class Type(BackgroundTaskExecutable[Any, Any]):
        task_type = "parent"
        options = chosen or TaskOptions()

        async def execute(self, context: TaskContext[Any]) -> Any:
            return await code(context)

    return Type


@pytest.fixture
async def run() -> AsyncIterator[Running]:
    running = Running(FamilyStore())
    yield running
    await running.executor.close()


def subtasks_of(outcome: Outcome) -> Subtasks:
    assert isinstance(outcome, Waits), outcome
    assert outcome.subtasks is not None
    return outcome.subtasks


def failure(outcome: Outcome) -> str:
    assert isinstance(outcome, Failed), outcome
    assert not outcome.retryable
    return f"{outcome.error.type.rpartition('.')[2]}: {outcome.error.message}"


def parameters_of(subtasks: Subtasks) -> list[Any]:
    return [item[0] for group in subtasks.plan for item in group["items"]]


in_each_colour = pytest.mark.parametrize("colour", COLOURS, ids=lambda colour: colour.task_type)


@in_each_colour
async def test_sub_tasks_that_are_submitted_are_the_plan_of_the_next_round(
    run: Running, colour: type[BackgroundTaskExecutable[Any, Any]]
) -> None:
    outcome = await run(colour, parameters=250)
    subtasks = subtasks_of(outcome)
    assert (subtasks.planned, subtasks.policy, subtasks.resumes, subtasks.plan_records) == (
        251,
        "all_must_succeed",
        True,
        0,
    )
    assert parameters_of(subtasks) == [-1, *range(250)]
    assert [(group["priority"], len(group["items"])) for group in subtasks.plan] == [("high", 1), ("normal", 250)]
    assert outcome == Waits(subtasks, None, None, None), "what execute returned is no result"
    assert run.store.records == {}, "before the attempt is settled nothing is stored"
    waiting = run.waiting(outcome)
    tasks = list(planned_tasks(waiting, subtasks.plan, CLOCK.now, timedelta(0)))
    assert [task.task_id for task in tasks] == run.ids(251)
    assert {(task.task_type, task.max_attempts, task.user_id) for task in tasks} == {("child", 4, run.task.user_id)}


async def test_task_code_has_the_ids_at_once_and_a_later_attempt_the_same(run: Running) -> None:
    seen: list[list[str]] = []

    async def code(context: TaskContext[Any]) -> None:
        seen.append([await context.submit_subtask(Child, 1), *await context.submit_subtasks(Child(), range(150))])
        raise ConnectionError

    for token in (1, 2):
        assert isinstance(await run(code, fencing_token=token), Failed)
    assert seen == [run.ids(151)] * 2
    await run(code, subtasks=Subtasks(2, None, 2, 2), stage="execute")
    assert seen[2] == run.ids(151, round=2)


async def test_options_are_those_of_a_submission(run: Running) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + HOUR
    options: dict[str, Any] = {
        "max_attempts": 9,
        "not_before": at,
        "deadline": at + HOUR,
        "correlation_id": "c",
        "priority": "low",
    }

    async def code(context: TaskContext[Any]) -> None:
        await context.submit_subtask("child", 1, **options)
        await context.submit_subtask("child", 2)

    subtasks = subtasks_of(outcome := await run(code))
    first, second = planned_tasks(run.waiting(outcome), subtasks.plan, CLOCK.now, timedelta(0))
    assert {name: getattr(first, name) for name in options} == options
    assert first.next_dispatch_at == at
    assert second.correlation_id == run.task.correlation_id
    assert (second.deadline, second.priority) == (None, "normal")
    assert second.not_before <= CLOCK.now()


WRONG: list[tuple[Execute, type[Exception], str]] = [
    (lambda context: context.submit_subtask("child", "x"), InvalidParametersError, r"'child': Input should"),
    (
        lambda context: context.submit_subtasks("child", [*range(120), "x"]),
        InvalidParametersError,
        "'child': 120: Input",
    ),
    (
        lambda context: context.submit_subtasks("child", [0, 2**70]),
        ValueNotStorableError,
        "parameters 1 cannot be stored",
    ),
    (lambda context: context.submit_subtasks("chidl", []), UnknownTaskTypeError, "Did you mean 'child'"),
    (lambda context: context.submit_subtask("child", 1, idempotency_key="k"), TypeError, "no option idempotency_key"),
    (lambda context: context.submit_subtasks("child", "text"), TypeError, "not one str; for a single task"),
    (lambda context: context.submit_subtask("child", 1, max_attempts=0), InvalidRequestError, "max_attempts: "),
    (
        lambda context: context.submit_subtask("child", 1, deadline=CLOCK.now()),
        InvalidRequestError,
        "deadline: it is in the past",
    ),
    (lambda context: context.submit_subtask("child", 1, policy="some"), InvalidRequestError, "policy: 'some' is none"),
    (lambda context: context.submit_subtask(cast(Any, 7), 1), InvalidRequestError, "task_type: 7 names no task"),
]


@pytest.mark.parametrize(("code", "kind", "said"), WRONG, ids=[said for _, _, said in WRONG])
async def test_a_wrong_sub_task_raises_an_error_where_it_is_submitted(
    run: Running, code: Execute, kind: type[Exception], said: str
) -> None:
    async def careful(context: TaskContext[Any]) -> str:
        with pytest.raises(kind, match=said):
            await code(context)
        raise RuntimeError("was told")

    assert failure(await run(careful)) == "RuntimeError: was told"


async def test_sub_tasks_before_a_wrong_sub_task_stay_submitted(run: Running) -> None:
    async def code(context: TaskContext[Any]) -> None:
        with contextlib.suppress(InvalidParametersError):
            await context.submit_subtasks("child", [*range(100), 100, "x", 102])

    assert parameters_of(subtasks_of(await run(code))) == list(range(100)), "they are taken by the hundred"


async def test_a_round_has_its_most_and_a_tree_its_depth(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_SUBTASKS", 3)

    async def code(context: TaskContext[Any]) -> None:
        await context.submit_subtasks("child", range(3))
        await context.submit_subtask("child", 3)

    assert failure(await run(code)).startswith("InvalidRequestError: sub-tasks: a round has 3 of them at most.")

    async def one(context: TaskContext[Any]) -> None:
        await context.submit_subtask("child", 3)

    assert subtasks_of(await run(one, parent=ParentLink("p", 0, 0, 1, MAX_DEPTH - 1))).planned == 1
    deep = await run(one, parent=ParentLink("p", 0, 0, 1, MAX_DEPTH))
    assert failure(deep).startswith("InvalidRequestError: sub-tasks: there are 16 tasks above this one")


@pytest.mark.parametrize(
    ("of_type", "of_calls", "policy"),
    [
        ("allow_failures", [None, None], "allow_failures"),
        ("allow_failures", [at_least(2), None], "at_least(2)"),
        ("all_must_succeed", [None, "first_success"], "first_success"),
        (at_least(3), [None, None], None),
        ("all_must_succeed", [at_least(4), None], None),
    ],
)
async def test_a_call_chooses_the_policy_for_its_round(
    run: Running, of_type: str, of_calls: list[str | None], policy: str | None
) -> None:
    async def code(context: TaskContext[Any]) -> None:
        for number, chosen in enumerate(of_calls):
            await context.submit_subtask("child", number, policy=chosen)

    outcome = await run(task_type(code, TaskOptions(subtasks=of_type)))
    if policy is not None:
        assert subtasks_of(outcome).policy == policy
    else:
        assert "cannot be met with 2 sub-tasks. Submit more of them" in failure(outcome)


async def test_a_round_has_one_policy(run: Running) -> None:
    async def code(context: TaskContext[Any]) -> None:
        await context.submit_subtask("child", 1, policy="first_success")
        await context.submit_subtask("child", 1, policy="first_success")
        await context.submit_subtask("child", 2, policy="allow_failures")

    assert "an earlier call gave first_success for this round, and this one gives allow_failures" in failure(
        await run(code)
    )


async def test_a_round_of_nothing_is_a_round(run: Running) -> None:
    """A folder without files: whoever goes on with what came of the files has to hear that there were none."""

    async def code(context: TaskContext[Any]) -> None:
        assert await context.submit_subtasks("child", []) == []

    subtasks = subtasks_of(await run(code))
    assert (subtasks.planned, subtasks.plan) == (0, [])
    assert "cannot be met with 0" in failure(await run(task_type(code, TaskOptions(subtasks="first_success"))))


def large(count: int) -> Execute:
    async def code(context: TaskContext[Any]) -> None:
        await context.submit_subtasks("text", (f"{number:0100000}" for number in range(count)))

    return code


class Text(BackgroundTaskExecutable[str, None]):
    task_type = "text"

    async def execute(self, context: TaskContext[str]) -> None: ...


@pytest.fixture
async def run_large() -> AsyncIterator[Running]:
    store = FamilyStore()
    running = Running(store)
    running.executor._families = store.services(Text)
    yield running
    await running.executor.close()


async def all_of(store: FamilyStore, waiting: Task) -> list[Task]:
    return [
        task
        async for first_slot, groups in read_plan(cast(Any, store), waiting)
        for task in planned_tasks(waiting, groups, CLOCK.now, timedelta(0), first_slot=first_slot)
    ]


@pytest.mark.parametrize(("count", "parts"), [(0, 0), (1, 1), (5, 1), (6, 2), (16, 4)])
async def test_a_plan_that_is_too_large_for_its_task_is_in_records(run_large: Running, count: int, parts: int) -> None:
    run, store = run_large, run_large.store
    outcome = await run(large(count))
    subtasks = subtasks_of(outcome)
    assert (subtasks.planned, subtasks.plan_records, subtasks.plan is None) == (count, parts, parts > 0)
    assert len(store.records) == parts
    assert all(len(record.data_as_json()) < 600_000 for record in store.records.values())
    waiting = run.waiting(outcome)
    tasks = await all_of(store, waiting)
    assert [task.task_id for task in tasks] == run.ids(count)
    assert [task.parameters for task in tasks] == [f"{number:0100000}" for number in range(count)]
    await delete_plan(cast(Any, store), waiting)
    assert store.records == {}


async def test_the_plan_of_an_attempt_that_died_is_not_that_of_the_next(run_large: Running) -> None:
    """The first attempt was presumed dead, and writes the rest of its plan when the second one has settled."""
    run, store = run_large, run_large.store
    go_on = asyncio.Event()

    async def slow(context: TaskContext[Any]) -> None:
        await context.submit_subtasks("text", ["x" * 300_000] * 2)
        await go_on.wait()
        await context.submit_subtasks("text", ["x" * 300_000] * 4)

    first = asyncio.create_task(run(slow))
    await eventually(lambda: len(store.records) == 1)
    outcome = await run(large(12), fencing_token=2)
    waiting = run.waiting(outcome)
    go_on.set()
    await first
    assert [task.parameters for task in await all_of(store, waiting)] == [f"{number:0100000}" for number in range(12)]


async def test_a_store_that_is_away_is_waited_for(run_large: Running) -> None:
    run_large.store.failures = 2
    assert subtasks_of(await run_large(large(6))).plan_records == 2
    assert run_large.store.failures == 0


async def test_a_store_that_is_away_is_waited_for_until_the_lease_has_ended(run_large: Running) -> None:
    went_on: list[str] = []

    async def code(context: TaskContext[Any]) -> None:
        run_large.store.failures = 1_000
        run_large.attempt.lease_ends = CLOCK.monotonic() + 0.2
        with contextlib.suppress(Exception):
            await large(6)(context)
        went_on.append("although the lease is lost")

    with pytest.raises(LeaseLostError):
        await run_large(code)
    assert went_on == []


async def test_code_that_was_left_behind_submits_nothing(run: Running) -> None:
    go_on = threading.Event()
    told: list[str] = []

    class LeavesAThreadBehind(BackgroundTaskExecutable[Any, None]):
        task_type = "leaves-a-thread-behind"

        def execute(self, context: TaskContext[Any]) -> None:
            context.submit_subtask_blocking("child", 1)
            threading.Thread(target=self._later, args=(context,)).start()

        def _later(self, context: TaskContext[Any]) -> None:
            go_on.wait(20)
            try:
                context.submit_subtask_blocking("child", 2)
            except BaseException as error:
                told.append(type(error).__name__)

    subtasks = subtasks_of(await run(LeavesAThreadBehind))
    go_on.set()
    await eventually(lambda: told == ["CancelledError"])
    assert parameters_of(subtasks) == [1]


async def test_the_event_loop_is_not_made_to_wait(run: Running) -> None:
    async def code(context: TaskContext[Any]) -> None:
        for call, instead in (
            (lambda: context.submit_subtask_blocking("child", 1), "await context.submit_subtask"),
            (lambda: context.submit_subtasks_blocking("child", [1]), "await context.submit_subtasks"),
        ):
            with pytest.raises(RuntimeError, match=instead):
                call()

    assert await run(code) == Succeeded(None)


async def test_task_code_in_a_process_gets_the_error_of_a_wrong_sub_task(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []

    monkeypatch.setattr(
        "taskframework.worker.reports.AttemptReports.report_progress_soon", lambda _, value: reported.append(value)
    )
    outcome = await run(ChooserInProcess)
    assert outcome == Waits(subtasks_of(outcome), "go on", timedelta(seconds=60), None)
    assert parameters_of(subtasks_of(outcome)) == [0, 3]
    said = {name: text for each in reported for name, text in each.items()}
    assert "child': 1: Input should be a valid integer" in said["InvalidParametersError"]
    assert "parameters 1 cannot be stored: object is not a JSON type" in said["ValueNotStorableError"]
    run.task = run.task.evolve(stage="signal", woken_by=Signal("key", "go on", CLOCK.now()))
    assert await run(ChooserInProcess) == Succeeded(None)


def ended(slot: int, round: int = 2) -> Task:
    """A sub-task that is over; each third one failed."""
    link = ParentLink("parent", 0, slot, round)
    if slot % 3 == 2:
        return new_task(parent=link, status=TaskStatus.FAILED, error=describe(ValueError("no"), retryable=False))
    return new_task(parent=link, status=TaskStatus.COMPLETED, result=slot)


@in_each_colour
async def test_a_parent_goes_on_with_what_became_of_its_sub_tasks(
    run: Running, colour: type[BackgroundTaskExecutable[Any, Any]]
) -> None:
    run.store.subtasks = [ended(slot) for slot in range(250)]
    counts = Subtasks(250, [{"items": []}], 250, 167, 83, 0, round=2)
    outcome = await run(colour, parameters=7, stage="resume", subtasks=counts)
    assert isinstance(outcome, Succeeded), outcome
    assert outcome.result["counts"] == [250, 167, 83, 0]
    told = outcome.result["outcomes"]
    assert [entry[0] for entry in told] == list(range(250))
    assert told[1] == [1, "COMPLETED", 1, None]
    assert told[2][:3] == [2, "FAILED", None]
    assert (told[2][3]["type"], told[2][3]["message"]) == ("ValueError", "no")
    assert run.store.pages == [-1, 99, 199, 249], "never all at once"


@in_each_colour
async def test_a_task_goes_on_with_the_signal(run: Running, colour: type[BackgroundTaskExecutable[Any, Any]]) -> None:
    signal = Signal("key", "approved", CLOCK.now(), {"by": "ann"})
    outcome = await run(colour, parameters=7, stage="signal", woken_by=signal)
    assert outcome == Succeeded(["approved", {"by": "ann"}, False])


async def test_each_stage_may_plan_the_next_round_or_wait_again(run: Running) -> None:
    class Patient(BackgroundTaskExecutable[Any, str]):
        task_type = "patient"

        async def execute(self, context: TaskContext[Any]) -> Any: ...

        async def on_subtasks_finished(self, context: TaskContext[Any], summary: SubtaskSummary) -> Any:
            return context.wait_for(signal="approved")

        async def on_signal(self, context: TaskContext[Any], signal: Signal) -> Any:
            await context.submit_subtask("child", 2)
            return context.wait_for(signal="approved again", timeout=HOUR)

    resumed = await run(Patient, stage="resume", subtasks=Subtasks(1, None, 1, 1))
    assert resumed == Waits(None, "approved", None, None)
    signalled = await run(Patient, stage="signal", woken_by=Signal("key", "approved", CLOCK.now()))
    assert signalled == Waits(subtasks_of(signalled), "approved again", HOUR, None)
    [task] = planned_tasks(run.waiting(signalled), subtasks_of(signalled).plan, CLOCK.now, timedelta(0))
    assert [task.task_id] == run.ids(1, round=2)


async def test_a_task_without_the_method_on_signal_cannot_wait_for_a_signal(run: Running) -> None:
    async def code(context: TaskContext[Any]) -> Any:
        return context.wait_for(signal="approved")

    assert failure(await run(code)) == (
        "InvalidRequestError: signal: the task type 'parent' cannot continue when it comes. "
        "Define on_signal(self, context, signal); a task that is one function has to become a class."
    )


@pytest.mark.parametrize("stage", ["resume", "signal"])
async def test_a_task_whose_type_lost_the_method_fails(run: Running, stage: str) -> None:
    async def code(context: TaskContext[Any]) -> None:
        raise AssertionError("execute again")

    signal = Signal("key", "approved", CLOCK.now())
    outcome = await run(code, stage=stage, subtasks=Subtasks(1, None, 1, 1), woken_by=signal)
    assert "MissingMethodError: Task type" in failure(outcome)


async def test_a_parent_without_on_subtasks_finished_keeps_the_result_of_execute(run: Running) -> None:
    class Sends(BackgroundTaskExecutable[int, int]):
        task_type = "sends"

        async def execute(self, context: TaskContext[int]) -> Any:
            await context.submit_subtask("child", 1)
            return context.parameters if context.parameters else None

    outcome = await run(Sends, parameters=7)
    assert outcome == Waits(subtasks_of(outcome), None, None, 7)
    assert not subtasks_of(outcome).resumes
    assert "BadResultError: The code returned None, which is not of the declared type" in failure(
        await run(Sends, parameters=0)
    )
