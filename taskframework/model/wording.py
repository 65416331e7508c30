"""Numbers in texts for people."""

from __future__ import annotations


def pluralize(number: float, noun: str, plural: str | None = None) -> str:
    """`1 task`, `1,000 tasks`, `0.5 tasks`; give the plural if it does not end in a further s."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun if number == 1 else plural or f'{noun}s'}"
