"""What the documents show works: Python blocks run, links lead somewhere, named files exist."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"`(\w+)\.py`[^`]*\Z")
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
_SOURCE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if _BLOCK.search(path.read_text())], ids=name_of)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs where the ones before it left off; what would need servers is built but not awaited."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(asyncio, "run", _close)
    text, namespace = document.read_text(), {"__name__": "documented"}
    for match in _BLOCK.finditer(text):
        named = _NAMED.search(text[: match.start()].rstrip().removesuffix(":").rsplit("\n\n", 1)[-1])
        if named:
            (tmp_path / f"{named[1]}.py").write_text(match[1])
        exec(compile(match[1], f"{name_of(document)}", "exec"), namespace)
    for module in tmp_path.glob("*.py"):
        sys.modules.pop(module.stem, None)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in _LINK.findall(text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"the link to {target}"
    for source in _SOURCE.findall(text):
        home = ROOT if source.startswith("tests/") else ROOT / "taskframework"
        assert (home / source).exists(), f"the file {source}"


def test_the_first_task_of_the_readme_runs(tmp_path: Path) -> None:
    """The newcomer's path: the module of the README, and a program that submits to it."""
    block = _BLOCK.search((ROOT / "README.md").read_text())
    assert block is not None
    (tmp_path / "myapp.py").write_text(block[1])
    program = (
        "import asyncio, myapp\n"
        "from taskframework import TaskFramework\n"
        "async def main():\n"
        "    framework = TaskFramework()\n"
        "    framework.register_module(myapp)\n"
        "    async with framework.running():\n"
        "        handle = await framework.submit('count-words', {'text': 'one two three'})\n"
        "        print(await handle.result(timeout=20))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "{'words': 3}"


def _close(main: Coroutine[Any, Any, Any]) -> None:
    main.close()
