"""Test suites for every adapter: subclass a suite, say how to make the adapter, and pytest runs the cases."""

import pkgutil

import pytest

# Before any module is imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
