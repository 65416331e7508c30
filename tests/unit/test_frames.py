"""Of a traceback the author's frames are shown."""

from __future__ import annotations

import json
from concurrent.futures import thread
from traceback import FrameSummary

from taskframework import frames
from taskframework.tasks import context
from taskframework.worker import threads


def test_a_traceback_shows_no_frames_of_the_framework_around_task_code() -> None:
    ours, pool, inside, library = (str(module.__file__) for module in (threads, thread, context, json))
    package = "/app/.venv/lib/python3.11/site-packages/bank/client.py"
    files = [ours, pool, ours, "/app/tasks.py", inside, "/app/tasks.py", package, library]
    shown = frames.of_the_author([FrameSummary(file, 1, "call") for file in files])
    assert [frame.filename for frame in shown] == ["/app/tasks.py", "/app/tasks.py", package, library]


def test_task_code_may_be_an_installed_package() -> None:
    file = json.__file__.replace("json", "site-packages")
    assert [frame.filename for frame in frames.of_the_author([FrameSummary(file, 1, "call")])] == [file]
