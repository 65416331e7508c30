"""A user's project under both type checkers: right use passes, and each mistake is told in the line where it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.pages import ROOT

PROJECT = Path(__file__).parent / "project"
MISTAKES = {
    number for number, line in enumerate((PROJECT / "wrong.py").read_text().splitlines(), 1) if "# mistake" in line
}


def run(*command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout


def test_there_are_programs_with_mistakes() -> None:
    assert len(MISTAKES) >= 10


def test_mypy_tells_each_mistake_and_nothing_else(tmp_path: Path, mypy_cache: Path) -> None:
    (settings := tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\npython_version = 3.11\n")
    told = run("mypy", "--config-file", str(settings), "--cache-dir", str(mypy_cache), *map(str, PROJECT.glob("*.py")))
    errors = re.findall(r"^(\S+)\.py:(\d+): error:", told, re.MULTILINE)
    assert {Path(file).name for file, _ in errors} == {"wrong"}, told
    assert {int(line) for _, line in errors} == MISTAKES, told


def test_pyright_tells_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    strict = {
        "include": [str(PROJECT)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT)],
    }
    (settings := tmp_path / "pyrightconfig.json").write_text(json.dumps(strict))
    told = run("basedpyright", "--project", str(settings), "--pythonpath", sys.executable, "--outputjson")
    found = json.loads(told)
    assert found["summary"]["filesAnalyzed"] == len(list(PROJECT.glob("*.py")))
    errors = [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
    assert {Path(each["file"]).name for each in errors} == {"wrong.py"}, told
    assert {each["range"]["start"]["line"] + 1 for each in errors} == MISTAKES, told
