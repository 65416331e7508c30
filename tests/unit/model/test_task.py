"""The record and its stored form."""

from __future__ import annotations

import dataclasses

import pytest

from taskframework.model.events import EVENT_BY_ENTRY_TYPE, TaskCompletedEvent, TaskSubmittedEvent, newest_event
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import SHAPE, Task, new_claim_id, new_task_id
from taskframework.model.task_fields import CancelRequest, HistoryEntry, ParentLink, StepOutcome, Subtasks
from taskframework.model.view import public_view
from tests.unit.model.scenes import NOW, an_error, in_status, queued, running

FULL = running(
    cancel=CancelRequest("alice", NOW, "why"),
    parent=ParentLink("parent", 1, 2),
    subtasks=Subtasks(3, {"a": 1}, 1, 1, 0),
    error=an_error(),
    errors=(an_error(), an_error("again")),
    priority=Priority.LOW,
    progress={"percent": 5},
    steps=(StepOutcome("a.b", {"n": 1}), StepOutcome("$set", None)),
)

# fmt: off
#: Programs beside ours read the documents: these are in each of them.
ALWAYS_THERE = {
    "_id", "schema_version", "task_type", "priority", "user_id", "correlation_id", "traceparent", "parameters",
    "parameters_hash", "idempotency_key", "status", "revision", "generation", "fencing_token", "attempts",
    "max_attempts", "crashes", "releases", "dispatch_epoch", "not_before", "next_dispatch_at", "dispatches", "lease",
    "last_claim_id", "cancel", "deadline", "parent", "subtasks", "spawn_at", "no_handler", "progress",
    "progress_revision", "result", "error", "errors", "sequence", "history", "published_sequence", "publish_at",
    "created_at", "started_at", "finished_at", "updated_at", "purge_at",
}
# fmt: on


@pytest.mark.parametrize("task", [FULL, *[in_status(status) for status in TaskStatus]])
def test_a_task_is_read_as_it_was_stored(task: Task) -> None:
    assert Task.from_document(task.to_document()) == task


def test_every_field_of_a_task_is_in_its_document_except_empty_rare_fields() -> None:
    document = FULL.to_document()
    fields = {field.name for field in dataclasses.fields(Task)}
    assert document.keys() == (fields - {"task_id", *SHAPE.rare} | {"_id", "steps"})
    assert type(document["status"]) is type(document["priority"]) is str


def test_a_document_has_what_people_look_for_and_a_new_field_is_rare() -> None:
    assert set(queued().to_document()) == ALWAYS_THERE, "a field that few tasks have belongs to RARE"


def test_the_document_holds_plain_values_only() -> None:
    def plain(value: object) -> bool:
        if isinstance(value, dict):
            return all(plain(item) for item in value.values())
        if isinstance(value, list):
            return all(plain(item) for item in value)
        return not dataclasses.is_dataclass(value)

    assert plain(FULL.to_document())


def test_fields_of_a_newer_release_are_passed_over() -> None:
    document = FULL.to_document() | {"novel": 1}
    for nested in (document["lease"], document["history"][0], document["errors"][0], document["steps"][0]):
        nested["novel"] = 1
    assert Task.from_document(document) == FULL


@pytest.mark.parametrize(
    ("name", "value"), [("task_type", None), ("user_id", 7), ("priority", {}), ("attempts", "1"), ("not_before", "now")]
)
def test_a_document_is_refused_if_a_field_that_every_task_has_is_nonsense(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"a wrong type in {name}"):
        Task.from_document(FULL.to_document() | {name: value})


def test_a_whole_number_may_be_stored_as_a_fraction() -> None:
    assert Task.from_document(FULL.to_document() | {"max_attempts": 5.0}).max_attempts == 5


def test_a_document_of_a_release_without_steps_has_none() -> None:
    document = FULL.to_document()
    del document["steps"]
    assert Task.from_document(document) == FULL.evolve(steps=())


def test_a_task_never_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.attempts = 7  # type: ignore[misc] # that is the test
    assert FULL.evolve(attempts=7).attempts == 7
    assert FULL.attempts == 3
    with pytest.raises(TypeError, match="attemps"):
        FULL.evolve(attemps=7)


def test_ids_sort_by_time_and_claim_ids_are_random() -> None:
    ids = [new_task_id() for _ in range(100)]
    assert ids == sorted(ids)
    assert len({new_claim_id() for _ in range(100)}) == 100


def test_the_event_of_a_task_is_its_newest() -> None:
    assert isinstance(newest_event(queued()), TaskSubmittedEvent)
    done = queued().evolve(history=(*queued().history, HistoryEntry(2, "completed", NOW, 1, None, None)))
    assert isinstance(newest_event(done), TaskCompletedEvent)
    assert all(event.__doc__ for event in EVENT_BY_ENTRY_TYPE.values())


def test_the_public_view_keeps_what_is_internal_to_itself() -> None:
    view = public_view(FULL)
    assert view.keys().isdisjoint({"lease", "fencing_token", "dispatch_epoch", "next_dispatch_at", "cancel", "steps"})
    assert "traceback" not in view["error"]
    assert view["attempt"] == 3
    assert view["parent_task_id"] == "parent"
    counts = {"done": 1, "succeeded": 1, "failed": 0, "cancelled": 0}
    assert view["subtasks"] == {"round": 1, "planned": 3, **counts}
    assert view["history"][0]["at"] == "2026-01-02T03:03:05.000Z"
    brief = public_view(FULL, whole=False)
    assert view.keys() - brief.keys() == {"parameters", "history"}
