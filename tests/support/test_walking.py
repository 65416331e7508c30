"""The walk through a page finds what does not come out as printed."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.pages import Kind, steps_of
from tests.support.walking import Walk, WalkFailed

PAGE = """
# A page

Save this as `greeting.py`:

```python
TEXT = "hello"
```

```python
from greeting import TEXT

assert TEXT == "hello"
```

```console
$ who=world
$ echo "hello $who," \\
       0199c5f6-0b0c-75b4-98b2-f179fab34fe1
hello …, 0199…
$ echo TASK_ID of there:8000; exit 3     # exit code 3
0199c5f6-… of here:1
$ echo Listening; sleep 600              # until Ctrl-C
```

Stop it with Ctrl-C.
"""


def walk(folder: Path, page: str) -> None:
    text = folder.parent / "page.md"
    text.write_text(page)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with closing(Walk(text, folder, {**os.environ, "PATH": path}, {"there:8000": "here:1"})) as walk:
        for step in steps_of(page):
            walk.take(step)
        walk.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "empty").mkdir()
    return folder


def test_a_page_that_behaves_as_printed_passes(folder: Path) -> None:
    kinds = [step.kind for step in steps_of(PAGE)]
    assert kinds == [Kind.SAVE, Kind.PROGRAM, *[Kind.TYPE] * 4, Kind.STOP]
    walk(folder, PAGE)


@pytest.mark.parametrize(
    ("printed", "instead"),
    [
        ('TEXT = "hello"', 'TEXT = "good evening"'),
        ("from greeting import TEXT", ""),
        ("hello …, 0199…", "good evening …"),
        ("# exit code 3", ""),
        ("echo Listening; sleep 600", "exit"),
        ("`greeting.py`:", "another name"),
    ],
)
def test_a_page_that_behaves_in_another_way_fails(folder: Path, printed: str, instead: str) -> None:
    with pytest.raises(WalkFailed):
        walk(folder, PAGE.replace(printed, instead, 1))


def test_a_block_that_nobody_would_use_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a file's name"):
        steps_of("```yaml\nbroker: {}\n```\n")


def test_ctrl_c_stops_the_named_one_of_several_commands(folder: Path) -> None:
    page = """
```console
$ trap 'touch first' INT; echo Listening; sleep 600      # until Ctrl-C
$ trap 'touch second' INT; echo Listening; sleep 600     # until Ctrl-C
```

Stop only `first` with Ctrl-C.

```console
$ test -e first -a ! -e second
```
"""
    walk(folder, page)
    assert (folder / "second").exists()
    with pytest.raises(WalkFailed, match="no third goes on"):
        walk(folder, page.replace("`first`", "`third`"))
