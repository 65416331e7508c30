"""The lock that allows one executing process for a SQLite file.

Many processes may submit to a file, but the embedded broker lives in one process: a second process would execute tasks
that the broker of the first process does not know.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from taskframework.errors import ConfigurationError

#: Longer chains of links are not followed: they may be a circle, which SQLite refuses to open.
_MAX_LINKS = 40


class ExecutionLock:
    """A lock on `<file>.lock`. It ends with the process, even if the process is killed."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = lock_file(path)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Become the executing process of the file.

        Raises:
            ConfigurationError: if another process holds the lock, or if the file cannot be locked or written.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unwritable_error(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first = _read(descriptor)
            os.close(descriptor)
            raise self._already_locked_error(first) from None
        except OSError as error:
            os.close(descriptor)
            raise ConfigurationError(
                f"The lock file {self._path} cannot be locked: {error.strerror}.",
                key="store.url",
                hint="Put the file on a local disk; network and shared file systems do not work.",
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _own_process_line(), 0)
        except OSError as error:
            os.close(descriptor)
            raise self._unwritable_error(error) from error
        self._descriptor = descriptor
        _open_descriptors.add(descriptor)

    def release(self) -> None:
        """Let another process execute. The file is not deleted, because then two processes could lock two files."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            _open_descriptors.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _unwritable_error(self, error: OSError) -> ConfigurationError:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return ConfigurationError(
            f"The lock file {self._path} cannot be written: {error.strerror}.",
            key="store.url",
            hint="Free some space." if is_full else "Check that its folder exists and that this user may write there.",
        )

    def _already_locked_error(self, first: str) -> ConfigurationError:
        hint = (
            "Stop that process first, name another file in store.url, or use RabbitMQ and MongoDB for several "
            "workers. A program that only submits runs beside it with `worker=False`."
        )
        if first.startswith(f"process {os.getpid()} "):
            hint = "That is this process: use the framework that is running in it, or leave its `running()` first."
        return ConfigurationError(
            f"{self._database} already has its executing process: {first}.", key="store.url", hint=hint
        )


def lock_file(path: Path) -> Path:
    """The path of the lock file of a SQLite file, the same for every symbolic link to the file."""
    for _ in range(_MAX_LINKS):
        try:
            path = path.parent / os.readlink(path)
        except OSError:  # it is no link, or there is no file yet
            break
    return path.with_name(path.name + ".lock")


def executing_process(path: Path) -> str | None:
    """The process that executes the tasks of a file, in words; None if there is none.

    It does not try the lock, because then a process that starts at the same moment would fail.
    """
    try:
        pid, _, command = lock_file(path).read_text(errors="replace").strip().partition(" ")
        return f"process {pid} ({command})" if _is_alive(int(pid)) else None
    except (OSError, ValueError):  # never locked, or released
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # a process of another user
        return True
    except ProcessLookupError:
        return False
    return True


def _own_process_line() -> bytes:
    return f"{os.getpid()} {' '.join(sys.argv)}\n".encode("utf-8", "replace")[:1000]


def _read(descriptor: int) -> str:
    pid, _, command = os.pread(descriptor, 1000, 0).decode("utf-8", "replace").strip().partition(" ")
    return f"process {pid} ({command})" if pid else "a process that has just started"


#: The open lock files of this process.
_open_descriptors: set[int] = set()


def _close_inherited_locks() -> None:
    """Close the lock files in a forked child, which would otherwise keep the locks when its parent is killed."""
    for descriptor in _open_descriptors:
        os.close(descriptor)
    _open_descriptors.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)
