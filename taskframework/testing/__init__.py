"""Tools for tests: of programs that use taskframework, and of its own adapters."""

from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually

__all__ = ["FakeClock", "eventually"]
