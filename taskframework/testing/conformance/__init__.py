"""What every adapter must do, as test suites: subclass one, say how to make the adapter, and pytest runs it."""

import pytest

pytest.register_assert_rewrite("taskframework.testing.conformance")
