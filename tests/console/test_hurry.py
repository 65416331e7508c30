"""What happens to an operator in a hurry: lost answers, steps back, and pages that change below a question."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.console.conftest import Installation
from tests.console.window import Window

pytestmark = pytest.mark.asyncio(loop_scope="session")

_LATER = "2035-01-01T00:00:00Z"


async def test_a_question_about_a_page_goes_with_the_page(window: Window, shop: Installation) -> None:
    one, other = (shop.submit("naps", 0, not_before=_LATER) for _ in range(2))
    await window.go(f"tasks/{one}")
    await window.shows(one)
    await window.go(f"tasks/{other}")
    await window.shows(other)
    await window.button("Cancel").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("Cancel this task?")
    await window.page.go_back()
    await window.shows(one)
    await expect(window.page.get_by_role("dialog")).to_have_count(0)
    await window.button("Cancel").click()
    await window.answer("Cancel the task")
    await window.status_is("cancelled")
    assert shop.api.get(f"/tasks/{other}").json()["status"] == "QUEUED"
    shop.api.post(f"/tasks/{other}/cancel", json={}).raise_for_status()
