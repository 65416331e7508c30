"""One process executes the tasks of a SQLite file."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskframework.errors import ConfigurationError
from taskframework.stores.sqlite.lock import ExecutionLock, executing_process, lock_file

_HOLD = """
import sys, time
from pathlib import Path
from taskframework.stores.sqlite.lock import ExecutionLock
ExecutionLock(Path(sys.argv[1])).acquire()
{then}
print("held", flush=True)
time.sleep(600)
"""
_FORK = """
import os
if os.fork() == 0:
    print(os.getpid(), flush=True)  # after the fork was handled here
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@contextmanager
def _holder(path: Path, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    script = _HOLD.format(then=then)
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_lock_in_one_process_is_refused_with_that_reason(path: Path) -> None:
    with ExecutionLock(path), pytest.raises(ConfigurationError, match="That is this process"):
        ExecutionLock(path).acquire()


def test_a_link_to_the_file_has_the_lock_of_the_file(path: Path, tmp_path: Path) -> None:
    path.touch()
    link = tmp_path / "elsewhere.db"
    link.symlink_to(path)
    with ExecutionLock(path), pytest.raises(ConfigurationError, match="That is this process"):
        ExecutionLock(link).acquire()


def test_a_second_process_is_refused_with_the_id_of_the_first(path: Path) -> None:
    with _holder(path) as process:
        assert _line(process) == "held"
        with pytest.raises(ConfigurationError) as refusal:
            ExecutionLock(path).acquire()
        assert f"process {process.pid} (" in str(refusal.value)
        assert str(path) in str(refusal.value)
        assert "Stop that process first" in refusal.value.hint
        assert refusal.value.key == "store.url"
        assert str(process.pid) in (executing_process(path) or "")


def test_a_full_disk_is_an_error_at_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lock = ExecutionLock(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ConfigurationError, match=r"No space left on device\. Free some space\."):
            lock.acquire()
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_file_system_without_locks_is_an_error_at_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    opened: list[int] = []

    def refuse(descriptor: int, _: int) -> None:
        opened.append(descriptor)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigurationError, match=r"cannot be locked: .*Put the file on a local disk") as refusal:
        ExecutionLock(path).acquire()
    assert os.strerror(code) in str(refusal.value)
    assert refusal.value.key == "store.url"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_the_lock_ends_with_its_process(path: Path) -> None:
    with _holder(path) as process:
        assert _line(process) == "held"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert executing_process(path) is None
        with ExecutionLock(path):
            assert str(os.getpid()) in (executing_process(path) or "")


def test_a_child_does_not_keep_the_lock_of_its_killed_parent(path: Path) -> None:
    """A process pool may outlive its parent for a while."""
    with _holder(path, _FORK) as process:
        child = int(_line(process))
        try:
            process.send_signal(signal.SIGKILL)
            process.wait()
            ExecutionLock(path).acquire()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_released_lock_can_be_taken_again(path: Path) -> None:
    lock = ExecutionLock(path)
    lock.acquire()
    with pytest.raises(ConfigurationError, match=str(os.getpid())):
        ExecutionLock(path).acquire()
    lock.release()
    lock.release()
    assert executing_process(path) is None
    with ExecutionLock(path):
        assert lock_file(path).exists()


def test_each_file_has_its_own_lock(path: Path) -> None:
    with ExecutionLock(path), ExecutionLock(path.with_name("other.db")):
        assert lock_file(path) != lock_file(path.with_name("other.db"))


def test_a_lock_that_cannot_be_written_says_what_to_do(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="folder exists"):
        ExecutionLock(path.parent / "missing" / "tasks.db").acquire()


def test_a_file_that_was_never_locked_is_executed_by_nobody(path: Path) -> None:
    assert executing_process(path) is None
    lock_file(path).write_text("nonsense")
    assert executing_process(path) is None
