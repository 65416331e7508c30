"""Resources: objects that a worker opens once and gives to the code of its tasks, by type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from taskframework.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The default of a parameter that asks for a resource."""

    kind: type[Any]


def resource(kind: type[T]) -> T:
    """Ask for a resource of the worker, as the default of a parameter::

        async def execute(self, context: TaskContext[Order], pool: Pool = resource(Pool)) -> Receipt: ...

    When the code runs, the parameter is the object of this class, or of a subclass, that a lifespan hook yielded (see
    `TaskFramework.lifespan`). The return type is the class, so that a type checker knows the type of the parameter.

    Args:
        kind: the class of the resource.
    """
    return cast(T, Wanted(kind))


def wanted_resources(function: Callable[..., Any]) -> Mapping[str, type[Any]]:
    """The resources that a function asks for, by the names of its parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default.kind for each in parameters if isinstance(each.default, Wanted)}


class Resources:
    """The resources of one worker."""

    def __init__(self, products: Sequence[object] = ()) -> None:
        """Keep these objects; None is left out."""
        self._products = [product for product in products if product is not None]

    def given(self, wanted: Mapping[str, type[Any]]) -> dict[str, Any]:
        """The resources for some parameters, by their names.

        Raises:
            ConfigurationError: if the worker has no resource of a type, or more than one.
        """
        return {name: self._of(name, kind) for name, kind in wanted.items()}

    def _of(self, name: str, kind: type[Any]) -> Any:
        found = [product for product in self._products if isinstance(product, kind)]
        if len(found) == 1:
            return found[0]
        available = ", ".join(type(product).__qualname__ for product in self._products) or "nothing"
        raise ConfigurationError(
            f"The parameter {name} wants one {kind.__qualname__}, and {len(found) or 'none'} of what the worker has "
            f"{'are' if found else 'is'} one ({available}).",
            hint="Let exactly one hook of framework.lifespan(...) yield one.",
        )


NO_RESOURCES = Resources()
