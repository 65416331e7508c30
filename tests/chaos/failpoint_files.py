"""Files by which the stories of the failpoints and their tasks understand each other.

Apart from the tasks, whose module shortens times of the framework in each process that imports it.
"""

from __future__ import annotations

from pathlib import Path

#: Files in the scenario's folder, by which its story tells running tasks what to do.
GO = Path("go")
MENDED = Path("mended")
#: Written down by the task's step.
STEP = "step.done"
