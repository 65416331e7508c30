"""A field of the task is one line: both stores keep it, whatever a user puts into it, and nobody outside sees it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.sources import PACKAGE

_BEHIND = "    result: Json = field(default=None, repr=False)\n"
_PLANTED = "    remark: Json = field(default=None, repr=False)\n    remarked_at: Rare[datetime | None] = None\n"

#: Runs on a copy of the package: prints what does not come back from a store as it went in.
_ROUND_TRIPS = """
import datetime
import bson
from taskframework.model.shape import Shape
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.stores.mongo.codec import CODEC
from taskframework.stores.mongo.documents import document_of, task_of
from taskframework.stores.sqlite.rows import TaskRow, new_row, read_row, to_json
from taskframework.testing.conformance.comparison import same_json
from taskframework.testing.conformance.store_values import HOSTILE
from taskframework.testing.factories import new_task

def through_mongo(task):
    return task_of(bson.decode(bson.encode(document_of(task)), CODEC))

def through_sqlite(task):
    first = new_row(new_task())
    row = first.changed_to(first.task.evolve(remark=task.remark, remarked_at=task.remarked_at))
    values = {"task_id": task.task_id, "document": to_json(row.document()), "parameters": row.parameters}
    return read_row(TaskRow(**{**dict.fromkeys(TaskRow._fields, 0), **values})).task

at = datetime.datetime(2027, 1, 31, tzinfo=datetime.UTC)
for name, value in {**HOSTILE, "NUL in a name": {"a\\0b": {"$set": 1}}}.items():
    task = new_task().evolve(remark=value, remarked_at=at)
    for through in (through_mongo, through_sqlite):
        back = through(task)
        if not same_json(back.remark, value) or back.remarked_at != at:
            print(f"{through.__name__}: {name}")
assert public_view(task).keys() == public_view(new_task()).keys(), "seen from outside"
assert "remark=" not in repr(task), "in the log"
print("looked at all")
"""


def test_a_field_of_the_task_is_one_line(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "taskframework", ignore=shutil.ignore_patterns("__pycache__"))
    record = tmp_path / "taskframework" / "model" / "task.py"
    text = record.read_text()
    assert _BEHIND in text
    record.write_text(text.replace(_BEHIND, _BEHIND + _PLANTED))
    done = subprocess.run(
        [sys.executable, "-c", _ROUND_TRIPS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "looked at all\n"
