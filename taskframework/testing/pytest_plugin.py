"""The pytest plugin: a fixture, and nothing else. What it needs is imported by the test that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from taskframework.testing.virtual_time import Harness


@pytest.fixture
def taskframework_harness() -> Callable[..., AbstractAsyncContextManager[Harness]]:
    """`taskframework.testing.harness`, to be entered in the test: the fixture itself needs no event loop, so that it
    works with pytest-asyncio and with anyio.
    """
    from taskframework.testing.virtual_time import harness

    return harness
