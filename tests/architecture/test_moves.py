"""One place makes moves: what the store applies elsewhere only moves a driver, and has no event."""

from __future__ import annotations

import ast

from taskframework.model import attempts, batches, interventions, signals, waiting
from tests.architecture.sources import PACKAGE, modules

_MOVES = {
    name
    for module in (attempts, interventions, waiting, signals, batches)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and "failpoint" in vars(kind)
}


def test_only_task_moves_lets_the_store_apply_a_move() -> None:
    applied = [
        f"{path.relative_to(PACKAGE)}:{call.lineno} {made.func.id}"
        for path in modules()
        if "testing" not in path.parts
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "apply"
        for made in call.args
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Name)
    ]
    assert {"Cancel", "Complete", "Replay", "Reopen"} <= _MOVES
    assert any("MoveDriver" in place for place in applied), "no call found"
    assert [place for place in applied if place.rpartition(" ")[2] in _MOVES] == []
