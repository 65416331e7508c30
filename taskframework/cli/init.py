"""`init`: makes a project with a task, its tests and its settings, which runs without changes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from taskframework.cli.output import printable, say
from taskframework.errors import TaskframeworkError

#: The template is a working project, checked by the same linters as all other code. Only its name is replaced.
_TEMPLATE = Path(__file__).with_name("new-project")
_TEMPLATE_NAME = "my-project"
#: A folder that Python leaves next to imported modules.
_BYTECODE_FOLDER = "__pycache__"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder; created if it does not exist.")
    ] = Path(),
) -> None:
    """Create a project that runs: a task, its tests, settings, and a compose file. Nothing is overwritten."""
    files = _template_files()
    _refuse_to_overwrite(folder, files)
    name = _project_name(folder)
    try:
        for file in files:
            (target := folder / file).parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as target_file:
                target_file.write((_TEMPLATE / file).read_text(encoding="utf-8").replace(_TEMPLATE_NAME, name))
    except OSError as error:
        raise TaskframeworkError(
            f"{printable(str(error.filename or folder))} cannot be written: {(error.strerror or '').lower()}.",
            hint="Choose a folder that you can write to.",
        ) from error
    where = "" if folder.resolve().name == name else f" in {printable(str(folder))}"
    say(f"Created {name}{where}: {', '.join(map(str, files))}")
    _print_next_steps(folder)


def _template_files() -> list[Path]:
    """The files of the project, below its folder."""
    found = (path.relative_to(_TEMPLATE) for path in _TEMPLATE.rglob("*") if path.is_file())
    return sorted(path for path in found if _BYTECODE_FOLDER not in path.parts)


def _refuse_to_overwrite(folder: Path, files: Sequence[Path]) -> None:
    """Check before anything is written, so that a project is made whole or not at all.

    Raises:
        TaskframeworkError: if something exists in the place of a file or folder of the project.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise TaskframeworkError(
            f"{printable(str(folder))} is a file.", hint="Choose a folder that is empty or does not exist yet."
        )
    existing = [str(file) for file in files if os.path.lexists(folder / file)]
    existing += sorted({str(parent) for file in files for parent in file.parents[:-1] if (folder / parent).is_file()})
    if existing:
        raise TaskframeworkError(
            f"{printable(str(folder.absolute()))} already has {', '.join(existing)}, so nothing was created.",
            hint="Choose a folder that is empty or does not exist yet.",
        )


def _project_name(folder: Path) -> str:
    """The folder's name in the form of a package name; without letters or digits, the name of the template."""
    return re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or _TEMPLATE_NAME


def _print_next_steps(folder: Path) -> None:
    say("Next:")
    if folder.absolute() != Path.cwd():
        say(f"  cd {printable(shlex.quote(str(folder)))}")
    say("  taskframework dev     # API, worker and console; until Ctrl-C")
    say("""  taskframework submit count-words '"one two three"' --wait     # in another terminal""")
    say("  python -m pytest     # after: python -m pip install pytest pytest-asyncio")
