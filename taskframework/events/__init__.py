"""Telling other programs: external events as CloudEvents on the events exchange."""
