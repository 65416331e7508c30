"""What commands leave in the audit: who asked for what, and that it came to nothing where it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs  # noqa: F401 - read before it is first needed

import taskframework.wiring.process  # noqa: F401 - as above
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_batch import work


def _noted(cli: Cli) -> list[Any]:
    return [(entry["action"], entry["refusal"]) for entry in json.loads(cli("audit", "list", "--json").out)["items"]]


def test_a_text_that_is_not_json_is_refused_before_anything_is_audited(cli: Cli, folder: Path) -> None:
    work(folder)
    for command in ("edit", "repair"):
        done = cli("dlq", command, "some-letter", "not json")
        assert (done.code, "not JSON" in done.err) == (2, True)
    assert _noted(cli) == []


def test_a_command_that_changed_nothing_is_audited_with_the_reason(cli: Cli, folder: Path) -> None:
    work(folder)
    for command in (["replay", "x"], ["edit", "x", "1"], ["discard", "x", "--reason", "old"]):
        assert cli("dlq", *command).code == 1
    noted = _noted(cli)
    assert [action for action, _ in noted] == ["dead-letter.discard", "dead-letter.edit", "dead-letter.replay"]
    assert all("There is no dead letter 'x'" in str(refusal) for _, refusal in noted)


def test_the_record_of_a_new_key_says_what_it_may_do(cli: Cli, folder: Path) -> None:
    work(folder)
    assert cli("keys", "create", "ada", "--role", "reader", "--act-for-users").code == 0
    assert cli("keys", "create", "bob").code == 0
    listed = json.loads(cli("audit", "list", "--json").out)["items"]
    assert [(entry["target"], entry["details"]) for entry in listed] == [
        ("bob", {}),
        ("ada", {"role": ["reader"], "act_for_users": True}),
    ]


def test_a_reason_cannot_steer_the_terminal_of_another_operator(cli: Cli, folder: Path) -> None:
    work(folder)
    assert cli("queues", "pause", "greets", "--reason", "\x1b[2J").code == 0
    for listed in (cli("queues", "list"), cli("audit", "list")):
        assert "[2J" in listed.out
        assert "\x1b" not in listed.out


def test_a_list_without_entries_says_whether_a_filter_left_them_out(cli: Cli, folder: Path) -> None:
    work(folder)
    assert "No entries yet." in cli("audit", "list").err
    assert cli("queues", "pause", "greets").code == 0
    for name, value in (("--action", "queue.resume"), ("--by", "nobody"), ("--action", "")):
        assert "No such entries." in cli("audit", "list", name, value).err
