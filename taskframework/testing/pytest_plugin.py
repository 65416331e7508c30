"""The pytest plugin, with one fixture. A test that uses the fixture imports everything that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from taskframework.testing.virtual_time import Harness


@pytest.fixture
def taskframework_harness() -> Callable[..., AbstractAsyncContextManager[Harness]]:
    """Return `taskframework.testing.harness`, which the test enters itself. So the fixture needs no event loop, and
    works with pytest-asyncio and with anyio.
    """
    from taskframework.testing.virtual_time import harness

    return harness
