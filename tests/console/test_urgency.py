"""What happens to an operator in a hurry: lost answers, steps back, and pages that change below a question."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.console.conftest import Installation
from tests.console.window import Window, opened
from tests.support.process import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="session")

_LATER = "2035-01-01T00:00:00Z"


async def test_a_run_whose_answer_was_lost_is_made_once(window: Window, shop: Installation) -> None:
    window.expected = ("net::ERR_FAILED",)

    async def lose(route: Route) -> None:
        await route.fetch()
        await route.abort()

    schedule = {"name": "lost", "every": "7d", "task_type": "naps", "parameters": 0, "user_id": "lost-run"}
    assert shop.api.post("/admin/schedules", json=schedule).status_code == 201
    await window.page.route("**/admin/schedules/lost/run", lose, times=1)
    await window.go("schedules/lost")
    await window.button("Run now").click()
    dialog = window.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Run now").click()
    await expect(dialog.get_by_role("alert")).to_have_text("The API does not answer.")
    await window.answer("Run now")
    await window.status_is("completed")
    assert len(shop.api.get("/tasks", params={"user_id": "lost-run"}).json()["items"]) == 1


async def test_the_first_key_is_shown_even_if_the_sign_in_after_it_fails(
    chromium: Browser, own_shop: Installation
) -> None:
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("net::ERR_FAILED",)
        await window.go("keys")
        await window.shows("everyone who can reach this address can do everything")
        await window.page.route("**/api/v1/me", lambda route: route.abort(), times=1)
        await window.button("New key").click()
        await window.page.get_by_role("dialog").locator("[name=principal]").fill("ada")
        await window.page.get_by_role("dialog").get_by_role("button", name="Create the key").click()
        key = await window.page.get_by_label("Key", exact=True).input_value()
        own_shop.api.headers["Authorization"] = f"Bearer {key}"
        assert own_shop.api.get("/me").json()["principal"] == "ada"
        await expect(window.page.locator(".me")).to_contain_text("ada")
        await expect(window.page.get_by_role("dialog")).to_have_count(0)


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


async def test_a_cause_opened_below_a_filter_by_type_shows_only_this_type(window: Window, shop: Installation) -> None:
    # Tasks of several types may have one cause, such as a missed deadline.
    shop.ended(shop.submit("charge-account", {"account": 1, "amount": 0}), "FAILED")
    await window.go("dead-letters?task_type=charge-account")
    await window.page.get_by_role("link", name="there is nothing to charge").click()
    await window.page.get_by_role("table", name="Dead letters").wait_for()
    await expect(window.page.get_by_label("Type")).to_have_value("charge-account")
    await window.button("Replay").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("task_type = charge-account")


async def test_a_caller_that_is_no_operator_is_led_to_the_failed_task_of_a_stream(
    chromium: Browser, own_shop: Installation
) -> None:
    admin = own_shop.api.post("/admin/keys", json={"principal": "ada", "roles": ["admin"]}).json()
    own_shop.api.headers["Authorization"] = f"Bearer {admin['key']}"
    wait_until(lambda: httpx.get(f"{own_shop.url}/api/v1/me").status_code == 401, "keys are needed", timeout=20)
    made = own_shop.api.post("/admin/keys", json={"principal": "sam", "roles": ["submitter"]}).json()
    stream = {"key": "sams", "on_failure": "halt"}
    failed = own_shop.submit("charge-card", {"order_id": "S-1", "amount": 0}, stream=stream, user_id="sam")
    own_shop.ended(failed, "FAILED")
    own_shop.submit("charge-card", {"order_id": "S-2", "amount": 1}, stream=stream, user_id="sam")
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("401",)
        await window.page.goto(f"{own_shop.url}/#/streams?key=sams")
        await window.page.get_by_label("API key").fill(made["key"])
        await window.button("Sign in").click()
        await window.page.get_by_role("link", name="Show the failed task").click()
        await window.status_is("failed")


async def test_a_task_that_is_queued_again_does_not_show_its_old_progress(
    chromium: Browser, own_shop: Installation
) -> None:
    task_id = own_shop.submit("import-rows", {"rows": 1})

    async def queue_again(route: Route) -> None:
        read = await (await route.fetch()).json()
        await route.fulfill(json={**read, "status": "QUEUED", "progress": None, "finished_at": None})

    async with opened(chromium, own_shop.url) as window:
        await window.go(f"tasks/{task_id}")
        await window.shows("25 %")
        own_shop.take_step(1)
        await window.shows("50 %")  # as the stream of the task tells
        await window.page.route(f"**/api/v1/tasks/{task_id}", queue_again)
        own_shop.api.post(f"/tasks/{task_id}/cancel", json={}).raise_for_status()
        await window.status_is("queued")
        await expect(window.page.get_by_text("50 %")).to_have_count(0)


async def test_a_filter_that_was_not_yet_applied_does_not_filter_the_next_page(
    window: Window, shop: Installation
) -> None:
    await window.page.clock.install()
    await window.go("tasks")
    await window.page.get_by_label("User", exact=True).wait_for()
    # At once: before the typed text becomes a filter.
    await window.page.evaluate(
        """() => {
            const field = document.querySelector("input[name=user_id]");
            field.value = "nobody";
            field.dispatchEvent(new Event("input", { bubbles: true }));
            location.hash = "#/dead-letters";
        }"""
    )
    await expect(window.heading).to_have_text("Dead letters")
    await window.page.clock.fast_forward(5_000)  # far longer than a filter waits for the next letter
    assert "nobody" not in window.page.url


async def test_a_task_whose_later_error_matches_the_filter_is_listed(window: Window, shop: Installation) -> None:
    await window.go("tasks?error=nothing&user_id=errs")
    await window.shows("No tasks match.")
    # Later than the look that follows its submission.
    soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
    task_id = shop.submit("charge-card", {"order_id": "soon", "amount": 0}, not_before=soon, user_id="errs")
    await expect(window.page.get_by_role("link", name=task_id[-12:])).to_be_visible()


async def test_a_page_says_that_its_task_cannot_be_read_and_recovers(window: Window, shop: Installation) -> None:
    window.expected = ("404",)
    task_id = shop.failed()
    await window.go(f"tasks/{task_id}")
    await window.status_is("failed")

    async def refuse(route: Route) -> None:
        problem = {
            "status": 404,
            "code": "task_not_found",
            "detail": "There is no such task.",
            "hint": "It was deleted.",
        }
        await route.fulfill(status=404, json=problem, content_type="application/problem+json")

    await window.page.route(f"**/api/v1/tasks/{task_id}", refuse)
    await expect(window.page.get_by_role("alert")).to_contain_text("There is no such task.")
    await window.page.unroute(f"**/api/v1/tasks/{task_id}")
    await expect(window.page.get_by_role("alert")).to_have_count(0)


async def test_a_letter_that_changed_meanwhile_is_replayed_with_the_parameters_that_are_shown(
    window: Window, shop: Installation
) -> None:
    failed = shop.ended(shop.submit("charge-account", {"account": 1, "amount": 0}), "FAILED")

    async def fail_again(account: int) -> None:
        """Somebody else replays it, with other parameters; it fails again, and the page looks at it."""
        body = {"ids": [failed], "parameters": {"account": account, "amount": 0}}
        shop.api.post("/admin/dead-letters/replay", json=body).raise_for_status()
        shop.ended(failed, "FAILED")
        await window.page.clock.fast_forward(6_000)

    await window.page.clock.install()
    await window.go(f"dead-letters/{failed}")
    parameters = window.page.get_by_label("Parameters of the replay")
    await expect(parameters).to_have_value(re.compile('"account": 1,'))
    await fail_again(2)
    await expect(parameters).to_have_value(re.compile('"account": 2,'))
    async with window.page.expect_request("**/admin/dead-letters/replay") as tried:
        await window.button("Dry run").click()
    assert (await tried.value).post_data_json == {"ids": [failed], "dry_run": True}, "with the parameters that it has"

    await parameters.fill('{"account": 3, "amount": 5}')
    await fail_again(4)
    await window.shows("The stored parameters have changed meanwhile.")
    await expect(parameters).to_have_value('{"account": 3, "amount": 5}')
    await window.button("Replay").click()
    await window.answer("Replay")
    await window.status_is("completed")
    assert shop.api.get(f"/tasks/{failed}").json()["result"] == 3


async def test_a_discard_of_what_is_no_longer_a_dead_letter_says_so(window: Window, shop: Installation) -> None:
    failed = shop.ended(shop.submit("charge-account", {"account": 1, "amount": 0}), "FAILED")
    await window.go(f"dead-letters/{failed}")
    await window.button("Discard").click()
    window.expected = ("404",)
    body = {"ids": [failed], "parameters": {"account": 1, "amount": 1}}
    shop.api.post("/admin/dead-letters/replay", json=body).raise_for_status()
    shop.ended(failed, "COMPLETED")
    dialog = window.page.get_by_role("dialog")
    await dialog.locator("[name=reason]").fill("a try")
    await dialog.get_by_role("button", name="Discard").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("COMPLETED")
    await expect(window.page.get_by_text("Discarded.")).to_have_count(0)


async def test_numbers_stay_as_they_are_when_something_else_is_edited(window: Window, shop: Installation) -> None:
    stored = {"account": 1, "amount": -0.0}
    failed = shop.ended(shop.submit("charge-account", stored), "FAILED")
    await window.go(f"dead-letters/{failed}")
    parameters = window.page.get_by_label("Parameters of the replay")
    await expect(parameters).to_have_value('{\n  "account": 1,\n  "amount": -0.0\n}')
    schedule = {"name": "exact", "every": "7d", "task_type": "charge-account", "parameters": stored}
    assert shop.api.post("/admin/schedules", json=schedule).status_code == 201
    await window.go("schedules/exact?form=edit")
    await window.page.locator("main form [name=every]").fill("8d")
    await window.button("Save").click()
    await window.shows("every 8d")
    await window.shows("run the last one")  # in the words of the form
    assert '"parameters":{"account":1,"amount":-0.0}' in shop.api.get("/admin/schedules/exact").text


async def test_a_browser_that_rounds_a_number_does_not_save_it(window: Window, shop: Installation) -> None:
    stored = {"account": 2**60 + 1, "amount": 1}
    schedule = {"name": "large", "every": "7d", "task_type": "charge-account", "parameters": stored}
    assert shop.api.post("/admin/schedules", json=schedule).status_code == 201
    await window.page.add_init_script("delete JSON.rawJSON")
    await window.go("schedules/large?form=edit")
    await window.page.locator("main form [name=every]").fill("8d")
    await window.button("Save").click()
    await expect(window.page.get_by_role("alert")).to_contain_text("This browser would change the number")
    kept = shop.api.get("/admin/schedules/large").json()
    assert (kept["every"], kept["parameters"]) == ("7d", stored)


async def test_all_results_of_a_stream_are_listed(window: Window, shop: Installation) -> None:
    stream = {"key": "long", "mode": "ordered_results"}
    ids = [shop.submit("naps", 0, stream=stream, user_id="many") for _ in range(120)]
    for task_id in ids:
        shop.ended(task_id, "COMPLETED")
    await window.go("streams?key=long&user_id=many")
    table = window.page.get_by_role("table", name="Results")
    await table.wait_for()
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(table).to_have_attribute("aria-rowcount", "121")
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(table.get_by_role("link", name="119")).to_have_attribute("href", f"#/tasks/{ids[119]}")


async def test_streams_that_were_left_leave_nothing_behind(window: Window, shop: Installation) -> None:
    one, other = (shop.submit("naps", 0, not_before=_LATER) for _ in range(2))
    await window.page.clock.install()
    for task_id in (one, other):
        await window.go(f"tasks/{task_id}")
        await window.shows(task_id)
        await expect(window.page.locator(".state")).to_have_text("Live")
    await window.page.clock.fast_forward(60_000)  # longer than a stream may be silent
    await window.shows(other)
    for task_id in (one, other):
        shop.api.post(f"/tasks/{task_id}/cancel", json={}).raise_for_status()


async def test_a_page_that_comes_while_the_list_is_read_again_stays(window: Window, shop: Installation) -> None:
    again, release, third = (asyncio.Event() for _ in range(3))
    looks = 0

    def answer(first: int, last: int) -> dict[str, Any]:
        return {
            "items": [_worker(number) for number in range(first, last)],
            "next_cursor": None if last == 200 else "c",
        }

    async def serve(route: Route) -> None:
        nonlocal looks
        if "cursor=" in route.request.url:
            await again.wait()
            await route.fulfill(json=answer(100, 200))
            return
        looks += 1
        if looks == 2:
            again.set()
            await release.wait()
        elif looks > 2:
            third.set()
        await route.fulfill(json=answer(0, 200 if "limit=200" in route.request.url else 100))

    await window.page.route("**/admin/workers?*", serve)
    await window.go("workers")
    table = window.page.get_by_role("table", name="Workers")
    await table.wait_for()
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(table).to_have_attribute("aria-rowcount", "201")
    await window.page.evaluate(
        """() => {
            const table = document.querySelector("table");
            window.counts = [];
            new MutationObserver(() => window.counts.push(table.getAttribute("aria-rowcount")))
                .observe(table, { attributeFilter: ["aria-rowcount"] });
        }"""
    )
    release.set()
    await asyncio.wait_for(third.wait(), 20)
    assert await window.page.evaluate("window.counts") == []


def _worker(number: int) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    return {
        "worker_id": f"w-{number:03}", "host": "h", "pid": 1, "release": "1", "task_types": [], "concurrency": 1,
        "in_flight": 0, "started_at": now, "seen_at": now, "is_lost": False,
    }  # fmt: skip
