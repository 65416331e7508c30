"""`taskframework demo` on real files."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.command import Folder
from tests.support.process import free_ports

_TIDES = "# Tides\n\nThe moon pulls the water of the sea towards itself. The sea follows, and a tide comes.\n"


@pytest.fixture
def texts(folder: Folder) -> Path:
    """A folder with two texts, and with every kind of file that cannot be digested."""
    texts = folder.path / "texts"
    (texts / "more").mkdir(parents=True)
    (texts / ".hidden").mkdir()
    (texts / "__pycache__").mkdir()
    (texts / "tides.md").write_text(_TIDES)
    (texts / "more" / "empty.txt").touch()
    (texts / "noise.bin").write_bytes(bytes(range(256)))
    (texts / "latin.txt").write_bytes("Größe und Güte".encode("latin-1"))
    (texts / "loop").symlink_to("loop")
    (texts / "gone.md").symlink_to("nowhere.md")
    (texts / ".hidden" / "secret.md").write_text("not this")
    (texts / "__pycache__" / "x.pyc").write_bytes(b"\0")
    os.mkfifo(texts / "pipe")
    return texts


def _lines(said: str) -> dict[str, str]:
    """What was said of each file."""
    found = (re.fullmatch(r"\[ *\d+/\d+\] (\S+): (.*)", line) for line in said.splitlines())
    return {match[1]: match[2] for match in found if match}


def test_files_that_cannot_be_digested_fail_with_their_reason_and_the_others_go_on(folder: Folder, texts: Path) -> None:
    with (texts / "huge.txt").open("wb") as huge:
        huge.truncate(10**12)
    done = folder.run("demo", "texts", "--output", "out/report.md")
    assert _lines(done.stderr) == {
        "texts/tides.md": "18 words, comes, follows, itself",
        "texts/more/empty.txt": "0 words",
        "texts/noise.bin": "FAILED: not text: a NUL byte at position 0",
        "texts/latin.txt": "FAILED: not UTF-8 text: byte 2 cannot be decoded",
        "texts/huge.txt": "FAILED: too large: 1,000,000,000,000 bytes, and the demo reads 33,554,432 at most",
        "texts/loop": "FAILED: cannot be read: too many levels of symbolic links",
        "texts/gone.md": "FAILED: cannot be read: no such file or directory",
    }, "hidden files and caches are left out"
    assert "2 completed, 5 failed" in done.stdout
    assert done.stderr.count("a NUL byte") == 1, "the display tells of it, not the log once more"
    report = (folder.path / "out" / "report.md").read_text()
    assert "The moon pulls the water of the sea towards itself." in report
    assert "No digest: not text: a NUL byte" in report


def test_the_demo_ends_with_an_error_if_no_file_could_be_digested(folder: Folder, texts: Path) -> None:
    done = folder.run("demo", "texts/noise.bin", code=1)
    assert "0 completed, 1 failed" in done.stdout
    assert "No file could be digested" in done.stderr
    assert (folder.path / "demo-report.md").exists()


def test_a_file_that_is_named_more_than_once_is_one_task(folder: Folder, texts: Path) -> None:
    done = folder.run("demo", "texts/tides.md", "./texts/tides.md", str(texts / "tides.md"))
    assert "1 file in" in done.stdout
    assert (folder.path / "demo-report.md").exists()


def test_the_demo_leaves_only_its_report(folder: Folder, texts: Path) -> None:
    before = set(folder.path.iterdir())
    folder.run("demo", "texts", env={"TMPDIR": str(folder.path)})
    assert {path.name for path in set(folder.path.iterdir()) - before} == {"demo-report.md"}


def test_the_tasks_can_be_kept_and_looked_at(folder: Folder, texts: Path) -> None:
    folder.run("demo", "texts", "--keep")
    store = {"TASKFRAMEWORK_STORE__URL": "sqlite:///demo.db"}
    tasks = folder.json("tasks", "list", env=store)["items"]
    assert len(tasks) == 7
    [parent] = [task for task in tasks if task["task_type"] == "digest-library"]
    assert parent["subtasks"]["planned"] == 6
    assert {task["parent_task_id"] for task in tasks if task is not parent} == {parent["task_id"]}
    assert {task["error"]["type"] for task in tasks if task["status"] == "FAILED"} == {
        "taskframework.errors.NonRetryableError"
    }
    assert len(folder.json("dlq", "list", env=store)["items"]) == 4


def test_without_paths_the_docs_of_the_folder_are_digested_else_the_readme(folder: Folder) -> None:
    (folder.path / "docs").mkdir()
    (folder.path / "docs" / "one.md").write_text("One sentence stands here for all the others.")
    (folder.path / "README.md").write_text("Not this one.")
    assert set(_lines(folder.run("demo").stderr)) == {"docs/one.md"}
    (folder.path / "docs" / "one.md").rename(folder.path / "docs" / "one.json")
    assert set(_lines(folder.run("demo").stderr)) == {"README.md"}, "a folder that holds only data is no document"


def test_without_paths_and_docs_samples_are_digested(folder: Folder) -> None:
    (folder.path / "settings.json").write_text("{}")
    done = folder.run("demo")
    assert "There are no documents here, so the demo digests a few samples." in done.stderr
    assert "3 files in" in done.stdout
    assert " 0 failed" in done.stdout
    assert "lighthouse" in (folder.path / "demo-report.md").read_text()


def test_data_in_a_folder_is_left_out(folder: Folder, texts: Path) -> None:
    (texts / "chart.svg").write_text("<svg><text>Words and words.</text></svg>")
    (texts / "more" / "rows.JSON").write_text('{"text": "Words and words."}')
    (texts / "code.py").write_text('"""What this does, in a sentence."""\n')
    found = _lines(folder.run("demo", "texts").stderr)
    assert "texts/code.py" in found
    assert found.keys().isdisjoint({"texts/chart.svg", "texts/more/rows.JSON"})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.md"], 2, "missing.md does not exist"),
        (["texts/.hidden/secret.md", "nix"], 2, "nix does not exist"),
        (["empty"], 1, "There is no file to digest in empty."),
        (["texts", "--output", "texts"], 1, "texts cannot be written"),
        (["texts", "--output", "texts/tides.md/report.md"], 1, "cannot be written"),
        (["texts", "--output", "x" * 300], 1, "cannot be written"),
    ],
)
def test_wrong_arguments_of_the_demo_are_refused_before_the_work(
    folder: Folder, texts: Path, arguments: list[str], code: int, said: str
) -> None:
    (folder.path / "empty").mkdir()
    (folder.path / "empty" / "rows.json").write_text("[]")
    done = folder.run("demo", *arguments, code=code)
    assert said in done.stderr
    assert done.stdout == ""


def test_ctrl_c_ends_the_demo_without_a_trace(folder: Folder) -> None:
    (folder.path / "long.txt").write_text("Many a long sentence about nothing but sentences stands here. " * 500_000)
    (folder.path / "short.txt").write_text("Short.")
    before = set(folder.path.iterdir())
    demo = folder.start("demo", "long.txt", "short.txt", env={"TMPDIR": str(folder.path)})
    demo.line("[1/2] short.txt")
    assert demo.end(signal.SIGINT) == 130
    assert "".join(demo.err).splitlines()[-1] == "[1/2] short.txt: 1 word, short", "nobody needs more words"
    assert set(folder.path.iterdir()) == before


def test_a_failed_file_can_be_mended_and_the_report_is_written_again(folder: Folder, texts: Path) -> None:
    folder.start("dev", "--app", "taskframework.cli.demo.library", "--port", str(free_ports(1)[0])).event("ready")
    library = '{"paths": ["texts"], "report": "report.md"}'
    parent = folder.json("submit", "digest-library", library, "--wait", "--timeout", "30s")
    assert parent["result"] == {"completed": 2, "failed": 4}
    failed = folder.json("tasks", "list", "--status", "failed")["items"]
    [latin] = [task["task_id"] for task in failed if task["parameters"] == "texts/latin.txt"]
    (texts / "latin.txt").write_text("Größe und Güte")
    assert "--reopen" in folder.run("dlq", "replay", latin, code=1).stdout
    folder.run("dlq", "replay", latin, "--reopen")
    folder.run("tasks", "watch", parent["task_id"])
    assert folder.json("tasks", "show", parent["task_id"])["result"] == {"completed": 3, "failed": 3}
    assert "größe" in (folder.path / "report.md").read_text()


def test_a_file_whose_name_is_no_text_fails_alone(folder: Folder, texts: Path) -> None:
    Path(os.fsdecode(os.fsencode(texts) + b"/na\xefve.txt")).write_text("Text.")
    done = folder.run("demo", "texts")
    assert "texts/na\N{REPLACEMENT CHARACTER}ve.txt: FAILED: cannot be read: no such file" in done.stderr
    assert "2 completed, 5 failed" in done.stdout


def test_a_report_that_cannot_be_written_in_the_end_is_an_error(folder: Folder) -> None:
    (folder.path / "short.txt").write_text("Short.")
    done = folder.run("demo", "short.txt", "--output", "/dev/full", code=1)
    assert "No space left on device" in done.stderr
    assert done.stdout == ""
