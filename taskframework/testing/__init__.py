"""Tools for tests: of programs that use taskframework, and of its own adapters."""
