"""Print the settings reference as Markdown, or with `--yaml` as `application.yml`. Both are made from the schema."""

from __future__ import annotations

import sys

import yaml

from taskframework.settings.keys import Key, known_keys, section_titles

_INTRODUCTION = """\
# Settings

Every setting has a default, so nothing needs a file. A value is taken from the last of these that gives it:

1. the default;
2. `application.yml` in the working directory, or the file that `--config` names;
3. the profile: `config/<name>.yml` beside it, if `TASKFRAMEWORK_PROFILE=<name>` is set;
4. an environment variable `TASKFRAMEWORK_<SECTION>__<KEY>` (lists as JSON or YAML);
5. a flag of the command line.

`taskframework config show` prints each value and where it came from. A key that does not exist is an error that names
the nearest one. Durations are written `250ms`, `30s`, `5m`, `1h30m`, `7d` or in ISO-8601 (`PT30S`); a number without a
unit is refused, and so is more than 36,600 days (a hundred years). Where a value may be empty, write `null` in the file
or nothing in the variable. Passwords in addresses are never shown.

This page is made by `python -m taskframework.settings.reference`.
"""

_HEADER = "| Key | Type | Default | Environment variable | Meaning |\n|---|---|---|---|---|\n"

_YAML_INTRODUCTION = """\
# Every setting with its default. A file of your own needs only what differs; it may also lie elsewhere (--config).
# Over this file go: config/<name>.yml if TASKFRAMEWORK_PROFILE=<name>, then environment variables such as
# TASKFRAMEWORK_BROKER__URL, then command-line flags. Made by `python -m taskframework.settings.reference --yaml`.
"""


def markdown() -> str:
    """The reference: one table for each section."""
    parts = [_INTRODUCTION]
    for section, title in section_titles().items():
        rows = "".join(map(_row, _keys_of(section)))
        parts.append(f"\n## {section}\n\n{title}\n" + (f"\n{_HEADER}{rows}" if rows else ""))
    return "".join(parts)


def application_yml() -> str:
    """A settings file with every setting at its default, each below a line that describes it."""
    parts = [_YAML_INTRODUCTION]
    for section, title in section_titles().items():
        parts.append(f"\n# {title}\n{section}:\n")
        parts += [f"  # {key.description}.\n  {key.path[1]}: {_scalar(key.default)}\n" for key in _keys_of(section)]
    return "".join(parts)


def _row(key: Key) -> str:
    cells = (
        f"`{key.name}`",
        key.accepts,
        f"`{_scalar(key.default)}`",
        f"`{key.variable}`",
        key.description,
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _keys_of(section: str) -> list[Key]:
    return [key for key in known_keys().values() if key.path[0] == section]


def _scalar(value: object) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1000)).strip().removesuffix("...").strip()


if __name__ == "__main__":
    sys.stdout.write(application_yml() if "--yaml" in sys.argv[1:] else markdown())
