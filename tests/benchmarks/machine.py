"""Where a run took place: what decides about the figures, and nothing that names the machine."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import aiormq

from tests.benchmarks.stage import Stage

_GIBIBYTE = 1024**3


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system and Python."""
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / _GIBIBYTE, 1),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
    }


def servers(stage: Stage) -> dict[str, str]:
    """The versions of the running servers."""
    with stage.mongo.client() as client:
        versions = {"MongoDB": str(client.server_info()["version"]), "RabbitMQ": asyncio.run(_rabbit(stage.rabbit.url))}
    if stage.redis is not None:
        told = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        versions["Redis"] = told.split("v=")[1].split()[0]
    return versions


async def _rabbit(url: str) -> str:
    connection = await aiormq.connect(url)
    version = connection.server_properties["version"]
    await connection.close()
    return version.decode() if isinstance(version, bytes) else str(version)
