"""One Chromium for all tests of the console, and installations that it looks at."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.conftest import _unavailable
from tests.console.window import Window, opened
from tests.support.command import Folder, Started
from tests.support.process import ServerUnavailable, free_ports, wait_until

#: As root in a container there is no sandbox; and a browser of its own looks for updates and for its maker's hosts.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TASKS = Path(__file__).parents[1] / "support" / "console_tasks.py"


class Installation:
    """`taskframework dev` in a folder of its own, always at the same port, and a client that is no browser."""

    def __init__(self, path: Path) -> None:
        self.path = path
        [self.port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        shutil.copy(_TASKS, path / "shop.py")
        self.folder = Folder(path)
        self.api = httpx.Client(base_url=f"{self.url}/api/v1", trust_env=False, timeout=20)
        self.start()

    def start(self) -> None:
        self.process: Started = self.folder.start("dev", "--app", "shop", "--port", str(self.port))
        self.process.event("ready")

    def submit(self, task_type: str, parameters: object, **options: object) -> str:
        answer = self.api.post("/tasks", json={"task_type": task_type, "parameters": parameters, **options})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["task_id"])

    def ended(self, task_id: str, status: str) -> str:
        """The id, once the task has this status."""
        wait_until(lambda: self.api.get(f"/tasks/{task_id}").json()["status"] == status, status, timeout=20)
        return task_id

    def failed(self, count: int = 1) -> str:
        """The id of the last of some tasks that failed of one cause."""
        ids = [self.submit("charge-card", {"order_id": f"A-{number}", "amount": 0}) for number in range(count)]
        return [self.ended(task_id, "FAILED") for task_id in ids][-1]

    def take_step(self, number: int) -> None:
        """Let the tasks that import rows go on."""
        (self.path / f"step-{number}").touch()

    def close(self) -> None:
        self.api.close()
        self.folder.close()


@asynccontextmanager
async def chromium_here() -> AsyncIterator[Browser]:
    """The browser of this machine.

    Raises:
        ServerUnavailable: if it has none.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise ServerUnavailable("no Chromium on this machine: `make servers` installs it")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def chromium() -> AsyncIterator[Browser]:
    try:
        async with chromium_here() as browser:
            yield browser
    except ServerUnavailable as error:
        _unavailable(str(error))


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation for all tests that leave it running."""
    installation = Installation(tmp_path_factory.mktemp("shop"))
    yield installation
    installation.close()


@pytest.fixture
def own_shop(tmp_path: Path) -> Iterator[Installation]:
    """An installation for one test."""
    installation = Installation(tmp_path)
    yield installation
    installation.close()


@pytest_asyncio.fixture(loop_scope="session")
async def window(chromium: Browser, shop: Installation) -> AsyncIterator[Window]:
    """A window of the shop's console; at its end nothing may have gone wrong in it."""
    async with opened(chromium, shop.url) as window:
        yield window
