"""`--app`: imports the user's program and finds its tasks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from taskframework.errors import ConfigurationError, RegistrationError, TaskframeworkError
from taskframework.frames import shown_place
from taskframework.runtime import TaskFramework

_PACKAGE = os.path.join(str(Path(__file__).parents[1]), "")


@dataclass(frozen=True, slots=True)
class AppName:
    """`module`, or `module:name` of a framework that the module builds."""

    module: str
    attribute: str | None

    @classmethod
    def parse(cls, text: str) -> AppName:
        module, separator, attribute = text.partition(":")
        if "/" in module or module.endswith(".py"):
            dotted = module.removesuffix(".py").strip("./").replace("/", ".")
            raise ConfigurationError(
                f"--app {text}: this is a file, not a module.",
                key="app.modules",
                hint=f"Write --app {dotted}{separator}{attribute}, in the folder where that can be imported.",
            )
        if not module or (separator and not attribute):
            raise ConfigurationError(
                f"--app {text!r} names no module.", key="app.modules", hint="Write --app package.module[:name]."
            )
        return cls(module, attribute or None)

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}" if self.attribute else self.module


def find_framework(names: Iterable[AppName]) -> TaskFramework | None:
    """The framework that one of the names points at, if any.

    Raises:
        ConfigurationError: if a name does not point at a framework, or if two names point at one.
    """
    framework_apps = [name for name in names if name.attribute is not None]
    if len(framework_apps) > 1:
        raise ConfigurationError(
            f"--app names two frameworks: {framework_apps[0]} and {framework_apps[1]}.",
            hint="Give one of them as module:name and the others as plain modules.",
        )
    return _load_framework(framework_apps[0]) if framework_apps else None


def register_modules(framework: TaskFramework, modules: Iterable[str]) -> None:
    """Register every concrete executable of these modules, each module once.

    Raises:
        ConfigurationError: if a module cannot be imported, or extends a framework that would not be used.
        RegistrationError: if a module has no usable task.
    """
    registered = {type(registration.executable).__module__ for registration in framework.registry}
    for name in dict.fromkeys(modules):
        if name in registered:  # the program has registered its tasks itself
            continue
        module = import_module(name)
        _refuse_unused_extensions(framework, module)
        try:
            framework.register_module(module)
        except RegistrationError as error:
            raise _add_framework_hint(error, module) from error


def import_module(name: str) -> ModuleType:
    """Import one of the user's modules, also from the working directory.

    Raises:
        ConfigurationError: with the place of the error in the module, or what to do if there is no such module.
    """
    working_directory = os.getcwd()
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise _missing_module_error(name, error.name, working_directory) from error
        raise _broken_module_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken_module_error(name, error) from error


def _load_framework(name: AppName) -> TaskFramework:
    module = import_module(name.module)
    found = getattr(module, name.attribute or "", None)
    if isinstance(found, TaskFramework):
        return found
    problem = "there is no such name" if found is None else f"it is of the type {type(found).__name__}"
    if isinstance(found, type):
        problem = "it is a class"
    framework_names = _framework_names_in(module)
    raise ConfigurationError(
        f"--app {name}: {problem} in {module.__name__}, but a TaskFramework is needed.",
        hint=f"Did you mean --app {name.module}:{framework_names[0]}?"
        if framework_names
        else f"Write --app {name.module} to register the tasks that are defined there.",
    )


def _refuse_unused_extensions(framework: TaskFramework, module: ModuleType) -> None:
    for name in _framework_names_in(module):
        other: TaskFramework = vars(module)[name]
        if other.is_extended and other is not framework:
            raise ConfigurationError(
                f"Module {module.__name__!r} adds middleware or lifespan hooks to its {name}, but the tasks would run "
                "without them.",
                key="app.modules",
                hint=f"Write --app {module.__name__}:{name}.",
            )


def _framework_names_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, TaskFramework)]


def _add_framework_hint(error: RegistrationError, module: ModuleType) -> RegistrationError:
    framework_names = _framework_names_in(module)
    hint = (
        f"The module builds a TaskFramework: write --app {module.__name__}:{framework_names[0]}."
        if framework_names
        else error.hint
    )
    return RegistrationError(error.message, hint=hint)


def _missing_module_error(name: str, missing: str, working_directory: str) -> ConfigurationError:
    where = f"{working_directory} and the installed packages"
    problem = f"There is no module {name!r} in {where}."
    if missing != name:
        problem = f"There is no module {name!r}: {missing!r} is not in {where}."
    file, (parent, _, last) = name.replace(".", os.sep), missing.rpartition(".")
    hint = f"Run the command in the folder that holds {file}.py or {file}{os.sep}, or install the package."
    if parent in sys.modules and hasattr(sys.modules[parent], last):
        hint = f"--app names a module, not what is in it: --app {parent}."
    return ConfigurationError(problem, key="app.modules", hint=hint)


def _broken_module_error(name: str, error: BaseException) -> ConfigurationError:
    hint = f"Fix it, then try `python -c 'import {name}'`."
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, TaskframeworkError):
        reason, hint = error.message.rstrip("."), error.hint or hint
    location = _error_location(error)
    if location in reason:  # the reason names the place already
        location = ""
    return ConfigurationError(f"Module {name!r} cannot be imported: {reason}{location}.", key="app.modules", hint=hint)


def _error_location(error: BaseException) -> str:
    """The line of the user's code that failed: the last one that is neither Python's import machinery nor ours."""
    if isinstance(error, SyntaxError):
        return ""  # the message of the error names the place
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not frame.filename.startswith(("<", _PACKAGE, importlib.__file__))]
    if not user_frames:
        return ""
    return shown_place(user_frames[-1].filename, user_frames[-1].lineno)
