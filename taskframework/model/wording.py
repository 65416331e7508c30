"""Numbers and lengths of time in texts for people."""

from __future__ import annotations

from datetime import timedelta

from taskframework.clock import in_seconds
from taskframework.model.task_fields import TaskError

#: Most characters of a text from outside, such as a reason, in a sentence.
_MAX_TEXT_LENGTH = 200
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def pluralize(number: float, noun: str, plural: str | None = None) -> str:
    """`1 task`, `1,000 tasks`, `0.5 tasks`; give the plural if it is not the noun with an s."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun if number == 1 else plural or f'{noun}s'}"


def duration_text(period: timedelta | float) -> str:
    """A length of time, or a number of seconds, in its two largest units: `3 ms`, `1.5 s`, `2 h 5 min`."""
    seconds = max(0.0, in_seconds(period))
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    [first, *_] = [place for place, (_, size) in enumerate(_UNITS) if seconds >= size]
    (name, size), (smaller_name, smaller_size) = _UNITS[first : first + 2]
    rest = int(seconds % size) // smaller_size
    return f"{int(seconds // size)} {name}" + (f" {rest} {smaller_name}" if rest else "")


def one_line(text: str) -> str:
    """A text from outside as part of a sentence: in one line, and cut if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_LENGTH else f"{line[:_MAX_TEXT_LENGTH]}…"


def error_line(error: TaskError) -> str:
    """The kind of an error, without its module, and its message as part of a sentence."""
    return one_line(f"{error.type.rpartition('.')[2]}: {error.message}").rstrip(".?!")
