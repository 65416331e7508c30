"""A window of the browser, and what must never happen in one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, Locator, Page, expect

#: Milliseconds until something is on the page, on a machine that has much else to do.
PATIENCE = 30_000
expect.set_options(timeout=PATIENCE)
WIDE, NARROW = (1280, 800), (360, 740)
#: What browsers leave out of pages that came over plain HTTP from another machine, as they do on many an intranet.
_WITHOUT_TLS = (
    "delete Crypto.prototype.randomUUID; delete Crypto.prototype.subtle; delete Navigator.prototype.clipboard"
)


class Window:
    """A page of the console, with what its reader does."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        #: What the page said on the console of the browser, and what it asked other hosts for.
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        #: Parts of complaints that belong to the test: the browser itself tells of each request that is refused.
        self.expected: tuple[str, ...] = ()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._see)

    async def go(self, place: str) -> None:
        await self.page.goto(f"{self.url}/#/{place}")
        await expect(self.heading).to_be_visible()

    @property
    def heading(self) -> Locator:
        return self.page.get_by_role("heading", level=1)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def answer(self, name: str, **fields: str) -> None:
        """Fill in the question that is asked, and press a button of it."""
        dialog = self.page.get_by_role("dialog")
        for field, value in fields.items():
            await dialog.locator(f"[name={field}]").fill(value)
        await dialog.get_by_role("button", name=name).click()
        await expect(dialog).to_have_count(0)

    async def shows(self, text: str, *, times: int | None = None) -> None:
        found = self.page.locator("main").get_by_text(text)
        await (expect(found.first).to_be_visible() if times is None else _counted(found, times))

    async def status_is(self, status: str) -> None:
        await expect(self.page.locator(".head .status")).to_have_text(status)

    async def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    async def run(self, function: str, *arguments: Any) -> Any:
        """What a function gives in the page."""
        return await self.page.evaluate(function, list(arguments))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _see(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:")):
            self.foreign.append(request.url)


async def _counted(found: Locator, times: int) -> None:
    await expect(found).to_have_count(times)


@asynccontextmanager
async def opened(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = WIDE,
    scheme: Any = "light",
) -> AsyncIterator[Window]:
    """A window of the console. Nothing that it complained of may be left, and nothing that it asked of other hosts.

    Args:
        browser: the browser.
        url: of the API.
        size: of the window, in pixels.
        scheme: of its colours.
    """
    context: BrowserContext = await browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
    )
    await context.add_init_script(_WITHOUT_TLS)
    try:
        window = Window(await context.new_page(), url)
        yield window
        wrong = [text for text in window.complaints if not any(part in text for part in window.expected)]
        assert not wrong + window.foreign, wrong + window.foreign
    finally:
        await context.close()
