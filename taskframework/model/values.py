"""Users' values: plain JSON that every store keeps unchanged, within limits."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import ValidationError

from taskframework.errors import WHOLE, ValueNotStorableError

#: Texts of pydantic that speak of Python, or do not say what to do, and the texts that replace them for JSON clients.
NO_FIELD = "there is no such field"
_PLAINER_MESSAGES = (
    (re.compile(r"Extra inputs are not permitted|Unexpected keyword argument"), NO_FIELD),
    (re.compile(r"Input should be a (valid )?dictionary( or .*)?"), "Input should be an object"),
    (re.compile(r"Input should have timezone info"), "needs a time zone, such as Z at its end"),
    (re.compile(r"Input should be greater than datetime\.timedelta\(0\)"), "Input should be greater than 0s"),
)
_ENUM_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")
#: A JSON value. The type is not written recursively, because type checkers and pydantic would be slower at each use.
Json = Any

#: Most bytes of each value as JSON. All of them, the last errors and the history must also fit into one MongoDB
#: document, which has at most 16 MB. Values that take many more bytes there, such as lists of numbers, may not fit.
MAX_PARAMETERS_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_PROGRESS_BYTES = 16 * 1024
MAX_SIGNAL_BYTES = 64 * 1024
#: Most steps of one task, characters of a step's name, bytes of one outcome, and of all outcomes with their names.
MAX_STEPS = 1_000
MAX_STEP_NAME_LENGTH = 200
MAX_STEP_BYTES = 256 * 1024
MAX_STEPS_BYTES = 1024 * 1024
#: Levels of arrays and objects in one value. BSON allows 100, and the document around the value takes some of them.
MAX_DEPTH = 64
#: Characters of a name.
MAX_NAME_LENGTH = 200
#: What `is_name` checks, for errors.
NAME_RULE = f"must be 1 to {MAX_NAME_LENGTH} printable ASCII characters"
#: The end of the reason why a value of some class cannot be stored.
NO_JSON_TYPE = "is not a JSON type"
#: Characters of the reason for an action.
MAX_REASON = 1000
#: How many wrong fields of one value an error names.
MAX_PROBLEMS = 50
#: The first whole number that is too large for a store.
INT64_END = 2**63


def check_storable(value: Json, what: str, max_bytes: int) -> bytes:
    """Refuse a value that a store could not keep and return unchanged.

    Args:
        value: the value to check, already plain Python data.
        what: its name in the error, for example "result".
        max_bytes: largest size as JSON.

    Returns:
        The value as canonical JSON (sorted keys), good for a hash.

    Raises:
        ValueNotStorableError: for a type that JSON does not have, NaN or an infinity, an integer beyond 64 bits, a text
            that is not valid Unicode or a key with NUL in it, more than 64 levels, or too many bytes.
    """
    _check(value, what, MAX_DEPTH)
    try:
        encoded = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise ValueNotStorableError(what, str(error)) from error
    if len(encoded) > max_bytes:
        raise ValueNotStorableError(what, f"it has {len(encoded):,} bytes as JSON, the limit is {max_bytes:,}")
    return encoded


def _check(value: Json, what: str, depth: int) -> None:
    if depth < 0:
        raise ValueNotStorableError(what, f"it is nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool():
            pass
        case str():
            _check_text(value, what)
        case int():
            if not -INT64_END <= value < INT64_END:
                raise ValueNotStorableError(what, f"an integer needs {value.bit_length() + 1} bits, more than 64")
        case float():
            if not math.isfinite(value):
                raise ValueNotStorableError(what, f"{value} is not a JSON number")
        case list() | tuple():
            for item in value:
                _check(item, what, depth - 1)
        case dict():
            for key, item in value.items():
                _check_key(key, what)
                _check(item, what, depth - 1)
        case _:
            raise ValueNotStorableError(what, f"{type(value).__name__} {NO_JSON_TYPE}")


def _check_key(key: object, what: str) -> None:
    if not isinstance(key, str):
        raise ValueNotStorableError(what, f"a key is of type {type(key).__name__}, not a text")
    if "\0" in key:
        raise ValueNotStorableError(what, "a key contains the NUL character")
    _check_text(key, what)


def _check_text(text: str, what: str) -> None:
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueNotStorableError(what, "a text contains half of a surrogate pair and is not valid Unicode")


def is_name(value: object) -> bool:
    """Return whether a value may name something: a text, not empty, not too long, printable ASCII."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH and value.isascii() and value.isprintable()


def shell_quoted(text: str) -> str:
    """A text as the last word of a shell command that a person may paste. A text from a user must not run code."""
    return f"-- {shlex.quote(text)}" if text.startswith("-") else shlex.quote(text)


def fingerprint(*parts: bytes | str) -> str:
    """A short stable hash of some texts, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "replace") if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def problems_of(error: ValidationError) -> list[dict[str, Any]]:
    """A pydantic error as field and message pairs, without the input (it may be a secret)."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[:MAX_PROBLEMS]
    return [problem(entry["loc"], entry["msg"]) for entry in found]


def in_one_line(error: ValidationError) -> str:
    """A pydantic error as one sentence for a person."""
    texts = (f"{wrong['field']}: {wrong['message']}" for wrong in problems_of(error))
    return "; ".join(text.removeprefix(f"{WHOLE}: ") for text in texts)


def problem(place: Sequence[str | int], message: str) -> dict[str, Any]:
    """A field that does not fit, and why; the parts of a nested field name are joined by dots."""
    return {"field": ".".join(map(str, place)) or WHOLE, "message": _plain_message(message)}


def _plain_message(message: str) -> str:
    """The message of a validator, without the words that pydantic puts before it, with members of an enum as values."""
    for words, plainer in _PLAINER_MESSAGES:
        if words.fullmatch(message):
            return plainer
    said = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return _ENUM_MEMBER.sub(r"\1", said)
