"""External events: their types, from the model, and their fields, from the views."""

from __future__ import annotations

from docs.generator.http import document
from docs.generator.tables import fields, table
from taskframework.events.external import PREFIX
from taskframework.model.events import EVENT_BY_ENTRY_TYPE, TaskProgressEvent

_INTRODUCTION = """\
# Events

What other programs receive about a task, each a [CloudEvent](https://cloudevents.io) 1.0 in JSON. How to get them, from
Python, over HTTP or with any AMQP client, is in [receiving events](../events.md).

This page is made from the model, by `make docs`.

## Types

All but `task.progress` are in the `history` of the task, too, without `task.`, and count its `sequence`.

"""
_ENVELOPE = "\n## Attributes\n\n"
#: Of types that share a class, whose docstring is about all of them.
_MEANINGS = {
    "completed_with_errors": "Finished with a result; some sub-tasks did not succeed, which the policy allows.",
    "failed": "Finished as FAILED: another attempt would not help, or the deadline passed.",
    "dead_letter": "Finished as DEAD_LETTER: no attempt is left, or no worker began it in time or can run it.",
}
_DATA = """
## Data

The public view of the task when the event was published, so that the newest event is enough. Parameters and history
are not in it: `GET /api/v1/tasks/{task_id}` has them.

"""


def markdown() -> str:
    """The types, the attributes of an event, and its data."""
    schemas = document()["components"]["schemas"]
    types = {**EVENT_BY_ENTRY_TYPE, "progress": TaskProgressEvent}
    return "".join(
        (
            _INTRODUCTION,
            table(
                ("Type", "What happened"),
                ((f"`{PREFIX}{name}`", _MEANINGS.get(name, kind.__doc__ or "")) for name, kind in types.items()),
            ),
            _ENVELOPE,
            fields(schemas["CloudEventView"], _link),
            _DATA,
            fields(schemas["TaskSummaryView"], _link),
        )
    )


def _link(name: str) -> str:
    """A model of the data is on this page, the others are with the HTTP interface."""
    return "[data](#data)" if name == "TaskSummaryView" else f"[{name}](http.md#{name.lower()})"
