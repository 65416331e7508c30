"""The files of the console: given to everybody, with a policy that lets nothing else in."""

from __future__ import annotations

import hashlib
import re

import pytest

from taskframework.console.routes import PREFIX, files
from taskframework.model.events import EVENT_BY_ENTRY_TYPE
from taskframework.model.status import FINAL, REPLAYABLE, TaskStatus
from tests.unit.api.conftest import Api, problem_of

_TEXTS = {path: file.content.decode() for path, file in files().items()}


async def test_the_page_is_at_the_root_and_lets_nothing_foreign_in(api: Api) -> None:
    page = await api.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {*policy.values()} <= {"'none'", "'self'", "'script'"}
    assert policy["require-trusted-types-for"] == "'script'", "no text becomes a piece of the page"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "<style" not in page.text
    assert " style=" not in page.text
    assert re.findall(r"<script(?! type=\"module\" src=\"console/)", page.text) == []


def test_the_console_knows_every_status() -> None:
    text, known = (
        _TEXTS["lib/status.js"],
        {"STATUSES": set(TaskStatus), "FINAL": FINAL, "AGAIN": {*REPLAYABLE, "RETRYING"}},
    )
    for name, statuses in {**known, "KINDS": set(TaskStatus)}.items():
        [said] = re.findall(rf"const {name} = (.*?);\n", text, re.DOTALL)
        assert set(re.findall(r"\b[A-Z_]{2,}", said)) == statuses, f"{name} of lib/status.js: see docs/adding/status.md"


def test_the_events_page_filters_by_every_type_of_event() -> None:
    [listed] = re.findall(r"const KINDS = (.*?);\n", _TEXTS["pages/events.js"], re.DOTALL)
    # A report of progress is no entry of the history.
    assert sorted(re.findall(r"\w+", listed)) == sorted({*EVENT_BY_ENTRY_TYPE, "progress"})


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("main.js", "text/javascript; charset=utf-8"),
        ("lib/api.js", "text/javascript; charset=utf-8"),
        ("style/theme.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/LICENSE-htm.txt", "text/plain; charset=utf-8"),
    ],
)
async def test_a_console_file_is_sent_again_only_when_it_has_changed(api: Api, path: str, media_type: str) -> None:
    answer = await api.get(PREFIX + path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert answer.headers["cache-control"] == "no-cache"
    again = await api.get(PREFIX + path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await api.get(PREFIX + path, headers={"If-None-Match": '"other"'})).status_code == 200


@pytest.mark.parametrize(
    "path", ["nowhere.js", "", "lib", "../routes.py", "%2e%2e/routes.py", "..%2froutes.py", "//main.js"]
)
async def test_a_path_that_is_no_console_file_is_not_found(api: Api, path: str) -> None:
    problem_of(await api.get(PREFIX + path), 404, "not_found")


async def test_a_browser_without_a_key_gets_the_console_and_nothing_more(api: Api) -> None:
    await api.post("/api/v1/admin/keys", json={"principal": "ada", "roles": ["admin"]})
    api.framework.services.callers._looked_at -= 10  # a moment later
    for path in ("/", f"{PREFIX}main.js"):
        assert (await api.get(path)).status_code == 200
    problem_of(await api.get("/api/v1/tasks"), 401, "unauthorized")


def test_all_console_modules_are_preloaded() -> None:
    preloaded = set(re.findall(r'rel="modulepreload" href="console/([^"]+)"', _TEXTS["index.html"]))
    assert preloaded == {path for path in _TEXTS if path.endswith(".js")} - {"main.js"}


def test_every_file_that_a_page_names_is_there() -> None:
    named = re.findall(r'(?:href|src)="console/([^"]+)"', "".join(_TEXTS.values()))
    assert set(named) - set(_TEXTS) == set()


def test_console_files_name_no_other_host_and_write_no_unescaped_html() -> None:
    ours = {path: text for path, text in _TEXTS.items() if not path.startswith("vendor/")}
    for path, text in ours.items():
        assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )


def test_vendored_console_files_have_the_digests_of_the_readme() -> None:
    told = dict(re.findall(r"^\| `([\w-]+\.js)` .* `([0-9a-f]{64})` ", _TEXTS["vendor/README.md"], re.MULTILINE))
    vendored = {path for path in _TEXTS if path.startswith("vendor/") and path.endswith(".js")}
    assert {f"vendor/{name}" for name in told} == vendored
    for name, digest in told.items():
        assert hashlib.sha256(files()[f"vendor/{name}"].content).hexdigest() == digest, name


def test_each_console_file_has_at_most_250_lines() -> None:
    long = {path: lines for path, text in _TEXTS.items() if (lines := text.count("\n")) > 250 and "LICENSE" not in path}
    assert long == {}
