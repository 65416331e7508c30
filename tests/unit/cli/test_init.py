"""`init`: a project that is made whole, or not at all. That it runs is on its page, which is a test."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from taskframework import load_settings
from taskframework.cli.init import _TEMPLATE, _project_name
from tests.unit.cli.conftest import Cli


def _made(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_has_the_name_of_its_folder_and_tells_what_comes_next(cli: Cli, folder: Path) -> None:
    done = cli("init", "Web Shop")
    assert done.code == 0
    assert {"tasks.py", "tests/test_tasks.py", "application.yml", ".gitignore"} <= _made(folder / "Web Shop")
    project = tomllib.loads((folder / "Web Shop/pyproject.toml").read_text())["project"]
    assert project["name"] == "web-shop"
    modules = tomllib.loads((folder / "Web Shop/pyproject.toml").read_text())["tool"]["setuptools"]["py-modules"]
    assert modules == [path.stem for path in (folder / "Web Shop").glob("*.py")], "otherwise it installs nothing"
    assert not [name for name in _made(folder / "Web Shop") if "my-project" in (folder / "Web Shop" / name).read_text()]
    assert done.out.startswith("Created web-shop in Web Shop: ")
    assert "cd 'Web Shop'\n" in done.out
    assert "taskframework dev " in done.out


def test_a_project_without_a_name_is_created_in_the_present_folder(cli: Cli, folder: Path) -> None:
    done = cli("init")
    assert done.code == 0
    assert _made(folder) >= {"greeting.py", "tasks.py"}
    assert "cd " not in done.out


@pytest.mark.parametrize("there", ["tasks.py", "config/servers.yml", "tests", "config"])
def test_init_overwrites_no_file_and_leaves_no_half_project(cli: Cli, folder: Path, there: str) -> None:
    (file := folder / "orders" / there).parent.mkdir(parents=True)
    file.write_text("mine")
    done = cli("init", "orders")
    assert (done.code, file.read_text()) == (1, "mine")
    assert f"already has {there}, so nothing was created" in done.err
    assert _made(folder / "orders") == {there}


def test_a_link_that_leads_nowhere_is_not_followed(cli: Cli, folder: Path) -> None:
    (folder / "orders").mkdir()
    (folder / "orders/tasks.py").symlink_to(folder / "elsewhere.py")
    assert cli("init", "orders").code == 1
    assert not (folder / "elsewhere.py").exists()


@pytest.mark.parametrize(
    ("where", "said"),
    [("greeting.py", "greeting.py is a file"), ("greeting.py/x", "cannot be written: not a directory")],
)
def test_a_path_that_is_no_folder_is_refused_with_the_reason(cli: Cli, where: str, said: str) -> None:
    done = cli("init", where)
    assert (done.code, said in done.err) == (1, True), done.err


@pytest.mark.parametrize(("folder", "name"), [("a/Ünit_9.x", "nit-9-x"), ("/", "my-project"), ("___", "my-project")])
def test_the_name_of_a_project_follows_from_its_folder(folder: str, name: str) -> None:
    assert _project_name(Path(folder)) == name


def test_its_servers_are_where_its_compose_file_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKFRAMEWORK_PROFILE", "servers")
    settings = load_settings(directory=_TEMPLATE).settings
    assert settings.app.modules == ("tasks",)
    compose = (_TEMPLATE / "compose.yml").read_text()
    user, _, rest = settings.broker.url.removeprefix("amqp://").partition(":")
    password, _, address = rest.partition("@")
    assert f"RABBITMQ_DEFAULT_USER: {user}\n" in compose
    assert f"RABBITMQ_DEFAULT_PASS: {password}\n" in compose
    assert f"127.0.0.1:{address.strip('/').partition(':')[2]}:" in compose
    assert "127.0.0.1:27017:27017" in compose
    assert settings.store.url.startswith("mongodb://localhost:27017/")
