"""Logs, metrics and traces. Everything here listens; nothing depends on it."""
