"""Every page of the documentation, walked through to its end in an empty folder, as printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import _unavailable
from tests.support.pages import ROOT, name_of, pages, steps_of
from tests.support.process import free_ports
from tests.support.redis import RedisServer
from tests.support.walking import Walk

#: The only thing that is not done as printed: most targets take minutes to an hour, and one of them runs this test. So
#: `make` looks whether there is such a target, and runs nothing.
_MAKE = '#!/bin/sh\nexec {make} -n -C ~/taskframework "$@"\n'
#: Where the pages have the servers, which are elsewhere in the tests.
API, PORT = "localhost:8000", "--port 8000"
AMQP = "amqp://guest:guest@localhost:5672/"
ENDPOINT, ENDPOINT_PORT = "localhost:8010", "--port 8010"
MONGODB = "mongodb://localhost:27017/tasks?replicaSet=rs0"
REDIS = "redis://localhost:6379/0"
#: The newcomer's way: there every command is a program of its own, from what pip installed. Elsewhere those of ours are
#: forks of one process that has read this checkout, which takes two thirds of the time less.
FIRST_HOUR = {ROOT / "README.md", ROOT / "docs/tutorial.md"}
MARKS = {AMQP: pytest.mark.rabbitmq, MONGODB: pytest.mark.mongodb}


def _servers_of(page: Path) -> list[str]:
    """The addresses of servers that a page names."""
    return [url for url in (AMQP, MONGODB, REDIS) if any(url in step.text for step in steps_of(page.read_text()))]


def _parameter(page: Path) -> object:
    return pytest.param(page, id=name_of(page), marks=[MARKS[url] for url in _servers_of(page) if url in MARKS])


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reader's: a checkout in the home directory, and the dependencies where pip finds them without an index."""
    home = tmp_path_factory.mktemp("home")
    programs = home / "bin"
    programs.mkdir()
    (home / "taskframework").symlink_to(ROOT)
    (programs / "python3").symlink_to(os.path.realpath(sys.executable))
    (programs / "make").write_text(_MAKE.format(make=shutil.which("make")))
    (programs / "make").chmod(0o755)
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(programs), "/usr/local/bin", os.defpath, sysconfig.get_path("scripts")]),
        "PYTHONUNBUFFERED": "1",  # as on a terminal, where each line is seen at once
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_COMPILE": "1",  # most of what is installed is never imported
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way of saying: there is none
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.fixture(scope="session")
def installed(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same after what README says about installing, done the quick way; README itself is walked as printed."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, str(ROOT)], env=environment, check=True, timeout=300)
    return environment | {"PATH": os.pathsep.join([str(folder / "bin"), environment["PATH"]])}


def _with_peers(known: dict[str, str], page: Path) -> dict[str, str]:
    """The environment of a reader who has installed what the page moves from."""
    peers = ROOT / (".venv-bench" if page.stem == "arq" else ".venv-peers")
    if not (peers / ".installed").exists():
        _unavailable(f"what this page moves from is not installed: make {peers.name}/.installed")
    [packages] = peers.glob("lib/python*/site-packages")
    paths = {"PATH": [known["PATH"], str(peers / "bin")], "PYTHONPATH": [str(packages), known["PYTHONPATH"]]}
    return known | {name: os.pathsep.join(parts) for name, parts in paths.items()}


def _server(url: str, request: pytest.FixtureRequest) -> str:
    """Where a server of the page is in this test, with nothing in it."""
    if url != REDIS:
        return str(request.getfixturevalue("amqp_url" if url == AMQP else "mongo_url"))
    redis: RedisServer = request.getfixturevalue("redis_server")
    redis.flush()
    return redis.url


@pytest.mark.timeout(900)  # as long as every command of the longest page taking a minute on a crowded machine
@pytest.mark.parametrize("page", [_parameter(page) for page in pages() if steps_of(page.read_text())])
def test_a_page_is_walked_to_its_end(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    known = request.getfixturevalue("environment" if page == ROOT / "README.md" else "installed")
    if page.parent.name == "migration":
        known = _with_peers(known, page)
    port, other = free_ports(2)
    elsewhere = {API: f"localhost:{port}", PORT: f"--port {port}"}
    elsewhere |= {ENDPOINT: f"localhost:{other}", ENDPOINT_PORT: f"--port {other}"}
    elsewhere |= {url: _server(url, request) for url in _servers_of(page)}
    (folder := tmp_path / "empty").mkdir()
    listens = {"TASKFRAMEWORK_API__PORT": str(port), "UVICORN_PORT": str(port)}
    forks = page not in FIRST_HOUR and page.parent.name != "migration"  # those import other systems from elsewhere
    with closing(Walk(page, folder, known | listens, elsewhere, forks=forks)) as walk:
        for step in steps_of(page.read_text()):
            walk.take(step)
        walk.stop()
