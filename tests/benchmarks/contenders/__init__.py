"""The contenders: one file each, run as a program in the environment named here.

To add one: write `<name>.py` with a subclass of `Contender` (or `BlockingContender`) and `program.run(...)` at its end,
name it below, and add its packages to `.ci/bench.in` (`make lock`). To try it: `make bench ARGS="--only <name>"`.
"""

from __future__ import annotations

from collections.abc import Mapping

OURS = "taskframework"
FLOOR = "floor"

#: Name of the file and the virtual environment its program runs in, in the order of the table.
CONTENDERS: Mapping[str, str] = {
    OURS: ".venv",
    "taskiq": ".venv-bench",
    "dramatiq": ".venv-bench",
    "celery": ".venv-bench",
    "arq": ".venv-bench",
    FLOOR: ".venv",
}
#: Ourselves with a setting changed, to see what it is worth. They run only if they are named, next to ourselves:
#: `make bench ARGS="--only taskframework,plain_driver"`.
VARIANTS: Mapping[str, str] = {"plain_driver": ".venv"}
PROGRAMS: Mapping[str, str] = {**CONTENDERS, **VARIANTS}
