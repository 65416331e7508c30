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


def built_framework(names: Iterable[AppName]) -> TaskFramework | None:
    """The framework that one of the names points at, if any.

    Raises:
        ConfigurationError: if a name does not point at a framework, or if two names point at one.
    """
    built = [name for name in names if name.attribute is not None]
    if len(built) > 1:
        raise ConfigurationError(
            f"--app names two frameworks: {built[0]} and {built[1]}.",
            hint="Give one of them as module:name and the others as plain modules.",
        )
    return _framework_of(built[0]) if built else None


def register_modules(framework: TaskFramework, modules: Iterable[str]) -> None:
    """Register every concrete executable of these modules, each module once.

    Raises:
        ConfigurationError: if a module cannot be imported, or extends a framework that would not be used.
        RegistrationError: if a module has no usable task.
    """
    registered = {type(registration.executable).__module__ for registration in framework.registry}
    for name in dict.fromkeys(modules):
        if name in registered:  # by the program itself
            continue
        module = import_module(name)
        _check_nothing_is_left_out(framework, module)
        try:
            framework.register_module(module)
        except RegistrationError as error:
            raise _with_framework_hint(error, module) from error


def import_module(name: str) -> ModuleType:
    """Import one of the user's modules, also from the working directory.

    Raises:
        ConfigurationError: with the place of the error in the module, or what to do if there is no such module.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise _no_such_module(name, error.name, here) from error
        raise _broken_module(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken_module(name, error) from error


def _framework_of(name: AppName) -> TaskFramework:
    module = import_module(name.module)
    found = getattr(module, name.attribute or "", None)
    if isinstance(found, TaskFramework):
        return found
    what = "there is no such name" if found is None else f"it is a {type(found).__name__}"
    there = _frameworks_in(module)
    raise ConfigurationError(
        f"--app {name}: {what} in {module.__name__}, but a TaskFramework is needed.",
        hint=f"Did you mean --app {name.module}:{there[0]}?"
        if there
        else f"Write --app {name.module} to register the tasks that are defined there.",
    )


def _check_nothing_is_left_out(framework: TaskFramework, module: ModuleType) -> None:
    for name in _frameworks_in(module):
        other: TaskFramework = vars(module)[name]
        if other.is_extended and other is not framework:
            raise ConfigurationError(
                f"Module {module.__name__!r} adds middleware or lifespan hooks to its {name}, but the tasks would run "
                "without them.",
                key="app.modules",
                hint=f"Write --app {module.__name__}:{name}.",
            )


def _frameworks_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, TaskFramework)]


def _with_framework_hint(error: RegistrationError, module: ModuleType) -> RegistrationError:
    there = _frameworks_in(module)
    hint = f"The module builds a TaskFramework: write --app {module.__name__}:{there[0]}." if there else error.hint
    return RegistrationError(error.message, hint=hint)


def _no_such_module(name: str, missing: str, here: str) -> ConfigurationError:
    where = f"{here} and the installed packages"
    what = f"There is no module {name!r} in {where}."
    if missing != name:
        what = f"There is no module {name!r}: {missing!r} is not in {where}."
    file = name.replace(".", os.sep)
    return ConfigurationError(
        what,
        key="app.modules",
        hint=f"Run the command in the folder that holds {file}.py or {file}{os.sep}, or install the package.",
    )


def _broken_module(name: str, error: BaseException) -> ConfigurationError:
    hint = f"Fix it, then try `python -c 'import {name}'`."
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, TaskframeworkError):
        reason, hint = error.message.rstrip("."), error.hint or hint
    place = _place(error)
    if place in reason:  # the reason names the place already
        place = ""
    return ConfigurationError(f"Module {name!r} cannot be imported: {reason}{place}.", key="app.modules", hint=hint)


def _place(error: BaseException) -> str:
    """The line of the user's code that failed: the last one that is neither Python's import machinery nor ours."""
    if isinstance(error, SyntaxError):
        return ""  # its message names the place
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<", _PACKAGE, importlib.__file__))]
    if not own:
        return ""
    return shown_place(own[-1].filename, own[-1].lineno)
