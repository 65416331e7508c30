"""`submit --stream` and `streams`: a stream on the command line, from its first task to its results."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema_rs  # noqa: F401 - read before it is first needed
import pytest

import taskframework.wiring.process  # noqa: F401 - as above
from taskframework.cli.streams import _outcome_text
from taskframework.model.stream_results import StreamResult
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_batch import work

HALTS = '{"key": "a/b", "on_failure": "halt"}'


def submitted(cli: Cli, parameters: str, stream: str = HALTS) -> Any:
    done = cli("submit", "greets", parameters, "--stream", stream, "--max-attempts", "1", "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_stream_is_shown_let_go_on_and_read(cli: Cli, folder: Path) -> None:
    work(folder)  # so that the type is known
    first, second = submitted(cli, '"ann"'), submitted(cli, '"bob"')
    assert (first["stream"]["position"], second["status"]) == (0, "BLOCKED")
    shown = cli("streams", "show", "a/b")
    assert "Stream a/b (serial): 2 positions used." in shown.out
    assert f"Task {first['task_id']} at position 0 has the turn; 1 waiting." in shown.out
    assert second["task_id"] in cli("tasks", "list", "--stream", "a/b", "--json").out
    assert json.loads(cli("tasks", "list", "--stream", "none", "--json").out)["items"] == []
    assert cli("streams", "go-on", "a/b").code == 1
    for command in ("show", "results", "go-on"):
        unknown = cli("streams", command, "a/b", "--user", "eve")
        assert (unknown.code, "the user to whom it belongs: `taskframework streams list`" in unknown.err) == (1, True)
    assert "a/b" in cli("streams", "list", "--user", "anonymous").out
    assert cli("streams", "list", "--halted").err.startswith("No stream has halted.")

    assert cli("tasks", "cancel", first["task_id"]).code == 0
    work(folder, until_over=second["task_id"])
    found = json.loads(cli("streams", "results", "a/b", "--json").out)
    assert [(result["status"], result["result"]) for result in found["items"]] == [
        ("CANCELLED", None),
        ("COMPLETED", "hello bob"),
    ]
    assert found["next_cursor"] == "2"
    assert "hello bob" in cli("streams", "results", "a/b", "--from", "1", "--limit", "1").out
    assert "No result at position 2 yet." in cli("streams", "results", "a/b", "--from", "2").err


@pytest.mark.parametrize("key", [".", ".."])
def test_a_key_that_no_address_can_have_is_refused(cli: Cli, folder: Path, key: str) -> None:
    work(folder)
    done = cli("submit", "greets", '"ann"', "--stream", json.dumps({"key": key}))
    assert (done.code, "must not be . or .." in done.err) == (1, True)


def test_a_position_shows_its_result_or_its_error() -> None:
    failed = StreamResult(0, "a", "FAILED", None, {"type": "app.Broken", "message": "no power"})
    results = [failed, StreamResult(1, "b", "COMPLETED", {"n": 1}), StreamResult(2)]
    assert [_outcome_text(result) for result in results] == ["Broken: no power", '{"n":1}', ""]


@pytest.mark.usefixtures("empty_store")
def test_a_stream_that_nobody_began_is_not_there(cli: Cli) -> None:
    for command in ("show", "results", "go-on"):
        done = cli("streams", command, "none")
        assert (done.code, "There is no stream 'none'." in done.err) == (1, True)


def test_the_next_page_is_offered_so_that_a_shell_runs_nothing_of_a_key(cli: Cli, folder: Path) -> None:
    work(folder)
    for key in ("$(id); it's", "z"):
        submitted(cli, '"ann"', json.dumps({"key": key}))
    offered = cli("streams", "list", "--limit", "1").err
    option, cursor = shlex.split(offered.removeprefix("More: "))
    assert (option, "$(id)" in offered.replace(shlex.quote(cursor), "")) == ("--cursor", False)
    assert [one["key"] for one in json.loads(cli("streams", "list", "--cursor", cursor, "--json").out)["items"]] == [
        "z"
    ]
