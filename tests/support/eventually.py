"""Waiting in async tests without guessing how long something takes."""

from taskframework.testing.eventually import eventually

__all__ = ["eventually"]
