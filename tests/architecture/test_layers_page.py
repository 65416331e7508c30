"""The layers that the pages draw are the layers that the linter enforces."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.pages import ROOT


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/zh/architecture.md"])
def test_the_page_draws_the_layers_that_the_linter_enforces(page: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    enforced = [re.findall(r"\w+", layer) for layer in layers]
    [drawn] = re.findall(r"^```\n(testing .*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert [re.findall(r"\w+", layer) for layer in drawn.split("→")] == enforced
