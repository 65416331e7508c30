"""What an operator does with the console, in a real browser against a real installation."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.async_api import Browser, Route, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from tests.console.conftest import Installation
from tests.console.window import NARROW, Window, opened
from tests.support.process import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_task_is_submitted_and_watched_to_its_end(window: Window, shop: Installation) -> None:
    window.expected = ("422",)
    await window.go("submit?task_type=import-rows")
    parameters = window.page.get_by_label("Parameters")
    await parameters.fill("{")
    await window.page.get_by_text("This is not JSON").wait_for()
    await parameters.fill('{"rows": 0}')
    await window.button("Submit").click()
    await window.page.get_by_role("alert").get_by_text("rows").first.wait_for()

    await parameters.fill('{"rows": 12}')
    await window.button("Submit").click()
    await window.status_is("running")
    progress = window.page.get_by_label("Progress")
    for step in (1, 2, 3):
        await expect(progress).to_have_attribute("value", str(25 * step))
        shop.take_step(step)
    await window.status_is("completed")
    await expect(window.page.get_by_label("Result")).to_have_text("12")
    await expect(window.page.locator(".timeline b")).to_have_text(["submitted", "started", "completed"])


async def test_failed_tasks_are_edited_tried_and_replayed(window: Window, shop: Installation) -> None:
    window.expected = ("422",)
    ids = [shop.submit("mail-letter", {"to": name}) for name in ("ada", "bob", "eve")]
    [task_id, *_] = [shop.ended(task_id, "FAILED") for task_id in ids]
    await window.go("overview")
    await window.page.keyboard.type("gd")
    cause = window.page.get_by_role("table", name="Causes").get_by_role("row").filter(has_text="this is no address")
    await expect(cause.get_by_role("cell").nth(1)).to_have_text("3")
    await cause.get_by_role("link").click()
    await window.page.locator(f"[data-row][href$='{task_id}']").click()

    await expect(window.page.get_by_label("Trace")).to_contain_text("this is no address")
    parameters = window.page.get_by_label("Parameters of the replay")
    await parameters.fill('{"to": "ada@example.org", "copies": "many"}')
    await window.button("Dry run").click()
    await window.shows("It would be refused.")
    await window.page.locator(".said").get_by_text("copies").wait_for()
    await parameters.fill('{"to": "ada@example.org", "copies": 2}')
    await window.button("Dry run").click()
    await window.shows("It would be queued again with the changed parameters.")
    assert shop.api.get(f"/tasks/{task_id}").json()["status"] == "FAILED", "a dry run changes nothing"

    await window.button("Replay").click()
    await window.answer("Replay", reason="the address is repaired")
    await window.status_is("completed")
    await expect(window.page.get_by_label("Result")).to_contain_text("sent to ada@example.org")


async def test_all_dead_letters_of_a_cause_are_replayed_at_a_rate_and_stopped(
    window: Window, shop: Installation
) -> None:
    [*_, last] = [shop.submit("mail-letter", {"to": f"person {number}"}, user_id="slow") for number in range(20)]
    shop.ended(last, "FAILED")
    await window.go("dead-letters?text=no+address&user_id=slow")
    await window.button("Replay").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("At most per second")
    await window.answer("Replay", rate="0.5", reason="a try")
    await expect(window.heading).to_have_text("Replay")
    await window.button("Stop").click()
    dialog = window.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("of 20 are done and stay as they are")
    for _ in range(2):
        [done] = re.findall(r"\d+ of 20", await dialog.inner_text())
        await expect(dialog).not_to_contain_text(done)
    await window.answer("Stop it", reason="enough")
    await window.status_is("stopped")
    stopped = shop.api.get("/admin/replays").json()["items"][0]
    assert (stopped["status"], stopped["rate"], stopped["reason"]) == ("STOPPED", 0.5, "a try")
    await expect(window.page.locator(".messages")).to_have_text(f"Stopped after {stopped['done']} of 20.")
    await expect(window.page.locator(".tiles")).to_contain_text(f"{20 - stopped['done']}not done")
    [noted] = shop.api.get("/admin/audit", params={"action": "replay.stop"}).json()["items"]
    assert noted["reason"] == "enough"


async def test_a_stop_of_an_action_that_comes_too_late_is_shown_as_such(window: Window, shop: Installation) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    ids = [shop.submit("naps", 0, not_before=tomorrow, user_id="late") for _ in range(2)]
    body = {"filter": {"user_id": "late"}, "rate": 0.001}
    replay_id = shop.api.post("/tasks/cancel", json=body).json()["replay_id"]
    shop.ended(ids[1], "CANCELLED")
    await window.go(f"replays/{replay_id}")
    await window.button("Stop").click()
    dialog = window.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The other 1 will not be changed.")
    finished = {"replay_id": replay_id, "status": "DONE", "done": 2, "total": 2, "in_hand": 0}
    await window.page.route("**/stop", lambda route: route.fulfill(json=finished))
    await window.answer("Stop it")
    await expect(window.page.locator(".messages")).to_have_text("It had already finished: 2 of 2.")
    await window.page.unroute_all()
    shop.api.post(f"/admin/replays/{replay_id}/stop")


async def test_the_dead_letters_of_a_type_are_discarded_in_the_view_by_cause(
    window: Window, shop: Installation
) -> None:
    shop.ended(shop.submit("mail-letter", {"to": "nobody"}), "FAILED")
    await window.go("dead-letters")
    await expect(window.page.get_by_role("link", name="By cause")).to_have_attribute("aria-current", "true")
    await expect(window.button("Discard")).to_have_count(0)  # everything there is would be too much to ask for
    await window.go("dead-letters?task_type=mail-letter")
    await window.button("Discard").click()
    await window.answer("Discard", reason="a typo")
    await window.go("dead-letters?task_type=mail-letter")
    await expect(window.page.get_by_text("No dead letters. No task has failed for good.")).to_be_visible()


async def test_two_windows_agree_on_a_batch_that_one_cancels(chromium: Browser, shop: Installation) -> None:
    body = {"task_type": "naps", "items": [0.01, 0.01, *[60] * 8]}
    batch_id = shop.api.post("/batches", json=body).json()["batch_id"]
    async with opened(chromium, shop.url) as one, opened(chromium, shop.url) as other:
        for window in (one, other):
            await window.go(f"batches/{batch_id}")
            await expect(window.page.locator(".big-progress b")).to_have_text("20 %")
        await one.button("Cancel").click()
        await expect(one.page.get_by_role("dialog")).to_contain_text("8 items of 10 are not finished")
        await one.answer("Cancel the batch", reason="not needed")
        for window in (one, other):
            await window.status_is("cancelled")
            await expect(window.button("Cancel")).to_have_count(0)


async def test_the_page_goes_on_after_the_api_was_away(chromium: Browser, own_shop: Installation) -> None:
    task_id = own_shop.submit("import-rows", {"rows": 7})
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("net::ERR",)
        await window.go(f"tasks/{task_id}")
        await window.status_is("running")
        state = window.page.locator(".state")
        await expect(state).to_have_text("Live")
        await asyncio.to_thread(own_shop.process.kill)
        await expect(state).to_have_text("Reconnecting …")
        await expect(window.page.get_by_text("Check that the process of the API runs")).to_be_visible()
        await window.status_is("running")
        await asyncio.to_thread(own_shop.start)
        await expect(state).to_have_text("Live")
        for step in (1, 2, 3):
            own_shop.take_step(step)
        await window.status_is("completed")
        await expect(window.page.get_by_text("The API does not answer.")).to_have_count(0)


async def test_an_answer_that_breaks_off_in_the_middle_is_asked_for_again(window: Window, shop: Installation) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()

    task_id = shop.submit("write-report", 3)
    window.expected = ("net::ERR",)
    async with await asyncio.start_server(break_off, "127.0.0.1") as broken:
        [port] = {socket.getsockname()[1] for socket in broken.sockets}
        address = f"**/api/v1/tasks/{task_id}"
        elsewhere = f"http://127.0.0.1:{port}/"
        await window.page.route(address, lambda route: route.continue_(url=elsewhere))
        await window.page.goto(f"{window.url}/#/tasks/{task_id}")
        await expect(window.page.get_by_text("The API does not answer.")).to_be_visible()
        await window.page.unroute(address)
    await window.status_is("completed")


async def test_the_list_shows_what_happens_elsewhere(window: Window, shop: Installation) -> None:
    await window.go("tasks?task_type=write-report")
    task_id = await asyncio.to_thread(shop.submit, "write-report", 3)
    row = window.page.get_by_role("row").filter(has=window.page.locator(f"a[href$='{task_id}']"))
    await expect(row).to_contain_text("completed")
    await row.get_by_role("link").click()
    await window.status_is("completed")
    await expect(window.page.locator(".tree li")).to_have_count(3)


async def test_a_task_that_ends_before_the_list_gets_events_is_shown(window: Window, shop: Installation) -> None:
    events = "**/api/v1/events?*"
    is_open = asyncio.Event()

    async def hold(route: Route) -> None:
        await is_open.wait()
        await route.continue_()

    task_id = await asyncio.to_thread(shop.submit, "stubborn", 1)
    await window.page.route(events, hold)
    await window.go("tasks?task_type=stubborn")
    row = window.page.get_by_role("row").filter(has=window.page.locator(f"a[href$='{task_id}']"))
    await expect(row).to_contain_text(re.compile("queued|running"))
    shop.api.post(f"/tasks/{task_id}/cancel")
    await asyncio.to_thread(shop.ended, task_id, "CANCELLED")
    is_open.set()
    await expect(row).to_contain_text("cancelled")
    await window.page.unroute(events)


async def test_a_request_under_way_is_not_left_with_the_escape_key(window: Window, shop: Installation) -> None:
    pause = "**/api/v1/admin/queues/naps/pause"
    goes_on = asyncio.Event()

    async def hold(route: Route) -> None:
        await goes_on.wait()
        await route.fulfill(status=503, content_type="application/problem+json", body='{"detail": "the store is away"}')

    window.expected = ("503",)
    await window.page.route(pause, hold)
    await window.go("queues")
    await window.page.get_by_role("row").filter(has_text="naps").get_by_role("button", name="Pause").click()
    dialog = window.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Pause").click()
    await expect(dialog.get_by_role("button", name="No, go back")).to_be_disabled()
    await window.page.keyboard.press("Escape")
    await window.page.keyboard.press("Escape")
    goes_on.set()
    await expect(dialog).to_contain_text("the store is away")
    await window.page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await window.page.unroute(pause)


async def test_everything_is_done_from_the_keyboard(window: Window, shop: Installation) -> None:
    task_id = shop.submit("charge-card", {"order_id": "K", "amount": 1}, not_before="2030-01-01T00:00:00Z")
    await window.go("overview")
    press, type_ = window.page.keyboard.press, window.page.keyboard.type
    await press("?")
    await expect(window.page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    await press("Escape")
    await type_("gt")
    await expect(window.heading).to_have_text("Tasks")
    await window.page.get_by_role("row").nth(1).wait_for()
    await press("/")
    await expect(window.page.get_by_label("Error contains")).to_be_focused()
    await press("Escape")
    await window.go("tasks?status=QUEUED&task_type=charge-card")
    await expect(window.page.locator("[data-row]")).to_have_count(1)
    await type_("j")
    await press("Enter")
    await window.status_is("queued")
    await press("c")
    await expect(window.page.get_by_role("dialog").get_by_label("Reason")).to_be_focused()
    await type_("by keyboard")
    await press("Enter")
    await window.status_is("cancelled")
    history = shop.api.get(f"/tasks/{task_id}").json()["history"]
    assert "by keyboard" in str(history[-1])


async def test_a_dead_letter_is_found_and_replayed_from_the_keyboard(window: Window, shop: Installation) -> None:
    task_id = shop.ended(shop.submit("mail-letter", {"to": "nobody"}), "FAILED")
    press, type_, rows = window.page.keyboard.press, window.page.keyboard.type, window.page.locator("[data-row]")
    await window.go("overview")
    await type_("gd")
    await expect(rows.first).to_be_visible()
    await press("/")
    await type_("no address")
    await press("Escape")
    await expect(rows).to_have_count(1)
    for place in ("fingerprint=", f"dead-letters/{task_id}"):
        while place not in window.page.url:  # a list that comes just then takes the row away that was chosen
            if await rows.count():  # none: they are not there yet, or the next page is on its way
                await type_("j")
                await press("Enter")
            with suppress(PlaywrightTimeout):
                await window.page.wait_for_url(re.compile(re.escape(place)), timeout=2_000)
    await expect(window.page.get_by_label("Parameters of the replay")).to_be_visible()
    await expect(window.button("Replay")).to_be_enabled()
    await press("r")
    await expect(window.page.get_by_role("dialog").get_by_label("Reason")).to_be_focused()
    await type_("by keyboard")
    await press("Enter")
    await expect(window.page.locator(".timeline").get_by_text("replayed")).to_be_visible()
    history = shop.api.get(f"/tasks/{task_id}").json()["history"]
    assert "by keyboard" in str([entry for entry in history if entry["type"] == "replayed"])


async def test_dead_letters_are_chosen_by_the_time_of_their_failure(window: Window, shop: Installation) -> None:
    failed = shop.failed()
    await window.go("dead-letters?after=2020-01-01T00:00&before=2020-01-02T00:00")
    await window.shows("No dead letters match.")
    await window.go("dead-letters?after=2020-01-01T00:00")
    await window.page.get_by_role("link", name=failed[-12:]).wait_for()
    await window.button("Dry run").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("finished_after = 20")
    await window.page.keyboard.press("Escape")
    await window.go("tasks?task_type=charge-card&before=2020-01-01T00:00")
    await window.button("Cancel all of these").click()
    await window.page.get_by_text("None of these can be cancelled.").wait_for()
    await window.go("tasks?finished_after=2020-01-01T00:00&status=FAILED")
    await window.page.get_by_role("link", name=failed[-12:]).wait_for()
    await window.button("Retry all of these").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("finished_after = 20")


async def test_a_type_is_paused_and_resumed(window: Window, shop: Installation) -> None:
    await window.go("queues")
    row = window.page.get_by_role("row").filter(has_text=re.compile("^write-report"))
    await row.get_by_role("button").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("No worker starts tasks of this type")
    await window.answer("Pause the type", reason="a bad release")
    await expect(row).to_contain_text("a bad release")
    await row.get_by_role("button").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("write-report was paused by anonymous at")
    await expect(window.page.get_by_role("dialog")).to_contain_text(": a bad release. Its tasks start again")
    await window.answer("Resume")
    await expect(row).not_to_contain_text("paused")


async def test_a_small_window_shows_what_waits_in_all_lanes(chromium: Browser, shop: Installation) -> None:
    running = [shop.ended(shop.submit("naps", 600), "RUNNING") for _ in range(2)]  # all that may run at once
    waiting = [shop.submit("naps", 0.01, priority=lane) for lane in ("high", "low")]
    async with opened(chromium, shop.url, size=NARROW) as window:
        await window.go("queues")
        row = window.page.get_by_role("row").filter(has_text=re.compile("^naps"))
        await expect(row.get_by_role("cell")).to_have_text([re.compile("^naps"), "2", "Pause"])
    for task_id in running:
        shop.api.post(f"/tasks/{task_id}/cancel", json={}).raise_for_status()
    for task_id in waiting:
        shop.ended(task_id, "COMPLETED")


async def test_a_halted_stream_goes_on(window: Window, shop: Installation) -> None:
    stream = {"key": "orders/1", "on_failure": "halt"}
    shop.ended(shop.submit("charge-card", {"order_id": "H-1", "amount": 0}, stream=stream), "FAILED")
    behind = shop.submit("charge-card", {"order_id": "H-2", "amount": 1}, stream=stream)
    await window.go("overview")
    halted = window.page.get_by_label("Problems").get_by_role("listitem").filter(has_text="has halted")
    await halted.get_by_role("link").click()
    await expect(window.page.get_by_label("State")).to_have_value("true")
    await window.page.get_by_role("link", name="orders/1").click()
    await window.shows("The stream is halted.")
    await window.button("Continue without it").click()
    await expect(window.page.get_by_role("dialog")).to_contain_text("The 1 task after it")
    await window.answer("Continue without it")
    await expect(window.page.get_by_text("The stream is halted.")).to_have_count(0)
    shop.ended(behind, "COMPLETED")


async def test_a_schedule_is_paused_and_run_now(window: Window, shop: Installation) -> None:
    schedule = {"name": "weekly", "every": "7d", "task_type": "write-report", "parameters": 1}
    assert shop.api.post("/admin/schedules", json=schedule).status_code == 201
    await window.go("schedules")
    await window.page.get_by_role("link", name="weekly").click()
    await window.button("Pause").click()
    await window.answer("Pause")
    await window.button("Resume").wait_for()
    await window.button("Run now").click()
    await window.answer("Run now")
    await expect(window.heading).to_have_text("write-report")
    await window.status_is("completed")


async def test_a_schedule_is_made_changed_and_deleted(window: Window, shop: Installation) -> None:
    form = window.page.locator("main form")
    await window.go("schedules")
    await window.page.get_by_role("link", name="New schedule").click()
    await form.get_by_label("Task type").select_option("write-report")
    for name, text in {"name": "hourly", "cron": "0 * * * MOON", "timezone": "Europe/Berlin", "jitter": "30s"}.items():
        await form.locator(f"[name={name}]").fill(text)
    await form.locator("textarea").fill("3")
    await window.button("Save").click()
    window.expected = ("422",)
    await expect(window.page.get_by_role("alert")).to_contain_text("cron")
    await expect(form.locator("[name=timezone]")).to_have_value("Europe/Berlin")  # what is right was not lost
    await form.locator("[name=cron]").fill("0 * * * MON")
    await window.button("Save").click()
    await expect(window.heading).to_have_text("hourly")
    made = shop.api.get("/admin/schedules/hourly").json()
    assert (made["cron"], made["timezone"], made["parameters"]) == ("0 * * * MON", "Europe/Berlin", 3)
    await window.page.get_by_role("link", name="Edit").click()
    await form.locator("[name=cron]").fill("")
    await form.locator("[name=every]").fill("8h")
    await form.locator("[name=overlap]").select_option("skip")
    await form.locator("[name=reason]").fill("seldom is enough, says Jürgen")
    await window.button("Save").click()
    await window.shows("every 8h")
    changed = shop.api.get("/admin/schedules/hourly").json()
    assert (changed["cron"], changed["every"], changed["overlap"], changed["parameters"]) == (None, "8h", "skip", 3)
    assert changed["jitter"] == "30s"
    noted = shop.api.get("/admin/audit", params={"action": "schedule.put"}).json()["items"][0]
    assert noted["reason"] == "seldom is enough, says Jürgen"
    await window.button("Delete").click()
    await window.answer("Delete the schedule")
    await expect(window.heading).to_have_text("Schedules")
    assert shop.api.get("/admin/schedules/hourly").status_code == 404


async def test_the_first_key_closes_the_installation_and_is_shown_once(
    chromium: Browser, own_shop: Installation
) -> None:
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("401",)
        await window.go("keys")
        await window.shows("everyone who can reach this address can do everything")
        await window.button("New key").click()
        await expect(window.page.get_by_role("dialog")).to_contain_text("This is the first key.")
        await window.answer("Create the key", principal="ada")
        key = await window.page.get_by_label("Key", exact=True).input_value()
        await expect(window.page.locator(".me")).to_contain_text("ada")  # it signed in with it
        own_shop.api.headers["Authorization"] = f"Bearer {key}"
        assert own_shop.api.get("/me").json()["roles"] == ["admin"]
        await window.button("I have saved it").click()
        await expect(window.page.get_by_label("Key", exact=True)).to_have_count(0)
        await window.button("New key").click()
        await window.answer("Create the key", principal="web", expires="90d")
        await expect(window.page.get_by_role("row").filter(has_text="web")).to_contain_text("submitter")
        web = await window.page.get_by_label("Key", exact=True).input_value()
        await window.page.get_by_role("row").filter(has_text="web").get_by_role("button").click()
        await window.answer("Revoke the key", reason="it was a try")
        await expect(window.page.get_by_role("row").filter(has_text="web")).to_contain_text("revoked")
        await window.page.reload()
        await window.button("New key").wait_for()
        assert web not in await window.page.content()


async def test_values_of_a_task_are_shown_as_text(window: Window, shop: Installation) -> None:
    hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    task_id = shop.submit("charge-card", {"order_id": hostile, "amount": 1}, correlation_id=hostile)
    await window.go(f"tasks/{task_id}")
    await window.status_is("completed")
    await expect(window.page.get_by_label("Result")).to_contain_text("<script>")
    await window.go("tasks?task_type=charge-card")
    await window.page.get_by_role("row").filter(has_text="<script>").wait_for()
    assert await window.page.locator("main img, main script").count() == 0
    assert "taskframework" in await window.page.title()


async def test_a_key_signs_in_and_its_role_says_what_is_offered(chromium: Browser, own_shop: Installation) -> None:
    admin = own_shop.api.post("/admin/keys", json={"principal": "ada", "roles": ["admin"]}).json()
    own_shop.api.headers["Authorization"] = f"Bearer {admin['key']}"
    wait_until(lambda: httpx.get(f"{own_shop.url}/api/v1/me").status_code == 401, "keys are needed", timeout=20)
    reader = own_shop.api.post("/admin/keys", json={"principal": "rita", "roles": ["reader"]}).json()
    async with opened(chromium, own_shop.url) as window:
        window.expected = ("401",)
        await window.page.goto(own_shop.url)
        await window.page.get_by_label("API key").fill("tf_0000000000_wrong")
        await window.button("Sign in").click()
        await window.page.get_by_text("This key is not valid").wait_for()
        await window.page.get_by_label("API key").fill(reader["key"])
        await window.button("Sign in").click()
        await expect(window.page.locator(".me")).to_contain_text("rita")
        await expect(window.page.get_by_role("link", name="Tasks")).to_have_count(1)
        for name in ("Dead letters", "Queues", "Submit", "Keys"):
            await expect(window.page.get_by_role("link", name=name)).to_have_count(0)
        await window.page.keyboard.press("?")
        help = window.page.get_by_role("dialog")
        await expect(help.get_by_text("g t", exact=True)).to_have_count(1)
        for keys in ("g d", "g q", "g n", "g y"):
            await expect(help.get_by_text(keys, exact=True)).to_have_count(0)
        await help.get_by_role("button", name="Close").click()
        own_shop.api.delete(f"/admin/keys/{reader['prefix']}")
        await expect(window.page.get_by_label("API key")).to_be_visible()
        await window.page.get_by_text("The key is no longer valid.").wait_for()
