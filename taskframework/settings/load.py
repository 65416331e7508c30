"""Reads the configuration from its sources: defaults, application.yml, a profile, the environment, the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from taskframework.errors import ConfigurationError
from taskframework.settings import validation_errors
from taskframework.settings.keys import flatten, known_keys
from taskframework.settings.schema import Settings
from taskframework.settings.sources import Layer, from_environment, from_file, from_overrides
from taskframework.urls import redacted

FILE_NAME = "application.yml"
PROFILE_VARIABLE = "TASKFRAMEWORK_PROFILE"

_DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings in force.

    Attributes:
        settings: the values.
        origins: for each dotted key, where its value came from: `default`, `application.yml:12`,
            `environment TASKFRAMEWORK_BROKER__URL` or `command line`.
    """

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """One setting for a person to read; passwords are masked. Values are plain: text, number, list or None."""

    key: str
    value: object
    default: object
    origin: str
    description: str


def load_settings(
    path: Path | str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> LoadedSettings:
    """Read the configuration; later layers win: defaults, file, profile, environment, overrides.

    Args:
        path: the settings file; it must exist. Without it, `application.yml` of the directory is read if it is there.
        environ: `TASKFRAMEWORK_<SECTION>__<KEY>` sets a key, `TASKFRAMEWORK_PROFILE=name` adds `config/name.yml`.
        overrides: values by dotted key, such as `{"api.port": 8001}`; None counts as not given.
        directory: where `application.yml` and `config/` are; by default the folder of `path`, or the working directory.

    Raises:
        ConfigurationError: if anything is wrong; it lists all problems, each with its key and place.
    """
    path = None if path is None else Path(path)
    base = directory or (path.parent if path else Path.cwd())
    layers = [
        _file_layer(path, base),
        _profile_layer(environ.get(PROFILE_VARIABLE, ""), base),
        from_environment(environ),
        from_overrides(overrides or {}),
    ]
    given = {entry.path: entry for layer in layers for entry in layer.entries}
    places = dict.fromkeys(known_keys(), _DEFAULT_ORIGIN) | {path: entry.place for path, entry in given.items()}
    problems = [problem for layer in layers for problem in layer.problems]
    tree = Settings().model_dump()
    for entry in given.values():
        section, name = entry.path
        tree[section][name] = entry.value
    try:
        settings = Settings.__pydantic_validator__.validate_python(tree)
    except ValidationError as error:
        problems += validation_errors.explain_validation_error(error, Settings, places)
    if problems:
        raise validation_errors.configuration_error(problems)
    origins = {".".join(path): place for path, place in places.items()}
    return LoadedSettings(settings, MappingProxyType(origins))


def explain(loaded: LoadedSettings) -> list[ExplainedSetting]:
    """Every setting with its value, default, origin and meaning, in the order of the schema."""
    rows = []
    for path, value in flatten(loaded.settings.model_dump(mode="json")).items():
        known = known_keys().get(path)
        default, description = (known.default, known.description) if known else (None, "")
        key = ".".join(path)
        shown = redacted(value) if isinstance(value, str) else value
        rows.append(ExplainedSetting(key, shown, default, loaded.origins[key], description))
    return rows


def _file_layer(path: Path | None, base: Path) -> Layer:
    if path is not None:
        return from_file(path, str(path))
    found = base / FILE_NAME
    return from_file(found, FILE_NAME) if found.exists() else Layer()


def _profile_layer(name: str, base: Path) -> Layer:
    if not name:
        return Layer()
    file = base / "config" / f"{name}.yml"
    if not re.fullmatch(r"[\w-]+", name) or not file.is_file():
        existing = sorted(found.stem for found in (base / "config").glob("*.yml") if found.stem != "logging")
        raise ConfigurationError(
            f"There is no profile {name!r} ({PROFILE_VARIABLE}): config/{name}.yml is missing in {base}.",
            hint=f"Existing profiles: {', '.join(existing) or 'none'}. Choose one, or unset {PROFILE_VARIABLE}.",
        )
    return from_file(file, f"config/{name}.yml")
