"""Nothing in the repository speaks of the machine on which it was written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

_MACHINE_PATH = re.compile(rb"(?<![\w.~-])/(?:work|root)/")
_HOST = re.compile(rb"https?://|file:/")


def test_no_file_names_a_path_of_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _files_of_the_repository()
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if _MACHINE_PATH.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "lock", [ROOT / "requirements.lock", *(ROOT / ".ci").glob("*.lock")], ids=lambda lock: lock.stem
)
def test_a_lock_file_names_no_host(lock: Path) -> None:
    assert _HOST.search(lock.read_bytes()) is None


@pytest.mark.parametrize(("text", "is_found"), [("see /{}/x", True), ("COPY . frame{}/", False), ("docs/{}/x", False)])
def test_a_text_counts_as_a_path_of_a_machine_or_not(text: str, is_found: bool) -> None:
    assert bool(_MACHINE_PATH.search(text.format("work").encode())) is is_found


def _files_of_the_repository() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the project is unknown")
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    assert paths
    return [path for path in paths if path.is_file()]
