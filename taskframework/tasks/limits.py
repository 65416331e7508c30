"""What a task type says of its limits."""

from __future__ import annotations

import json
from dataclasses import dataclass

from taskframework.errors import RegistrationError
from taskframework.model.values import Json, fingerprint

#: Characters of a key; of a longer one its hash stands for it.
_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Which bucket the attempts of a task type take their permits from.

    Args:
        name: of a bucket in the settings: `default`, or one of `rate_limiter.providers`.
        key: a field of the parameters. With it each value of the field has a bucket of its own.
    """

    name: str
    key: str | None = None

    def __post_init__(self) -> None:
        """Check both where they are written.

        Raises:
            RegistrationError: if one of them is no text.
        """
        given: tuple[tuple[str, object], ...] = (("name", self.name), ("key", "none" if self.key is None else self.key))
        for what, value in given:
            if not isinstance(value, str) or not value:
                raise RegistrationError(
                    f"The {what} of a rate limit is {value!r}.", hint=f"Use a text: {_EXAMPLES[what]}."
                )


_EXAMPLES = {
    "name": "the name of a bucket in the settings, such as 'default'",
    "key": "the name of a field of the parameters",
}


def key_of(parameters: Json, field: str) -> str:
    """The value of a field of some parameters as text, one text for each value; empty if it has none."""
    value = parameters.get(field) if isinstance(parameters, dict) else None
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST_KEY else fingerprint(text)
