"""The bill of materials has what users install: all extras with what they need, and nothing that only tests need."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

#: Made by `make audit`, `make sbom` and, in a fresh checkout, by `make check`.
_PYTHON = ROOT / ".venv-audit/bin/python"


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Components by name."""
    if not Path(_PYTHON.parents[1], "bin/cyclonedx-py").exists():
        pytest.skip("make sbom installs what writes it")
    output = tmp_path_factory.mktemp("dist") / "bill.json"
    subprocess.run([_PYTHON, ROOT / ".ci/sbom", ROOT / "requirements.lock", output], check=True)  # checks the schema
    return {component["name"]: component for component in json.loads(output.read_text())["components"]}


def test_the_bill_of_materials_has_every_extra_and_its_dependencies(bill: dict[str, dict[str, object]]) -> None:
    assert bill.keys() >= {"httpx", "aio-pika", "pymongo", "cryptography", "rapidfuzz"}
    assert bill.keys() >= {"httpcore", "multidict", "dnspython", "cffi", "pycparser"}, "needed by these"


def test_the_bill_of_materials_has_no_package_only_for_tests(bill: dict[str, dict[str, object]]) -> None:
    assert not bill.keys() & {"pytest", "mypy", "ruff", "playwright", "hatchling", "packaging", "hypothesis"}


def test_the_bill_of_materials_has_the_scripts_in_the_wheel(bill: dict[str, dict[str, object]]) -> None:
    assert bill["htm"]["purl"] == "pkg:npm/htm@3.1.1"
    files = bill["preact"]["components"]
    assert isinstance(files, list)
    assert [file["name"] for file in files] == ["preact.js", "hooks.js"]
