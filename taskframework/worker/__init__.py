"""Consume, claim, execute, settle: the stations of an attempt."""
