"""Turns the options of a command into settings and a framework."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from taskframework.cli.applications import AppName, find_framework, register_modules
from taskframework.errors import ConfigurationError
from taskframework.runtime import TaskFramework
from taskframework.settings import LoadedSettings, Settings, load_settings


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options before and after the command's name, together."""

    config: Path | None = None
    apps: tuple[str, ...] = ()

    @classmethod
    def of(cls, context: typer.Context, config: Path | None = None, apps: Sequence[str] | None = None) -> Invocation:
        """Join the options before and after the command's name: the last --config counts, all --app are used."""
        root_options = context.find_root().params
        return cls(config or root_options["config"], (*(root_options["app"] or ()), *(apps or ())))

    def load(self, overrides: Mapping[str, object] | None = None) -> LoadedSettings:
        """Read the settings; `overrides` has the command's flags by dotted key, with None for flags that are not given.

        Raises:
            ConfigurationError: if the settings are wrong.
        """
        return load_settings(self.config, overrides=overrides)

    def framework(self, overrides: Mapping[str, object] | None = None, *, registers: bool = True) -> TaskFramework:
        """The user's framework if --app names one, otherwise a new one.

        Args:
            overrides: as in `load`.
            registers: import the modules that --app and `app.modules` name; a command that only looks at tasks does not
                need them.

        Raises:
            ConfigurationError: if settings or modules cannot be used.
            RegistrationError: if a module has no usable task.
        """
        framework = find_framework(self._names)
        if framework is None:
            framework = TaskFramework(self.load(overrides).settings)
        else:
            if self.config is not None:
                raise ConfigurationError(
                    "--config and --app module:name were given together, but that framework has its own settings.",
                    hint="Leave one of them out, or build the framework with load_settings(Path(...)).settings.",
                )
            framework.settings = _with_overrides(framework.settings, overrides or {})
        return self.register(framework) if registers else framework

    def register(self, framework: TaskFramework) -> TaskFramework:
        """Import the modules that --app and `app.modules` name, and register their tasks.

        Raises:
            ConfigurationError: if a module cannot be imported.
            RegistrationError: if a module has no usable task.
        """
        modules = [name.module for name in self._names if name.attribute is None]
        register_modules(framework, [*framework.settings.app.modules, *modules])
        return framework

    @property
    def framework_app(self) -> AppName | None:
        """The --app that names a framework, if one does."""
        return next((name for name in self._names if name.attribute is not None), None)

    @property
    def _names(self) -> list[AppName]:
        return [AppName.parse(text) for text in self.apps]


def _with_overrides(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """The settings, overridden by the command's flags."""
    set_flags = {key: value for key, value in overrides.items() if value is not None}
    if not set_flags:
        return settings
    load_settings(environ={}, overrides=set_flags, directory=Path(os.devnull))  # refuses wrong flags, with the reason
    tree = settings.model_dump()
    for key, value in set_flags.items():
        section, _, name = key.partition(".")
        tree[section][name] = value
    return Settings.model_validate(tree)
