"""What the demo shows while it runs, and the table at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskframework.cli.demo.outcome import FileOutcome
from taskframework.cli.output import printable, status_text, table
from taskframework.model.status import TaskStatus
