"""What every page of the console must be: fit for a small window, for a screen reader, and quiet."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import parse_qs, urlsplit

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Browser, Route, expect

from taskframework.testing.eventually import eventually
from tests.console.conftest import Installation
from tests.console.window import NARROW, WIDE, Window, opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

_SERIOUS = {"serious", "critical"}
_AXE = AXE_FILE_PATH.read_text()


@pytest.fixture(scope="session")
def places(shop: Installation) -> list[str]:
    """Every page, with something on it."""
    failed, done = shop.failed(), shop.ended(shop.submit("write-report", 2), "COMPLETED")
    batch = shop.api.post("/batches", json={"task_type": "charge-card", "items": [{"order_id": "B", "amount": 0}]})
    stream = {"key": "ada/1"}
    shop.ended(shop.submit("charge-card", {"order_id": "S", "amount": 0}, stream=stream), "FAILED")
    shop.submit("charge-card", {"order_id": "T", "amount": 1}, stream=stream)
    shop.submit("import-rows", {"rows": 3})
    schedule = {"name": "nightly", "cron": "30 2 * * *", "task_type": "write-report", "parameters": 2}
    assert shop.api.post("/admin/schedules", json=schedule).status_code in (201, 409)
    worker = shop.api.get("/admin/workers").json()["items"][0]["worker_id"]
    return [
        *("overview", "tasks", "tasks?status=FAILED", f"tasks/{failed}", f"tasks/{done}", "submit", "batches"),
        *(
            f"batches/{batch.json()['batch_id']}",
            "streams?key=ada/1",
            "events",
            "dead-letters",
            f"dead-letters/{failed}",
        ),
        *("dead-letters?view=each", "replays", "schedules", "schedules/nightly", "queues", "limits", "workers"),
        *("schedules?form=new", "schedules/nightly?form=edit", "keys"),
        *(f"workers/{worker}", "audit", "nowhere"),
    ]


@pytest.mark.parametrize(("size", "scheme", "first"), [(WIDE, "light", 0), (NARROW, "dark", 1)])
async def test_axe_finds_nothing_serious_on_any_page(
    chromium: Browser, shop: Installation, places: list[str], size: tuple[int, int], scheme: str, first: int
) -> None:
    async with opened(chromium, shop.url, size=size, scheme=scheme) as window:
        found = {place: await _violations(window, place) for place in places[first::2]}
    assert not any(found.values()), json.dumps(found, indent=1)


@pytest.mark.parametrize("size", [NARROW, (820, 600)])
async def test_every_page_fits_its_window(
    chromium: Browser, shop: Installation, places: list[str], size: tuple[int, int]
) -> None:
    async with opened(chromium, shop.url, size=size) as window:
        too_wide = {place: await _overflow(window, place) for place in places}
    assert not any(too_wide.values()), too_wide


async def _overflow(window: Window, place: str) -> int:
    await _shown(window, place)
    return max(0, await window.overflow())


async def _shown(window: Window, place: str) -> None:
    await window.go(place)
    await expect(window.page.get_by_text("Reading …")).to_have_count(0)


async def _violations(window: Window, place: str) -> list[str]:
    await _shown(window, place)
    await window.page.evaluate(f"window.axe === undefined && (() => {{ {_AXE} }})()")
    result = await window.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:150]} {node['failureSummary'][:200]}"
        for one in result["violations"]
        if one["impact"] in _SERIOUS
        for node in one["nodes"][:3]
    ]


async def test_a_small_window_shows_who_did_what_and_why(chromium: Browser, shop: Installation) -> None:
    for action in ("pause", "resume"):
        shop.api.post(f"/admin/queues/naps/{action}", headers={"X-Reason": "until noon"})
    async with opened(chromium, shop.url, size=NARROW) as window:
        await window.go("audit")
        row = window.page.get_by_role("row").filter(has_text="queue.pause").first
        await expect(row.get_by_text("anonymous: until noon")).to_be_visible()


async def test_a_long_reason_and_a_refusal_can_be_read_in_full(window: Window, shop: Installation) -> None:
    reason, refused = "because of the provider " * 10, "0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"
    shop.api.post("/admin/dead-letters/discard", json={"ids": [refused], "reason": f"{reason}\u202eend"})
    await window.go("audit")
    row = window.page.get_by_role("row").filter(has_text=reason[:50])
    await expect(row.get_by_title(f"{reason}\ufffdend")).to_be_visible()
    await expect(row.locator("td", has_text=reason[:50]).get_by_text("refused: There is no")).to_be_visible()


async def test_the_list_of_tasks_shows_the_message_of_an_error_before_its_class(
    window: Window, shop: Installation
) -> None:
    shop.failed()
    await window.go("tasks?task_type=charge-card&status=FAILED")
    said = window.page.locator("td .bad-text").first
    await expect(said).to_have_text("there is nothing to charge NonRetryableError")


async def test_the_status_of_a_subtask_is_as_wide_as_its_text(window: Window, shop: Installation) -> None:
    task_id = shop.ended(shop.submit("write-report", 1), "COMPLETED")
    await window.go(f"tasks/{task_id}")
    box = await window.page.locator(".branch .status").bounding_box()
    assert box is not None
    assert box["width"] < 200


async def test_a_small_window_shows_the_turns_of_a_limit(chromium: Browser, shop: Installation) -> None:
    now = datetime.now(UTC)
    times = {"next_at": now + timedelta(minutes=5), "last_turn_at": now + timedelta(minutes=9)}
    limit = {"kind": "rate", "name": "openai", "key": "ada", "rate": 0.1, "burst_capacity": 1, "available": 0}
    page = {"items": [limit | {name: time.isoformat() for name, time in times.items()}], "next_cursor": None}
    async with opened(chromium, shop.url, size=NARROW) as window:
        await window.page.route("**/admin/limits?*", lambda route: route.fulfill(json=page))
        await window.go("limits")
        row = window.page.get_by_role("row").filter(has_text="openai")
        await expect(row.get_by_text("ada").first).to_be_visible()
        await expect(row.get_by_text(re.compile(r"^next in [45] min, last in [89] min$"))).to_be_visible()


async def test_a_list_of_limits_that_is_cut_off_says_so(window: Window) -> None:
    limit = {"kind": "rate", "name": "openai", "rate": 1, "burst_capacity": 1, "available": 1, "next_at": None}
    page = {"items": [limit | {"key": str(key), "last_turn_at": None} for key in range(500)], "next_cursor": None}
    await window.page.route("**/admin/limits?*", lambda route: route.fulfill(json=page))
    await window.go("limits")
    await window.shows("At most 500 are listed.", times=1)


async def test_causes_with_one_error_class_can_be_distinguished_in_a_small_window(
    chromium: Browser, shop: Installation
) -> None:
    shop.failed(1)
    shop.ended(shop.submit("mail-letter", {"to": "no address at all"}), "FAILED")
    async with opened(chromium, shop.url, size=NARROW) as window:
        await window.go("dead-letters")
        causes = window.page.get_by_role("table", name="Causes").locator("a.row b")
        await expect(causes.get_by_text("there is nothing to charge", exact=True).first).to_be_visible()
        await expect(causes.get_by_text("this is no address", exact=True)).to_be_visible()


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_no_status_is_cut_off(chromium: Browser, shop: Installation, size: tuple[int, int]) -> None:
    items = [{"order_id": "C", "amount": 0}]
    shop.api.post("/batches", json={"task_type": "charge-card", "policy": "allow_failures", "items": items})
    async with opened(chromium, shop.url, size=size) as window:
        await window.go("batches")
        await expect(window.page.locator("td .status", has_text="completed with errors").first).to_be_visible()
        cells = "[...document.querySelectorAll('td:has(.status)')]"
        cut = await window.page.evaluate(f"{cells}.filter((cell) => cell.scrollWidth > cell.clientWidth).length")
    assert cut == 0


async def test_the_menu_of_a_small_window_leads_everywhere(chromium: Browser, shop: Installation) -> None:
    async with opened(chromium, shop.url, size=NARROW) as window:
        await window.go("overview")
        await window.button("Menu").click()
        await window.page.get_by_role("link", name="Workers", exact=True).click()
        await expect(window.heading).to_have_text("Workers")
        await expect(window.page.get_by_role("link", name="Audit")).to_be_hidden()


async def test_the_colours_follow_the_switch_and_stay(window: Window) -> None:
    await window.go("limits")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await window.page.evaluate(ground)
    await window.button("Colours: as the system").click()
    assert (dark := await window.page.evaluate(ground)) != light
    await window.page.reload()
    await expect(window.button("Colours: dark")).to_be_visible()
    assert await window.page.evaluate(ground) == dark


async def test_only_the_near_rows_of_a_long_list_are_in_the_page(window: Window, shop: Installation) -> None:
    task = {"task_type": "charge-card", "parameters": {"order_id": "L", "amount": 1}}
    shop.api.post("/tasks/bulk", json={"tasks": [task] * 500})
    shop.ended(shop.submit("charge-card", {"order_id": "last", "amount": 1}), "COMPLETED")
    await window.go("tasks?task_type=charge-card")
    rows, height = window.page.locator("[data-row]"), "document.body.scrollHeight"
    await rows.first.wait_for()
    for pages in range(2, 6):
        await window.page.evaluate(f"scrollTo(0, {height})")
        await eventually(partial(_is_as_long, window, pages))
    assert await rows.count() < 150


async def _is_as_long(window: Window, pages: int) -> bool:
    return int(await window.page.evaluate("document.querySelector('table').clientHeight")) > pages * 100 * 52


_VALUES = """async ([]) => {
  const {lasting, short, ago, plural, shortId} = await import("./console/lib/format.js");
  const {parsed} = await import("./console/lib/live.js");
  const {sample} = await import("./console/parts/editor.js");
  const {dump} = await import("./console/parts/message.js");
  const {percentOf} = await import("./console/lib/status.js");
  return {
    lasting: [0.0123, 1.24, 75, 3700, 200000].map(lasting),
    short: [-0.1, 0.3, 59.9, 7300].map(short),
    ago: [ago("2027-01-31T12:00:00.000Z", Date.parse("2027-01-31T12:05:00Z")),
          ago("2027-01-31T12:00:00.000Z", Date.parse("2027-01-31T10:00:00Z"))],
    plural: [plural(1, "task"), plural(2000, "task")],
    shortId: [shortId("0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"), shortId("short")],
    event: parsed("id: a-1\\nevent: task.completed\\ndata: {\\"subject\\":\\"a: b\\"}"),
    comment: parsed(": heartbeat"),
    sample: sample({
      properties: {a: {$ref: "#/$defs/A"}, b: {default: 3}, c: {anyOf: [{type: "string"}, {type: "null"}]}},
      $defs: {A: {type: "object", properties: {n: {type: "integer", minimum: 1}}}},
    }),
    recursive: JSON.stringify(sample({$ref: "#/$defs/T", $defs: {T: {properties: {t: {$ref: "#/$defs/T"}}}}})).length,
    dump: dump("AP8QYmluYXJ5IGFuZCBtb3JlIHRoYW4gMTY="),
    percent: [percentOf(130), percentOf({percent: 5}), percentOf({done: 1, total: 4}), percentOf("half")],
  };
}"""


async def test_a_search_goes_on_over_pages_without_a_find(window: Window, shop: Installation) -> None:
    task = shop.api.get(f"/tasks/{shop.submit('write-report', 2)}").json()
    pages = {None: ([], "a"), "a": ([], "b"), "b": ([], "c"), "c": ([task], None)}

    async def page_of(route: Route) -> None:
        items, after = pages[parse_qs(urlsplit(route.request.url).query).get("cursor", [None])[0]]
        await route.fulfill(json={"items": items, "next_cursor": after})

    await window.page.route("**/api/v1/tasks?*error=*", page_of)
    await window.go("tasks?error=rare")
    await window.shows(task["task_id"][-12:])


async def test_the_items_of_a_chunk_are_all_there_over_the_end_of_a_page(window: Window, shop: Installation) -> None:
    later = {"not_before": f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}", "chunk_size": 7}
    batch = shop.api.post("/batches", json={"task_type": "write-report", "items": [2] * 110, **later}).json()
    await window.go(f"batches/{batch['batch_id']}")
    await window.page.locator("[data-row]").first.wait_for()
    await window.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(window.page.get_by_role("table", name="Items")).to_have_attribute("aria-rowcount", "111")


async def test_values_are_written_for_people(window: Window) -> None:
    await window.go("limits")
    assert await window.run(_VALUES) == {
        "lasting": ["12 ms", "1.2 s", "1 min 15 s", "1 h 1 min", "2 d 7 h"],
        "short": ["0 ms", "300 ms", "59 s", "2 h"],
        "ago": ["5 min ago", "in 2 h"],
        "plural": ["1 task", "2,000 tasks"],
        "shortId": ["…3d3a1f0b8a11", "short"],
        "event": {"id": "a-1", "event": "task.completed", "data": {"subject": "a: b"}},
        "comment": None,
        "sample": {"a": {"n": 1}, "b": 3, "c": ""},
        "recursive": 22,
        "dump": "000000  00 ff 10 62 69 6e 61 72 79 20 61 6e 64 20 6d 6f  ...binary and mo\n"
        "000010  72 65 20 74 68 61 6e 20 31 36                    re than 16",
        "percent": [100, 5, 25, None],
    }
