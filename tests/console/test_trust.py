"""What an operator must be able to believe: numbers as they are, lists without holes, and what is away is said."""

from __future__ import annotations

import json
import os
import re
import signal
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from taskframework.testing.eventually import eventually
from tests.console.conftest import Installation
from tests.console.window import Window, opened
from tests.support.process import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: JavaScript would make 1152921504606847000 of it.
LARGE = 2**60 + 1


async def test_a_large_number_is_shown_and_sent_as_it_is(window: Window, shop: Installation) -> None:
    failed = shop.submit("charge-account", {"account": LARGE, "amount": 0})
    shop.ended(failed, "FAILED")
    await window.go(f"tasks/{failed}")
    await expect(window.page.get_by_label("Parameters", exact=True)).to_contain_text(str(LARGE))
    await window.go(f"dead-letters/{failed}")
    editor = window.page.get_by_label("Parameters of the replay")
    await expect(editor).to_have_value(f'{{\n  "account": {LARGE},\n  "amount": 0\n}}')
    await editor.fill(json.dumps({"account": LARGE, "amount": 7}))
    await window.button("Replay").click()
    await window.answer("Replay", reason="the amount was missing")
    await window.status_is("completed")
    assert shop.api.get(f"/tasks/{failed}").json()["result"] == LARGE
    await expect(window.page.get_by_label("Result", exact=True)).to_contain_text(str(LARGE))

    await window.go("submit?task_type=charge-account")
    await window.page.get_by_label("Parameters", exact=True).fill(f'{{"account": {LARGE}, "amount": 1.0}}')
    await window.button("Submit").click()
    await window.status_is("completed")
    made = window.page.url.rpartition("/")[2]
    assert f'"parameters":{{"account":{LARGE},"amount":1.0}}' in shop.api.get(f"/tasks/{made}").text


async def test_text_cannot_change_the_order_in_which_it_is_read(window: Window, shop: Installation) -> None:
    failed = shop.submit("fails-with", "paid \u202e0001\u202c \u2066euro\u2069")
    shop.ended(failed, "FAILED")
    for place in (f"tasks/{failed}", "dead-letters?task_type=fails-with", f"dead-letters/{failed}"):
        await window.go(place)
        await expect(window.page.get_by_text("paid \ufffd0001\ufffd \ufffdeuro\ufffd").first).to_be_visible()
        content = await window.page.locator("main").inner_text()
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", content), ascii(content)
    editor = window.page.get_by_label("Parameters of the replay")
    await expect(editor).to_have_value(r'"paid \u202e0001\u202c \u2066euro\u2069"')
    await editor.fill(r'"again \u202e0002"')
    await window.button("Replay").click()
    await window.answer("Replay", reason="another text")
    await window.status_is("failed")
    assert shop.api.get(f"/tasks/{failed}").json()["parameters"] == "again \u202e0002"


async def test_an_error_is_shown_once_and_by_its_class_if_it_has_no_message(window: Window, shop: Installation) -> None:
    shop.ended(shop.submit("fails-with", ""), "FAILED")
    await window.go("dead-letters?task_type=fails-with")
    await expect(window.page.locator("[data-row] b")).to_have_text("NonRetryableError")
    long = shop.submit("fails-with", "no room left " * 250)
    shop.ended(long, "FAILED")
    for place in (f"tasks/{long}", f"dead-letters/{long}"):
        await window.go(place)
        await expect(window.page.locator(".trace")).to_be_visible()
        await expect(window.page.locator(".failure p", has_text="no room left")).to_have_count(1)


async def test_a_long_list_follows_what_happens_and_has_no_holes(window: Window, shop: Installation) -> None:
    def submit(count: int) -> None:
        later = {"task_type": "naps", "parameters": 0, "user_id": "hole", "not_before": "2035-01-01T00:00:00Z"}
        assert shop.api.post("/tasks/bulk", json={"tasks": [later] * count}).status_code == 200

    async def rows() -> int:
        count = await window.page.get_by_role("table", name="Tasks").get_attribute("aria-rowcount")
        return int(count or 0) - 1

    submit(150)
    await window.go("tasks?user_id=hole")
    await window.page.locator("[data-row]").first.wait_for()
    submit(1)
    newest = shop.api.get("/tasks", params={"user_id": "hole", "limit": 1}).json()["items"][0]["task_id"]
    await window.page.get_by_role("link", name=newest[-12:]).wait_for()  # by itself: the reader is at the top
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await eventually(lambda: _is(rows, 151), timeout=20)
    submit(40)
    await window.button("Show new tasks").click()
    await expect(window.heading).to_be_focused()
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await eventually(lambda: _is(rows, 191), timeout=20)


async def _is(rows: Any, wanted: int) -> bool:
    return bool(await rows() == wanted)


async def test_a_discarded_dead_letter_leaves_a_long_list(window: Window, shop: Installation) -> None:
    tasks = [{"task_type": "mail-letter", "parameters": {"to": f"nobody-{n}"}} for n in range(130)]
    assert shop.api.post("/tasks/bulk", json={"tasks": tasks}).status_code == 200
    failed = "/tasks?status=FAILED&task_type=mail-letter&limit=500"
    wait_until(lambda: len(shop.api.get(failed).json()["items"]) >= 130, "they failed", timeout=30)
    await window.go("dead-letters?task_type=mail-letter&view=each")
    await window.page.locator("[data-row]").first.wait_for()
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    table = window.page.get_by_role("table", name="Dead letters")
    await expect(table).not_to_have_attribute("aria-rowcount", "-1")
    await window.button("Discard").click()
    await window.answer("Discard", reason="a test")
    await window.shows("No dead letters match.")


async def test_a_cancelled_batch_is_shown_to_its_end(window: Window, shop: Installation) -> None:
    batch = shop.api.post("/batches", json={"task_type": "stubborn", "items": [1] * 6}).json()["batch_id"]
    await window.go(f"batches/{batch}")
    await window.page.get_by_role("row").filter(has_text="running").first.wait_for()
    await window.button("Cancel").click()
    await window.answer("Cancel the batch")
    await window.status_is("cancelled")
    await expect(window.page.get_by_role("row").filter(has_text="cancelled")).to_have_count(6)
    await expect(window.page.locator(".big-progress")).to_contain_text("100 %")


async def test_a_finished_task_that_somebody_replays_is_seen_in_all_windows(
    chromium: Browser, window: Window, shop: Installation
) -> None:
    failed = shop.failed()
    await window.go(f"tasks/{failed}")
    await window.status_is("failed")
    async with opened(chromium, shop.url) as other:
        other.expected = ("404",)
        await other.go(f"dead-letters/{failed}")
        await other.button("Replay").wait_for()
        edited = {"ids": [failed], "parameters": {"order_id": "A-9", "amount": 5}}
        assert shop.api.post("/admin/dead-letters/replay", json=edited).json()["replayed"] == 1
        await window.status_is("completed")
        await other.shows("This is no longer a dead letter")
        await expect(other.button("Replay")).to_have_count(0)


async def test_a_task_that_retries_in_an_hour_is_tried_now_by_one_button(window: Window, shop: Installation) -> None:
    task_id = shop.ended(shop.submit("later", None), "RETRYING")
    await window.go(f"tasks/{task_id}")
    await window.status_is("retrying")
    await window.button("Try again now").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("Attempts left: 4")
    await window.answer("Try again now")
    await window.status_is("completed")
    await expect(window.page.locator(".timeline").get_by_text("retry requested")).to_be_visible()


async def test_only_actions_that_fit_the_tasks_of_a_list_are_offered(window: Window, shop: Installation) -> None:
    retry, cancel = window.button("Retry all of these"), window.button("Cancel all of these")
    for status, offered in (("QUEUED", (0, 1)), ("RETRYING", (1, 1)), ("FAILED", (1, 0)), ("COMPLETED", (0, 0))):
        await window.go(f"tasks?status={status}")
        await expect(window.page.get_by_label("Status")).to_have_value(status)
        assert (await retry.count(), await cancel.count()) == offered, status


async def test_a_page_says_that_the_store_or_api_is_away_and_recovers(
    chromium: Browser, own_shop: Installation
) -> None:
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("Failed to load resource", "net::ERR")
        task_id = own_shop.submit("naps", 0)
        await window.go(f"tasks/{own_shop.ended(task_id, 'COMPLETED')}")
        await window.status_is("completed")
        await expect(window.page.get_by_text("Reading …")).to_have_count(0)

        async def store_is_away(route: Route) -> None:
            problem = {
                "detail": "The store is away, full or too slow.",
                "code": "store_unavailable",
                "hint": "Repeat it.",
            }
            await route.fulfill(status=503, json=problem)

        await window.page.route("**/api/v1/**", store_is_away)
        banner = window.page.get_by_role("alert")
        await expect(banner).to_contain_text("The store is away, full or too slow. taskframework doctor says what to")
        await expect(banner).to_contain_text("The page shows the last known state")
        await window.page.goto(f"{window.url}/#/batches")
        await expect(banner).to_contain_text("What is missing here could not be read yet; it comes when")
        await window.page.goto(f"{window.url}/#/tasks/{task_id}")
        await window.page.unroute_all()
        await expect(window.page.get_by_text("The store is away")).to_have_count(0)

        os.kill(own_shop.process.pid, signal.SIGSTOP)  # it holds its connections, and says nothing
        try:
            await window.shows("The API does not answer. Check that the process of the API runs")
        finally:
            os.kill(own_shop.process.pid, signal.SIGCONT)
        await expect(window.page.get_by_text("The API does not answer.")).to_have_count(0)


async def test_a_submission_whose_answer_was_lost_is_made_once(window: Window, shop: Installation) -> None:
    window.expected = ("net::ERR_FAILED",)
    left = 1

    async def lose(route: Route) -> None:
        nonlocal left
        if route.request.method != "POST" or not left:
            await route.continue_()
            return
        left -= 1
        await route.fetch()
        await route.abort()

    await window.page.route("**/api/v1/tasks", lose)
    await window.go("submit?task_type=charge-card")
    await window.page.get_by_label("Parameters", exact=True).fill('{"order_id": "lost answer", "amount": 5}')
    await window.button("Submit").click()
    await window.shows("The API does not answer.")
    await expect(window.page.get_by_text("The API does not answer.")).to_have_count(0)  # nothing else asks on this page
    await window.button("Submit").click()
    await window.status_is("completed")
    listed = shop.api.get("/tasks", params={"task_type": "charge-card", "limit": 500}).json()["items"]
    assert len([task for task in listed if task["parameters"]["order_id"] == "lost answer"]) == 1


async def test_after_a_question_the_focus_is_where_it_was(window: Window, shop: Installation) -> None:
    await window.go("queues")
    row = window.page.get_by_role("row").filter(has_text="naps")
    button = row.get_by_role("button")
    await button.focus()
    for answer in ("Escape", "Enter"):
        await window.page.keyboard.press("Enter")
        await window.page.get_by_role("dialog").wait_for()
        await window.page.keyboard.press(answer)
        await expect(window.page.get_by_role("dialog")).to_have_count(0)
        await expect(button).to_be_focused()
    await expect(row).to_contain_text("paused")
    shop.api.post("/admin/queues/naps/resume")
    await window.go("schedules")
    await window.page.keyboard.press("n")
    await expect(window.heading).to_have_text("New schedule")
    await expect(window.heading).to_be_focused()


@pytest.mark.parametrize("place", ["tasks", "dead-letters", "dead-letters?view=each", "workers"])
async def test_the_way_back_leads_to_the_row_from_which_one_left(
    window: Window, shop: Installation, place: str
) -> None:
    shop.failed(2)
    await window.go(place)
    row = window.page.locator("[data-row]").first
    await row.wait_for()
    await window.page.keyboard.press("j")
    await expect(row).to_be_focused()
    await window.page.keyboard.press("Enter")
    await expect(window.page).not_to_have_url(f"{window.url}/#/{place}")
    await expect(window.page.get_by_text("Reading …")).to_have_count(0)
    await expect(window.heading).to_be_focused()
    left = await window.page.evaluate("location.hash")
    await window.page.go_back()
    await expect(window.page.locator(f"[data-row][href='{left}']")).to_be_focused()


async def test_a_replay_says_how_many_would_be_refused(window: Window, shop: Installation) -> None:
    wanted = {"task_type": "mail-letter", "policy": "allow_failures", "user_id": "refused"}
    batch = shop.api.post("/batches", json={"items": [{"to": "nobody at all"}] * 2, **wanted})
    path = f"/batches/{batch.json()['batch_id']}"
    wait_until(lambda: shop.api.get(path).json()["status"] == "COMPLETED_WITH_ERRORS", "it is over", timeout=20)
    own = shop.submit("mail-letter", {"to": "nobody at all"}, user_id="refused")
    shop.ended(own, "FAILED")
    await window.go("dead-letters?user_id=refused&view=each")
    await window.button("Replay").click()
    dialog = window.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Replay 1 dead letter?")
    await expect(dialog).to_contain_text("2 more are refused, such as: ")
    await window.page.keyboard.press("Escape")


async def test_a_caller_that_signs_in_sees_nothing_of_the_caller_before(
    chromium: Browser, own_shop: Installation
) -> None:
    keys = {}
    headers: dict[str, str] = {}
    for role in ("admin", "operator", "reader"):
        made = own_shop.api.post("/admin/keys", json={"principal": role, "roles": [role]}, headers=headers).json()
        keys[role] = made
        headers = {"Authorization": f"Bearer {keys['admin']['key']}"}
    own_shop.api.headers.update(headers)
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("401",)
        await window.page.goto(f"{own_shop.url}/#/queues")
        await _sign_in(window, "tf_ключ", "This key is not valid")
        await _sign_in(window, keys["operator"]["key"])
        await window.page.get_by_role("row").filter(has_text="naps").get_by_role("button").click()
        await window.page.get_by_role("dialog").wait_for()
        own_shop.api.delete(f"/admin/keys/{keys['operator']['prefix']}")
        await _sign_in(window, keys["reader"]["key"])
        await expect(window.page.locator(".me")).to_contain_text("reader")
        await expect(window.page.get_by_role("dialog")).to_have_count(0)
        await window.go("overview")
        failed = own_shop.submit("gives-up", 1, user_id="reader")
        own_shop.ended(failed, "DEAD_LETTER")
        await window.page.get_by_role("table", name="Failed").get_by_role("link", name=failed[-12:]).wait_for()


async def _sign_in(window: Window, key: str, said: str = "") -> None:
    await window.page.get_by_label("API key").fill(key)
    await window.button("Sign in").click()
    if said:
        await window.shows(said)
    else:
        await window.page.locator(".me").wait_for()


async def test_events_that_came_while_paused_are_counted(window: Window, shop: Installation) -> None:
    await window.go("events?task_type=charge-card")
    await expect(window.page.locator(".state")).to_have_text("Live")
    await window.button("Pause").click()
    await window.shows("Paused; 0 new since then.")
    shop.ended(shop.submit("charge-card", {"order_id": "E", "amount": 1}), "COMPLETED")
    await window.shows("Paused; 3 new since then.")  # submitted, started, completed


async def test_a_running_task_shows_its_progress_and_not_its_old_error(window: Window, shop: Installation) -> None:
    task_id = shop.submit("second-try", None)
    await window.go("tasks?task_type=second-try")
    row = window.page.get_by_role("row").filter(has_text=task_id[-12:])
    await expect(row).to_contain_text("40 %")
    await window.go(f"tasks/{task_id}")
    await expect(window.page.locator(".big-progress")).to_contain_text('"step":"reading"')
    await window.button("Cancel").click()
    await window.answer("Cancel the task")
    await window.status_is("cancelled")


async def test_a_request_that_is_refused_as_too_frequent_is_repeated(window: Window, shop: Installation) -> None:
    window.expected = ("429",)
    refused = 2

    async def too_many(route: Route) -> None:
        nonlocal refused
        if not refused:
            await route.continue_()
            return
        refused -= 1
        told = {"detail": "too many", "code": "too_many_requests"}
        await route.fulfill(status=429, headers={"Retry-After": "1"}, json=told)

    await window.page.route("**/api/v1/tasks?*", too_many)
    task_id = shop.submit("naps", 0)
    await window.go("tasks?task_type=naps")
    await window.page.get_by_role("link", name=task_id[-12:]).wait_for()


async def test_a_press_that_is_refused_before_its_question_says_why(window: Window) -> None:
    window.expected = ("429",)

    async def too_many(route: Route) -> None:
        told = {"detail": "Too many requests.", "hint": "Repeat it later.", "code": "too_many_requests"}
        await route.fulfill(status=429, json=told)

    await window.page.route("**/api/v1/admin/keys?limit=1", too_many)
    await window.go("keys")
    await window.button("New key").click()
    await expect(window.page.locator(".messages")).to_contain_text("Too many requests. Repeat it later.")


async def test_an_answer_without_a_reason_says_where_one_may_be(window: Window) -> None:
    window.expected = ("500",)

    async def broken(route: Route) -> None:
        await route.fulfill(status=500, body="<h1>Internal error</h1>")

    await window.page.route("**/api/v1/admin/limits?*", broken)
    await window.go("limits")
    await window.shows("The answer gives no reason. The logs of the API, or of a proxy before it, may say more.")


_CUT = """cells => cells.filter(one => {
  const [own, cell] = [one, one.closest("td")].map(it => it.getBoundingClientRect());
  return own.right > cell.right;
}).map(one => one.textContent)"""


async def test_long_words_are_whole_in_a_small_window(chromium: Browser, shop: Installation) -> None:
    assert shop.api.post("/batches", json={"task_type": "naps", "items": [0]}).status_code == 202
    async with opened(chromium, shop.url, size=(360, 740)) as window:
        for place, name in (("workers", "Workers"), ("batches", "Batches")):
            await window.go(place)
            cells = window.page.get_by_role("table", name=name).locator("td b, td .status")
            await cells.first.wait_for()
            cut = await cells.evaluate_all(_CUT)
            assert cut == [], place


async def test_old_numbers_say_how_old_they_are(window: Window) -> None:
    async def counted_long_ago(route: Route) -> None:
        overview = await (await route.fetch()).json()
        ago = datetime.fromisoformat(overview["at"]) - timedelta(seconds=12)
        await route.fulfill(json={**overview, "counted_at": ago.isoformat()})

    await window.go("overview")
    old = window.page.get_by_text("Queued tasks and dead letters as of 12 s ago.")
    await expect(old).to_be_hidden()
    await window.page.route("**/api/v1/admin/overview", counted_long_ago)
    await expect(old).to_be_visible()
