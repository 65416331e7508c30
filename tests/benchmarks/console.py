"""How long the console takes to show a page, with very many tasks in the store.

    .venv/bin/python -m tests.benchmarks.console --tasks 1000000

Each page is opened in a Chromium that has none of its files yet: until something is painted, and until its first row
(or number, or "nothing here") is there. The installation is `taskframework dev` on SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from playwright.async_api import Browser

from taskframework import Settings, TaskFramework
from tests.benchmarks.growth_filling import SqliteFiller, finished, task_type, waiting
from tests.console.conftest import Installation, chromium_here

_PAGES = {
    "overview": ".tile",
    "tasks": "[data-row]",
    "tasks?status=FAILED": "[data-row]",
    f"tasks?task_type={task_type(0)}": "[data-row]",
    "dead-letters": "[data-row]",
    "queues": "main table, .empty",
}
_ROUNDS = 5
_WAITING = 1000
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def main() -> None:
    """Fill a store, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="how many finished tasks there are")
    number = parser.parse_args().tasks
    with tempfile.TemporaryDirectory(prefix="taskframework-console-") as folder:
        asyncio.run(_fill(Path(folder) / "taskframework.db", number))
        with closing(Installation(Path(folder))) as installation:
            asyncio.run(_measure(installation.url, number))


async def _fill(path: Path, number: int) -> None:
    filler = SqliteFiller(path)
    framework = TaskFramework(Settings.model_validate({"store": {"url": f"sqlite:///{path}"}}))
    async with framework.store_only():
        print(f"filling {number:,} tasks", flush=True)
        await asyncio.to_thread(filler.insert, finished(number, first=0))
        await asyncio.to_thread(filler.insert, waiting(_WAITING))
        await asyncio.to_thread(filler.settle)


async def _measure(url: str, number: int) -> None:
    print(f"{number:,} tasks; the median of {_ROUNDS}, and the longest, in milliseconds")
    print(f"{'page':40} {'first paint':>16} {'content':>16}")
    async with chromium_here() as browser:
        for page, content in _PAGES.items():
            times = [await _open(browser, f"{url}/#/{page}", content) for _ in range(_ROUNDS)]
            painted, filled = ([time[at] for time in times] for at in (0, 1))
            print(f"{page:40} {_told(painted):>16} {_told(filled):>16}", flush=True)


async def _open(browser: Browser, address: str, content: str) -> tuple[float, float]:
    """Milliseconds until something was painted, and until the content was there, in a new browser profile."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        begun = time.perf_counter()
        await page.goto(address)
        await page.locator(content).first.wait_for()
        filled = (time.perf_counter() - begun) * 1000
        return float(await page.evaluate(_PAINT)), filled
    finally:
        await context.close()


def _told(times: list[float]) -> str:
    return f"{statistics.median(times):.0f} ({max(times):.0f})"


if __name__ == "__main__":
    main()
