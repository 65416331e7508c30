"""`batch`: a file becomes a batch, or nothing; looking at batches, cancelling and retrying."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest
import typer

from taskframework import Settings, TaskFramework
from taskframework.cli.applications import register_modules
from taskframework.cli.batch_file import ItemFile
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import Batch, ParentLink, Subtasks
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.unit.cli.conftest import Cli, Done


@pytest.fixture
def worked(folder: Path) -> None:
    """The store after a worker with the module `greeting` has run."""
    work(folder)


def work(folder: Path, batch_id: str = "", *, until_cancelled: str = "", until_over: str = "") -> None:
    async def is_cancelled() -> bool:
        return (await framework.get(until_cancelled)).cascade_at is None

    async def run() -> None:
        async with framework.running(worker=True):
            if batch_id:
                await framework.batch(batch_id).finished(timeout=30)
            if until_over:
                await framework.handle(until_over).finished(timeout=30)
            if until_cancelled:
                await eventually(is_cancelled)

    framework = TaskFramework(Settings())
    register_modules(framework, ["greeting"])
    asyncio.run(run())


def submitted(cli: Cli, folder: Path, text: str = '"ann"\n\n"bob"\n', *options: str) -> Done:
    (folder / "names.ndjson").write_text(text)
    return cli("batch", "submit", "greets", "names.ndjson", *options)


def test_a_file_can_be_sent_again_and_a_pipe_cannot(tmp_path: Path) -> None:
    file, pipe = tmp_path / "items.ndjson", tmp_path / "pipe"
    file.write_text("1\n\nx\n")
    os.mkfifo(pipe)
    for values in (ItemFile(str(pipe)).values(), ItemFile("-").values()):
        assert isinstance(values, AsyncIterator)
    items = ItemFile(str(file))
    for _ in "12":
        with pytest.raises(typer.BadParameter, match="line 3 "):
            list(items)
        assert items._line_number_of(1) == 3


def test_a_byte_order_mark_is_no_part_of_the_first_item(tmp_path: Path) -> None:
    file = tmp_path / "items.ndjson"
    file.write_text('"ann"\n"bob"\n', encoding="utf-8-sig")
    assert list(ItemFile(str(file))) == ["ann", "bob"]


def said(done: Done) -> str:
    """What stands on standard error, without the frame around it."""
    return " ".join(done.err.replace("│", " ").split())


def batch_of(done: Done) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.usefixtures("worked")
def test_a_file_is_submitted_and_looked_at(cli: Cli, folder: Path) -> None:
    batch = batch_of(submitted(cli, folder, '"ann"\n"bob"\n', "--priority", "high", "--json"))
    assert (batch["total"], batch["is_sealed"], batch["priority"]) == (2, True, "high")
    assert "To follow it: taskframework batch watch " in cli("batch", "show", batch["batch_id"]).err
    work(folder, batch["batch_id"])

    name = batch["batch_id"]
    assert "COMPLETED" in (shown := cli("batch", "show", name)).out
    assert "2 of 2 (100 %)" in shown.out
    assert batch_of(cli("batch", "watch", name, "--json"))["counts"] == {"COMPLETED": 2}
    assert "hello bob" in cli("batch", "results", name).out
    page = batch_of(cli("batch", "results", name, "--limit", "1", "--json"))
    assert (page["items"][0]["result"], page["next_cursor"]) == ("hello ann", "1")
    followed = cli("batch", "results", name, "--cursor", "1", "--follow").out.splitlines()
    assert [json.loads(line)["result"] for line in followed] == ["hello bob"]
    assert name in cli("batch", "list").out
    assert [one["batch_id"] for one in batch_of(cli("batch", "list", "--json"))["items"]] == [name]
    refused = cli("batch", "retry-failed", name)
    assert (refused.code, "COMPLETED" in refused.err) == (1, True)


@pytest.mark.usefixtures("worked")
def test_a_cancelled_batch_is_retried(cli: Cli, folder: Path) -> None:
    submission = submitted(cli, folder).out
    assert "Submitted batch" in submission
    assert "of 2 items" in submission
    [name] = [one["batch_id"] for one in batch_of(cli("batch", "list", "--json"))["items"]]
    assert "is cancelled" in cli("batch", "cancel", name, "--reason", "not today").out
    assert cli("batch", "watch", name).code == 1
    assert "still being cancelled; try again" in cli("batch", "retry-failed", name).err
    work(folder, until_cancelled=name)
    assert "is open again" in cli("batch", "retry-failed", name).out
    work(folder, name)
    assert cli("batch", "watch", name).code == 0


@pytest.mark.usefixtures("worked")
def test_a_batch_of_which_only_its_own_method_failed_is_retried_for_this_method(cli: Cli, folder: Path) -> None:
    async def insert() -> None:
        store = SqliteStore(folder / "taskframework.db")
        await store.open()
        ended = {"finished_at": (now := store.now()), "next_dispatch_at": None}
        subtasks = Subtasks(1, None, done=1, succeeded=1, resumes=True)
        own: dict[str, Any] = {"batch": Batch(items=1), "subtasks": subtasks, "status": TaskStatus.FAILED, **ended}
        item: dict[str, Any] = {"parent": ParentLink("a-batch", 0, 0), "status": TaskStatus.COMPLETED, **ended}
        await store.insert([new_task(task_id="a-batch", now=now, **own), new_task(task_id="item", now=now, **item)])
        await store.close()

    asyncio.run(insert())
    again = "To call on_batch_finished again: taskframework batch retry-failed a-batch"
    assert again in cli("batch", "watch", "a-batch").err
    assert again in cli("tasks", "explain", "a-batch").out
    assert "is open again, to call on_batch_finished again." in cli("batch", "retry-failed", "a-batch").out


@pytest.mark.usefixtures("worked")
def test_the_same_command_again_is_the_same_batch(cli: Cli, folder: Path) -> None:
    assert submitted(cli, folder, '"ann"\n', "--idempotency-key", "k").out.startswith("Submitted batch")
    assert submitted(cli, folder, '"ann"\n', "--idempotency-key", "k").out.startswith("Submitted before: batch")
    other = submitted(cli, folder, '"bob"\n', "--idempotency-key", "k")
    assert (other.code, "Line 1 of names.ndjson: Item 0" in other.err) == (1, True)


@pytest.mark.usefixtures("worked")
def test_a_wrong_line_of_a_batch_file_is_named(cli: Cli, folder: Path) -> None:
    no_json = submitted(cli, folder, '"ann"\n{\n')
    assert (no_json.code, "line 2 of names.ndjson is not JSON" in said(no_json)) == (2, True)
    assert "at column 1. Write one item per line" in said(no_json)
    wrong = submitted(cli, folder, '\n"ann"\n\n\n5\n"bob"\n')
    assert (wrong.code, "Line 5 of names.ndjson: The parameters" in wrong.err) == (1, True)
    assert "cancelled" not in wrong.err, "nothing was stored"
    nothing = cli("batch", "submit", "greets", "nothing.ndjson")
    assert (nothing.code, "nothing.ndjson cannot be read: No such file" in said(nothing)) == (2, True)
    assert submitted(cli, folder, "").code == 1
    assert submitted(cli, folder, '"ann"\n', "--policy", "most").code == 1
    assert cli("batch", "results", "x", "--cursor", "y").code == 2


@pytest.mark.usefixtures("worked")
@pytest.mark.parametrize("mistake", ["5", "{"])
def test_a_mistake_far_down_says_what_became_of_the_rest(cli: Cli, folder: Path, mistake: str) -> None:
    text = '"ann"\n' * 1200
    without_key = submitted(cli, folder, text + mistake)
    assert "ine 1201 of names.ndjson" in said(without_key)
    assert "The stored part is cancelled" in said(without_key)
    [cancelled] = batch_of(cli("batch", "list", "--json"))["items"]
    shown = cli("batch", "show", cancelled["batch_id"]).out
    assert "Upload not complete when the batch ended" in " ".join(shown.split())
    assert "so far" not in shown
    with_key = submitted(cli, folder, text + mistake, "--idempotency-key", "k")
    assert "Run the same command again to continue" in said(with_key)
    assert "so far" in cli("batch", "list").out
    went_on = submitted(cli, folder, text + '"bob"', "--idempotency-key", "k", "--json")
    assert batch_of(went_on)["total"] == 1201
    [open_one, _] = batch_of(cli("batch", "list", "--json"))["items"]
    assert open_one["is_sealed"]


@pytest.mark.usefixtures("worked")
@pytest.mark.parametrize(
    ("text", "line", "tells_of_stored_part"),
    [
        ('\n"ann"\n\n\n5\n' + '"bob"\n' * 1200, 5, False),  # more is read before the first part is refused
        ('"ann"\n\n' * 600 + "5", 1201, True),
        ('"ann"\n' * 500 + "{", 501, True),
    ],
)
def test_a_wrong_line_of_a_pipe_is_named(
    cli: Cli, folder: Path, text: str, line: int, tells_of_stored_part: bool
) -> None:
    os.mkfifo(folder / "pipe")
    writing = threading.Thread(target=(folder / "pipe").write_text, args=(text,))
    writing.start()
    refused = said(cli("batch", "submit", "greets", "pipe"))
    writing.join()
    assert f"ine {line} of pipe" in refused
    assert ("The stored part is cancelled" in refused) is tells_of_stored_part


def test_a_json_array_in_place_of_lines_is_refused_with_the_next_step(cli: Cli, folder: Path) -> None:
    refused = submitted(cli, folder, '["ann", "bob"]\n', "--app", "greeting")
    assert (refused.code, "for a JSON array, `jq -c '.[]' FILE` makes such lines" in refused.err) == (1, True)


def test_a_refused_batch_makes_no_store(cli: Cli, folder: Path) -> None:
    refused = submitted(cli, folder)
    assert (refused.code, "There is no store here yet" in refused.err) == (1, True)
    assert not (folder / "taskframework.db").exists()
