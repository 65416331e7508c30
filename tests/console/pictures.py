"""`make pictures`: takes the pictures of the console that the documentation shows, in about two minutes."""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from tests.console.conftest import Installation, chromium_here
from tests.console.window import NARROW, Window, opened
from tests.support.process import ServerUnavailable

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_DESKTOP = (1200, 780)
#: Seconds of traffic before the pictures, so that the charts of the overview show a course.
_TRAFFIC_SECONDS = 90
#: Of the orders, three in five have nothing to charge: then the overview says that the type fails.
_AMOUNTS = (0.0, 9.5, 0.0, 12.5, 0.0)


async def _take_all(shop: Installation, browser: Browser) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        async def open_window(**look: Any) -> Window:
            return await stack.enter_async_context(opened(browser, shop.url, **look))

        overview = await open_window(size=_DESKTOP)
        await overview.go("overview")
        await loop.run_in_executor(None, _make_traffic, shop)
        await _take(overview, "overview")

        small = await open_window(size=NARROW, scheme="dark")
        await small.go("tasks")
        await _take(small, "small")

        letter = await open_window(size=_DESKTOP)
        await letter.go(f"dead-letters/{await loop.run_in_executor(None, _fail_order, shop)}")
        await letter.page.get_by_role("textbox").fill('{\n  "order_id": "A-2260",\n  "amount": 12.5\n}')
        await letter.button("Dry run").click()
        await letter.shows("Nothing has been changed yet.")
        # The trace names a temporary folder.
        await letter.page.locator("summary", has_text="Attempt 1").click()
        await _take(letter, "dead-letter")


async def _take(window: Window, name: str) -> None:
    await window.page.screenshot(path=_IMAGES / f"console-{name}.png")


def _make_traffic(shop: Installation) -> None:
    """Submit a few tasks each second; halfway, an operator pauses a type."""
    numbers = itertools.count(1)
    for second in range(_TRAFFIC_SECONDS):
        if second == _TRAFFIC_SECONDS // 2:
            paused = shop.api.post("/admin/queues/mail-letter/pause", json={"reason": "the mail server is down"})
            paused.raise_for_status()
        for amount in _AMOUNTS:
            shop.submit("charge-card", {"order_id": f"A-{next(numbers)}", "amount": amount})
            shop.submit("mail-letter", {"to": f"customer-{next(numbers)}@example.com"})
        time.sleep(1)


def _fail_order(shop: Installation) -> str:
    return shop.ended(shop.submit("charge-card", {"order_id": "A-2260", "amount": 0}), "FAILED")


async def _run() -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Installation(Path(folder))) as shop:
        async with chromium_here() as browser:
            await _take_all(shop, browser)


if __name__ == "__main__":
    try:
        asyncio.run(_run())
    except ServerUnavailable as error:
        sys.exit(str(error))
