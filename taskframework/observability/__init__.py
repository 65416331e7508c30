"""Logs, metrics and traces. This sub-package only listens; no other part depends on it."""
