"""What every adapter must do, as test suites: subclass one, say how to make the adapter, and pytest runs it."""

import pkgutil

import pytest

# Before any of them is imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
