"""API keys, and the callers of the HTTP interface that they identify.

A key is a text that its owner sends with each request. It is shown once, when it is made; only its SHA-256 is stored.
A key has 256 random bits, so nobody can find a key by trying: a slow hash would add no protection and slow down each
request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from taskframework.model.rate_limits import BucketLimit
from taskframework.model.records import RecordKind
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.values import NAME_RULE, is_name

_KEY_MARK = "tf"
#: Random bytes of the part that names a key, and of the part that is secret.
_PREFIX_BYTES, _SECRET_BYTES = 5, 32
#: Most characters of a text that may be a key; a longer text is not even hashed.
_MAX_KEY_LENGTH = 200
_WHOLE_KEY = re.compile(rf"\b({_KEY_MARK}_[0-9a-f]{{{2 * _PREFIX_BYTES}}})_[A-Za-z0-9_-]+")


class Role(StrEnum):
    """What a caller may do; each role includes the rights of the roles before it."""

    #: Look at its own tasks.
    READER = "reader"
    #: Submit tasks, and cancel, retry and signal its own tasks.
    SUBMITTER = "submitter"
    #: The same for the tasks of all users, and everything below `/admin` except keys.
    OPERATOR = "operator"
    #: Make and revoke keys.
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role has all rights of another role."""
        return _ROLES_ASCENDING.index(self) >= _ROLES_ASCENDING.index(other)


_ROLES_ASCENDING = tuple(Role)
#: Names in history and audit that belong to no key: callers while there are no keys, schedules, commands (`cli:ada`).
_RESERVED_PRINCIPALS = frozenset({"anonymous", "scheduler", "cli"})


def is_reserved(principal: str) -> bool:
    """Return whether history and audit use this name for something without a key, so that no key may be made for it."""
    return principal.partition(":")[0] in _RESERVED_PRINCIPALS


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    #: The user who owns the tasks it submits, and who is named in history and log.
    principal: str
    #: Roles, or their names.
    roles: Collection[Role | Literal["reader", "submitter", "operator", "admin"]]
    #: Whether it may act for any user that it names, to submit and to look: a program that serves many users.
    may_act_for_users: bool = False
    #: The beginning of the key that it sent; None: callers are not identified, or it sent a token.
    prefix: str | None = None
    #: When the token that it sent expires; None: it sent no token.
    expires_at: datetime | None = None
    #: How many requests it may make; None: as many as the settings allow.
    limit: BucketLimit | None = None

    def __post_init__(self) -> None:
        """Check the name and the roles here, not with the first request that needs one.

        Raises:
            TypeError: if the principal is no text, or the roles are no roles.
            ValueError: if the principal cannot be the owner of tasks.
        """
        name: object = self.principal
        if not isinstance(name, str):
            raise TypeError(f"The principal of a taskframework.Caller is {name!r:.100}; it has to be a text.")
        if not is_name(name):
            raise ValueError(
                f"The principal of a taskframework.Caller is {name!r:.100}; it {NAME_RULE}, such as the user's id."
            )
        given: object = self.roles
        are_many = isinstance(given, Collection) and not isinstance(given, str)
        if not are_many or not all(role in _ROLES_ASCENDING for role in self.roles):
            raise TypeError(
                f"The roles of a taskframework.Caller are {given!r:.100}; they have to be a tuple or list of "
                f'{", ".join(Role)}, such as ("submitter",).'
            )
        object.__setattr__(self, "roles", tuple(role for role in Role if role in self.roles))

    def may(self, needed: Role) -> bool:
        """Return whether one of its roles is enough."""
        return any(Role(role).includes(needed) for role in self.roles)

    @property
    def scope(self) -> Scope:
        """Whose tasks it may see and change."""
        return EVERYONE if self.may_act_for_users or self.may(Role.OPERATOR) else Scope.of(self.principal)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The stored fields of a key."""

    #: The beginning of the key, which is its name for people and in records.
    prefix: str
    sha256: str
    principal: str
    roles: tuple[Role, ...]
    may_act_for_users: bool
    created_by: str
    created_at: datetime
    #: None: never.
    expires_at: datetime | None = None
    revoked_by: str | None = None
    revoked_at: datetime | None = None
    #: How many requests may be made with it; None: as many as the settings allow.
    limit: BucketLimit | None = None

    def matches(self, text: str, now: datetime) -> bool:
        """Return whether a text is this key, and the key is still valid."""
        return hmac.compare_digest(self.sha256, sha256_of(text)) and self.is_valid_at(now)

    def is_valid_at(self, now: datetime) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def caller(self) -> Caller:
        """The caller that this key identifies."""
        return Caller(self.principal, self.roles, self.may_act_for_users, self.prefix, limit=self.limit)


#: One record for each key. It stays when the key is revoked: without any record the interface is open to everybody.
KEY = RecordKind("key", ApiKey)


def new_key() -> tuple[str, str]:
    """A new key: its prefix, and the whole key."""
    prefix = f"{_KEY_MARK}_{secrets.token_hex(_PREFIX_BYTES)}"
    return prefix, f"{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def prefix_of(text: str) -> str | None:
    """The prefix of a text that may be a key; None if the text cannot be a key."""
    match = _WHOLE_KEY.fullmatch(text) if len(text) <= _MAX_KEY_LENGTH else None
    return None if match is None else match[1]


def with_prefixes_only(text: str) -> str:
    """The text with each API key in it cut to its prefix.

    People paste a whole key where the name or the prefix of a key belongs, above all to revoke a key that leaked.
    """
    return _WHOLE_KEY.sub(r"\1", text)


def sha256_of(text: str) -> str:
    """The SHA-256 of a key, which is stored in place of the key."""
    return hashlib.sha256(text.encode()).hexdigest()
