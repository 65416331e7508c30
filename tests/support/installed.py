"""The wheel, and environments with nothing else, as somebody has them who installs it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.pages import ROOT

OWN_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
#: What pip says where no index answers, or none that has what is wanted.
_NO_INDEX = ("No matching distribution found", "Could not find a version", "Connection")


class IndexUnavailable(Exception):  # noqa: N818 - as its neighbour in process.py
    """The packages that are wanted cannot be had here."""


def interpreter(version: str) -> str | None:
    """A CPython of this version that runs: one that is on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    named = shutil.which(f"python{version}")
    found = [named] if named else []
    for place in (*found, *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))):
        if _version_of(place) == version:
            return place
    return None


def _version_of(place: str) -> str:
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    return subprocess.run([place, "-c", program], capture_output=True, text=True, check=False).stdout.strip()


def build_wheel(folder: Path) -> Path:
    """The wheel, built from the sdist as everybody would who has no checkout."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [sdist] = folder.glob("*.tar.gz")
    _pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sdist))
    [wheel] = folder.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment without any package, and a folder in which its commands are run."""

    def __init__(self, python: str, folder: Path, versions: Iterable[str]) -> None:
        self._programs = folder / "environment/bin"
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "environment")], check=True)
        (folder / "versions.txt").write_text("\n".join(versions))
        self._versions = folder / "versions.txt"
        (home := folder / "work").mkdir()
        self.folder = home
        self.variables = {"HOME": str(home), "LANG": "C.UTF-8", "PATH": f"{self._programs}{os.pathsep}{os.defpath}"}

    def install(self, *requirements: str) -> None:
        """Install packages; those with a given version in that version.

        Raises:
            IndexUnavailable: if no index has them.
        """
        _pip(
            "--python",
            str(self._programs / "python"),
            "install",
            "--no-compile",
            "-c",
            str(self._versions),
            *requirements,
        )

    def packages(self) -> set[str]:
        """Names of what is installed."""
        program = "from importlib.metadata import distributions; print(*[found.name for found in distributions()])"
        return {name.lower().replace("_", "-") for name in self.run("python", "-c", program).split()}

    def run(self, *command: str, code: int = 0, folder: Path | None = None) -> str:
        """Run a command of the environment to its end, and give what it printed."""
        done = subprocess.run(
            [str(self._programs / command[0]), *command[1:]],
            cwd=folder or self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


def versions_of_the_lock() -> Iterator[str]:
    """What the lock file pins, without hashes: a wheel that was just built has none."""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if pinned := re.match(r"[\w.-]+==[^\\]+", line):
            yield pinned[0].strip()


def oldest_versions() -> Iterator[str]:
    """The oldest version that `pyproject.toml` allows of each package that users get, in any extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [packages for name, packages in project["optional-dependencies"].items() if name != "test"]
    for requirement in map(Requirement, itertools.chain(project["dependencies"], *extras)):
        for bound in requirement.specifier:
            if bound.operator in {">=", "~="}:
                yield f"{requirement.name}=={bound.version}"


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PIP_NO_COMPILE"] = "1"  # most of what is installed is never imported
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode and any(reason in done.stderr for reason in _NO_INDEX):
        raise IndexUnavailable(done.stderr)
    assert done.returncode == 0, f"pip {' '.join(arguments)}\n{done.stderr}"
    return done.stdout
