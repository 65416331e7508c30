"""Wrong usage ends with exit code 2, a wrong request with 1; both say what to do, on standard error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nix"], "No such command 'nix'"),
        (["tasks", "show"], "Missing argument"),
        (["tasks", "list", "--status", "fail"], "'--status': 'fail' is not a status. Did you mean failed?"),
        (["tasks", "list", "--status", "nix"], "Use queued, running, retrying, waiting, blocked, completed"),
        (["tasks", "list", "--after", "noon"], "'noon' is neither a time such as 2027-01-31T12:00:00Z nor a duration"),
        (["tasks", "list", "--after", "9999999d"], "'9999999d' is too long ago"),
        (["tasks", "list", "--after", "0001-01-01T00:00:00+14:00"], "is before the year 1 or after the year 9999"),
        (["tasks", "cancel", "--where", "finished_after=9999999d"], "'9999999d' is too long ago"),
        (["submit", "greets", "null", "--not-before", "9999999d"], "'9999999d' is too far ahead"),
        (["submit", "greets", "null", "--timeout", "9" * 30], "is too long"),
        (["batch", "results", "x", "--cursor", "9" * 30], "is not a whole number from 0 to"),
        (["batch", "results", "x", "--cursor", "1000000"], "'1000000' is not a whole number from 0 to 100,000"),
        (["tasks", "list", "--error", ""], "'--error': is empty; give a text, or leave the option out"),
        (["tasks", "list", "--fingerprint", ""], "'--fingerprint': is empty"),
        (["tasks", "list", "--waits-for-limit", ""], "'--waits-for-limit': is empty"),
        (["streams", "results", "x", "--from", "9" * 30], "is not a whole number from 0 to"),
        (["tasks", "list", "--limit", "501"], "'501' is not a whole number from 1 to 500"),
        (["dev", "--port", "x"], "'--port': 'x' is not a whole number"),
        (["submit", "greets", "{not json"], "Quote it for the shell"),
        (["submit", "greets", "\N{GREEK SMALL LETTER ALPHA}" * 200], "Quote it for the shell"),
        (["submit", "greets", "@missing.json"], "missing.json cannot be read"),
        (["submit", "greets", "null", "--stream", "account-7"], """such as '{"key": …}'"""),
        (["submit", "greets", "null", "--debounce", "5s"], """such as '{"key": …, "wait": …}'"""),
        (["submit", "greets", "null", "--not-before", "tomorrow"], "2027-01-31T12:00:00Z"),
        (["submit", "greets", "null", "--deadline", "2027-01-31T12:00:00"], "has no time zone"),
        (["submit", "greets", "null", "--deadline", "2027-01-31"], "write 2027-01-31T00:00:00Z for UTC"),
        (["submit", "greets", "null", "--timeout", "soon"], "must be a duration"),
        (["submit", "greets", "null", "--max-attempts", "few"], "'few' is not a whole number"),
        (["dlq", "replay"], "Give ids, or --where NAME=VALUE."),
        (["dlq", "replay", "x", "--where", "type=y"], "not both"),
        (["dlq", "replay", "--where", "typ=y"], "'typ=y' is not a condition"),
        (["dlq", "replay", "--where", "kind=other"], "task or message"),
        (["tasks", "cancel", "--where", "user=a", "--where", "user=b", "--reason", "x"], "user is given twice"),
        (["dlq", "replay", "--where", "type=y", "--rate", "fast"], "'fast' is not a rate"),
        (["dlq", "discard", "x"], "Give a reason with --reason TEXT"),
        (["tasks", "cancel"], "Give ids, or --where NAME=VALUE."),
        (["tasks", "retry", "--where", "status=gone"], "'gone' is not a status"),
        (["keys", "create", "x", "--role", "reader", "--role", "boss"], "for '--role': 'boss' is not one of 'reader'"),
        (["keys", "create", "x", "--rate", "inf"], "less than or equal to 1000000"),
        (["keys", "create", "x", "--rate", "1", "--burst", "9" * 30], "less than or equal to 1000000"),
        (["dlq", "list", "--kind", "x"], "for '--kind': 'x' is not one of 'task', 'message'"),
        (["schedules", "create", "nightly"], "Missing argument"),
        (["schedules", "create", "nightly", "greets", "--missed", "never"], "'never' is not one of 'skip', 'once'"),
    ],
)
def test_wrong_usage_ends_with_exit_code_2(cli: Cli, arguments: list[str], said: str) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert said in " ".join(done.err.replace("│", " ").split())
    assert done.out == ""


@pytest.mark.parametrize("where", [[], ["--api", "http://127.0.0.1:1"]], ids=["store", "API"])
@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["tasks", "show", "\udcff"], "'ID'"),
        (["tasks", "list", "--type", "\udcff"], "'--type'"),
        (["tasks", "cancel", "--where", "type=a", "--where", "type=\udcff"], "'--where'"),
        (["schedules", "pause", "s", "--reason", "a\udcff"], "'--reason'"),
        (["streams", "show", "\udcff"], "'KEY'"),
        (["keys", "create", "\udcff"], "'NAME'"),
        (["submit", "greets", "1", "--idempotency-key", "\udcff"], "'--idempotency-key'"),
        (["tasks", "list", "--api", "http://host/\udcff"], "'--api'"),
    ],
)
def test_bytes_that_are_no_text_are_refused(
    cli: Cli, empty_store: None, arguments: list[str], wrong: str, where: list[str]
) -> None:
    """Most ended with a traceback."""
    done = cli(*arguments[:2], *where, *arguments[2:])
    assert done.code == 2
    said = " ".join(done.err.replace("│", " ").split())
    assert f"Invalid value for {wrong}" in said
    assert "is not UTF-8 text" in said


def test_a_key_that_is_no_text_is_not_shown(cli: Cli, empty_store: None) -> None:
    done = cli("tasks", "list", "--api", "http://host", "--key", "tf_secret\udcff")
    assert (done.code, "secret" in done.err) == (2, False)


def test_a_folder_may_have_a_name_that_is_no_text(cli: Cli, folder: Path) -> None:
    assert cli("init", "\udcff-project").code == 0
    assert (folder / "\udcff-project" / "application.yml").exists()


def test_a_file_may_have_a_name_that_is_no_text(cli: Cli, folder: Path) -> None:
    (folder / "\udcff.json").write_text('"you"')
    (folder / "\udcff.yml").write_text("store: {url: 'sqlite:///other.db'}")
    done = cli("--config", "\udcff.yml", "submit", "greets", "@\udcff.json", "--app", "greeting")
    assert (done.code, (folder / "other.db").exists()) == (0, True), done.err


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["submit", "greets", '"you"'], "There is no task type 'greets'", "registered here: `--app`"),
        (["submit", "greets", '"you"'], "There is no task type 'greets'", "/taskframework.db."),
        (["submit", "greet", '"you"', "--app", "greeting"], "no task type 'greet'", "Did you mean 'greets'?"),
        (["submit", "greets", "1", "--app", "greeting"], "Input should be a valid string", "JSON of this kind: text"),
        (["submit", "greets", "--app", "greeting"], "Input should be a valid string", "as JSON after the type"),
        (["submit", "greets", '"x"', "--app", "greeting", "--priority", "urgent"], "'urgent'", "high, normal or low"),
        (
            ["submit", "greets", '"x"', "--app", "greeting", "--max-attempts", "0"],
            "equal to 1, not 0",
            "Maximum number of attempts",
        ),
        (
            ["submit", "greets", '"x"', "--app", "greeting", "--deadline", "1s", "--not-before", "1m"],
            "deadline",
            "Give",
        ),
        (["worker"], "no tasks to execute", "--app package.module"),
        (["dev", "--port", "70000"], "api.port (command line) is 70000", "lists every setting"),
        (["--config", "none.yml", "config", "show"], "none.yml cannot be read", "Check the path"),
        (["tasks", "show", "nope"], "There is no task 'nope'", "Check the id"),
        (["tasks", "watch", "nope"], "There is no task 'nope'", "Check the id"),
        (["tasks", "cancel", "nope"], "There is no task 'nope'", "Check the id"),
        (["tasks", "retry", "nope"], "There is no task 'nope'", "Check the id"),
        (["tasks", "list", "--cursor", "%%"], "cursor", "Leave it out"),
        (["dlq", "show", "nope"], "There is no dead letter 'nope'", "Check the id"),
        (["schedules", "show", "nope"], "There is no schedule 'nope'", "List the schedules"),
        (["schedules", "update", "nope", "--every", "1m"], "There is no schedule 'nope'", "List the schedules"),
        (
            ["schedules", "create", "n", "greets", "--cron", "61 * * * *"],
            "cron: has a wrong minute '61'",
            "Minute, hour",
        ),
        (["schedules", "create", "n", "greets", "--every", "5"], "every: needs a unit", "Interval such as"),
        (
            ["schedules", "create", "n", "greets", "--every", "1m"],
            "There is no task type 'greets'",
            "/taskframework.db.",
        ),
        (["events", "tail", "--url", "http://127.0.0.1:1"], "No events at http://127.0.0.1:1", "taskframework dev"),
        (
            ["events", "tail", "--url", "http://127.0.0.1:1", "--api-key", "x"],
            "No events at http://127.0.0.1:1",
            "taskframework dev",
        ),
        (["events", "tail", "--url", "localhost:1"], "'localhost:1' is not the address of an API", "http://localhost:"),
    ],
)
def test_a_wrong_request_ends_with_exit_code_1(
    cli: Cli, empty_store: None, arguments: list[str], message: str, hint: str
) -> None:
    done = cli(*arguments)
    assert done.code == 1
    said = done.err[done.err.index("error: ") :].splitlines()
    assert message in said[0]
    assert hint in said[1]
    assert done.out == ""


@pytest.mark.parametrize(
    "command",
    [
        ["tasks", "list"],
        *(["tasks", verb, "an-id"] for verb in ("show", "explain", "cancel", "retry", "watch")),
        ["queues", "list"],
        ["top"],
        ["dlq", "list"],
        *(["dlq", verb, "an-id"] for verb in ("show", "replay")),
        ["schedules", "list"],
        *(["schedules", verb, "a-name"] for verb in ("show", "update", "delete", "run", "pause", "resume")),
    ],
    ids=" ".join,
)
def test_looking_makes_no_store_and_says_what_does(cli: Cli, folder: Path, command: list[str]) -> None:
    before = set(folder.iterdir())
    done = cli(*command, "--json")
    assert (done.code, done.out) == (1, "")
    assert "There is no store here yet: taskframework.db" in done.err
    assert "taskframework dev --app" in done.err
    assert set(folder.iterdir()) == before


def test_lists_of_an_empty_store_show_that_there_is_nothing(cli: Cli, empty_store: None) -> None:
    done = cli("tasks", "list")
    assert (done.code, done.out) == (0, "")
    assert "No tasks" in done.err
    assert "No schedules. To create one" in cli("schedules", "list").err
    assert "No dead letters" in cli("dlq", "list").err
    assert '"next_cursor": null' in cli("tasks", "list", "--json").out


def test_json_and_errors_do_not_mix(cli: Cli, empty_store: None) -> None:
    done = cli("tasks", "show", "nope", "--json")
    assert (done.code, done.out) == (1, "")


def test_the_embedded_broker_has_no_topology(cli: Cli) -> None:
    assert cli("topology", "show", "--json").out == "[]\n"
    assert "nothing to declare" in cli("topology", "apply").err


def test_watching_files_needs_an_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    done = cli("dev", "--reload", "--app", "greeting")
    assert (done.code, "pip install 'taskframework[reload]'" in done.err) == (1, True), done.err


def test_an_empty_address_of_an_api_is_refused(cli: Cli, folder: Path) -> None:
    for command in (("tasks", "list"), ("queues", "pause", "greets"), ("submit", "greets", "1")):
        done = cli(*command, "--api", "")
        assert (done.code, "Invalid value for '--api'" in done.err) == (2, True)
    assert not list(folder.glob("*.db")), "nothing was done here"
