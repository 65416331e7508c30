"""Authors copy the programs of the pages: mypy finds no mistake in them, as strict as it can be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.pages import ROOT, TRANSLATIONS, name_of, pages, programs_of

#: The other system's programs on the pages about moving: they are not ours to type.
_OTHERS = ",".join(
    f"*.{kind}_{system}" for kind in ("shop", "test", "web") for system in ("arq", "celery", "dramatiq", "taskiq")
)
#: As an author has it. Some packages have no type hints of their own, or are not installed here.
_SETTINGS = f"""
[mypy]
strict = True
python_version = 3.11
[mypy-arq.*,celery.*,django.*,dramatiq.*,taskiq.*,taskiq_aio_pika.*,taskiq_redis.*]
ignore_missing_imports = True
[mypy-{_OTHERS}]
ignore_errors = True
"""


def test_mypy_finds_nothing_in_the_programs_of_the_pages(tmp_path: Path, mypy_cache: Path) -> None:
    (settings := tmp_path / "mypy.ini").write_text(_SETTINGS)
    (folder := tmp_path / "pages").mkdir()
    count = sum(_save(page, folder) for page in [*pages(), *(ROOT / page for page in TRANSLATIONS)])
    assert count >= 100
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(mypy_cache), "."]
    told = subprocess.run(mypy, cwd=folder, capture_output=True, text=True, check=False, env={"MYPYPATH": str(ROOT)})
    assert told.returncode == 0, told.stdout + told.stderr


def _save(page: Path, folder: Path) -> int:
    """Make a package of the programs of a page, since several pages have a `shop.py`; say how many they are."""
    programs = programs_of(page)
    (home := folder / re.sub(r"\W", "_", name_of(page))).mkdir()
    (home / "__init__.py").touch()
    mine = "|".join(name.removesuffix(".py") for name in programs)
    for name, text in programs.items():
        text = re.sub(rf"^from ({mine}) import", r"from .\1 import", text, flags=re.MULTILINE)
        (home / name).write_text(re.sub(rf"^import ({mine})\b", r"from . import \1", text, flags=re.MULTILINE))
    return len(programs)
