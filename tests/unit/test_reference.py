"""The pages that are made from the code are current, and tell of all there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import taskframework
from docs.generator.drawing import Box
from docs.generator.errors import PAGES as PAGES_OF_CODES
from docs.generator.errors import TASK_PAGES
from docs.generator.pages import PAGES
from docs.generator.pictures import PICTURES
from docs.generator.places import file_of, picture_of
from taskframework.api.codes import CODES, TASK_CODES
from taskframework.model.drivers import DRIVERS
from taskframework.model.status import TaskStatus

_PACKAGE = Path(taskframework.__file__).parent
#: Where the code of a task's error is said.
_SAID = re.compile(r"(?:framework_error|failure)\((?:[^()]|\([^()]*\))*\)")
_CODE = re.compile(r'"([a-z]+(?:_[a-z]+)*)"')


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    assert file_of(name).read_text(encoding="utf-8") == PAGES[name](), "Renew it: make docs"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_current(name: str) -> None:
    assert picture_of(name).read_text(encoding="utf-8") == PICTURES[name].svg(), "Renew it: make docs"


def test_the_picture_of_a_life_has_every_status() -> None:
    boxes = {part.text for part in PICTURES["life"].parts if isinstance(part, Box)}
    assert boxes == {str(status) for status in TaskStatus}


def test_the_picture_of_the_repairs_names_fields_of_drivers() -> None:
    named = {
        name
        for part in PICTURES["repairs"].parts
        if isinstance(part, Box) and part.kind == "place"
        for name in part.text.split(", ")
    }
    assert named <= {driver.field for driver in DRIVERS}


def test_every_error_of_a_task_has_its_code_in_the_table() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted(_PACKAGE.glob("[mw]*/*.py"))]  # model, worker
    said = {code for source in sources for call in _SAID.findall(source) for code in _CODE.findall(call)}
    assert said | {"execution_error", "invalid_parameters"} == TASK_CODES.keys()


def test_every_code_leads_to_a_page() -> None:
    assert PAGES_OF_CODES.keys() == CODES.keys()
    assert TASK_PAGES.keys() == TASK_CODES.keys()
