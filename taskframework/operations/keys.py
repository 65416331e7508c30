"""Makes, lists and revokes API keys; identifies a caller by its key or token."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from taskframework.errors import InvalidRequestError, TaskframeworkError
from taskframework.model.keys import (
    KEY,
    ApiKey,
    Caller,
    Role,
    is_reserved,
    new_key,
    prefix_of,
    sha256_of,
    with_prefixes_only,
)
from taskframework.model.query import Page
from taskframework.model.rate_limits import BucketLimit
from taskframework.model.records import Record
from taskframework.model.scope import ANONYMOUS
from taskframework.model.values import NAME_RULE, is_name
from taskframework.model.view import format_time
from taskframework.stores.base import Records
from taskframework.stores.reading import read_page, read_record

#: Seconds that a process remembers a key that it has read, and so the longest time in which a revoked key still works.
REMEMBERED_SECONDS = 5.0
#: The most keys that a process remembers, including unknown ones, so that guessing cannot fill the memory.
_MAX_REMEMBERED_KEYS = 10_000
#: Seconds between two looks whether the first key was made.
_LOOK_INTERVAL_SECONDS = 1.0

_MAX_VALIDITY = timedelta(days=3660)
_EXAMPLE = "Give the name of the user or program that the key is for, such as billing-service."

#: The caller of every request while there are no keys.
ANYBODY = Caller(ANONYMOUS, (Role.ADMIN,), may_act_for_users=True)


class KeyNotFoundError(TaskframeworkError):
    """There is no such API key."""

    code = "key_not_found"
    hint = "List the keys to see their prefixes."

    def __init__(self, prefix: str) -> None:
        super().__init__(f"There is no API key {prefix[:100]!r}.")


class TokenKeysUnavailableError(TaskframeworkError):
    """The keys by which tokens are checked cannot be read."""

    hint = "Check security.jwt_keys, and that the server in it answers."


def key_view(key: ApiKey) -> dict[str, Any]:
    """Return a stored key as plain JSON, without its hash."""
    return {
        "prefix": key.prefix,
        "principal": key.principal,
        "roles": list(key.roles),
        "may_act_for_users": key.may_act_for_users,
        "created_by": key.created_by,
        "created_at": format_time(key.created_at),
        "expires_at": format_time(key.expires_at),
        "revoked_by": key.revoked_by,
        "revoked_at": format_time(key.revoked_at),
        "limit": None if key.limit is None else {"rate": key.limit.rate, "burst": key.limit.burst},
    }


class KeyOperations:
    """The operations of an administrator on keys."""

    def __init__(self, records: Records, now: Callable[[], datetime]) -> None:
        """Prepare.

        Args:
            records: where the keys are.
            now: returns the store's time.
        """
        self._records = records
        self._now = now

    async def create(
        self,
        principal: str,
        roles: Collection[Role],
        *,
        by: str,
        may_act_for_users: bool = False,
        expires_after: timedelta | None = None,
        limit: BucketLimit | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key. After the first key of an installation, every caller of the HTTP interface needs a key.

        Args:
            principal: the owner of the tasks that are submitted with the key.
            roles: what a caller may do with the key.
            by: the caller who makes the key.
            may_act_for_users: whether callers may submit for other users, and look at their tasks.
            expires_after: how long the key is valid; None means until it is revoked.
            limit: how many requests may be made with the key; None means as many as the settings allow.

        Returns:
            The stored entry, and the key itself, which cannot be read again.

        Raises:
            InvalidRequestError: if the principal, the roles or the time are not valid.
            StoreUnavailableError: if the key could not be stored.
        """
        if is_reserved(principal):
            reason = f"{principal!r} is reserved for callers without a key"
            raise InvalidRequestError("principal", reason, _EXAMPLE)
        if not is_name(principal):
            raise InvalidRequestError("principal", NAME_RULE, _EXAMPLE)
        if with_prefixes_only(principal) != principal:  # it would be shown in lists
            raise InvalidRequestError("principal", "must not contain an API key", _EXAMPLE)
        if principal != principal.strip():  # would look like another user's name
            raise InvalidRequestError("principal", "must not begin or end with a space", _EXAMPLE)
        if not roles:
            raise InvalidRequestError("roles", "must be at least one role", f"The roles are {', '.join(Role)}.")
        if expires_after is not None and not timedelta(0) < expires_after <= _MAX_VALIDITY:
            raise InvalidRequestError("expires_after", "must be above zero and at most ten years", "Try 90d.")
        now = self._now()
        prefix, text = new_key()
        expires_at = None if expires_after is None else now + expires_after
        known = tuple(role for role in Role if role in roles)
        key = ApiKey(prefix, sha256_of(text), principal, known, may_act_for_users, by, now, expires_at, limit=limit)
        await self._records.write_records([KEY.new(prefix, content=key)])
        return key, text

    async def list_keys(self, *, limit: int, after: str | None = None) -> Page[ApiKey]:
        """Return keys in the order of their prefixes, from the first after `after`, including revoked keys."""
        return await read_page(self._records, KEY, limit=limit, after=after)

    async def get(self, prefix: str) -> ApiKey:
        """Read one key, by its prefix or by the whole key.

        Raises:
            KeyNotFoundError: if there is no key with this prefix.
        """
        return KEY.content(await self._record(prefix))

    async def revoke(self, prefix: str, *, by: str) -> ApiKey:
        """Make a key invalid, in all processes within five seconds; by its prefix or by the whole key.

        Raises:
            KeyNotFoundError: if there is no key with this prefix.
        """
        while True:
            record = await self._record(prefix)
            key = KEY.content(record)
            if key.revoked_at is not None:
                return key
            revoked = replace(key, revoked_by=by, revoked_at=self._now())
            [written] = await self._records.write_records([KEY.changed(record, revoked)])
            if written is not None:
                return revoked

    async def _record(self, prefix: str) -> Record:
        prefix = with_prefixes_only(prefix)
        record = await read_record(self._records, KEY.id_of(prefix))
        if record is None:
            raise KeyNotFoundError(prefix)
        return record


class TokenReader(Protocol):
    """Identifies callers by tokens that an issuer made."""

    async def find(self, text: str, *, may_ask: bool = True) -> Caller | None:
        """Return the caller that this token identifies; None if the text is not a valid token.

        Args:
            text: the text in the request.
            may_ask: whether the issuer may be asked for keys that this process does not know.
        """
        ...


class Callers:
    """Identifies the callers of one process."""

    def __init__(
        self,
        records: Records,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
        tokens: Callable[[], TokenReader] | None = None,
    ) -> None:
        """Remember no key yet.

        Args:
            records: where the keys are.
            now: returns the store's time.
            monotonic: returns seconds of a clock that is never set.
            tokens: makes the reader of tokens, when the first token comes; None if tokens are not accepted.
        """
        self._records = records
        self._now = now
        self._monotonic = monotonic
        self._make_tokens = tokens
        self._tokens: TokenReader | None = None
        #: By prefix: when the key was read, and the key, or None if there was no such key.
        self._remembered: OrderedDict[str, tuple[float, ApiKey | None]] = OrderedDict()
        #: Whether a key was ever made; None until the first look.
        self._has_keys: bool | None = None
        self._looked_at = 0.0

    async def are_identified(self) -> bool:
        """Return whether tokens are accepted, or a key was ever made; if not, everybody may do everything."""
        if self._make_tokens is not None:
            return True
        is_due = self._has_keys is None or self._monotonic() - self._looked_at >= _LOOK_INTERVAL_SECONDS
        if not self._has_keys and is_due:
            self._looked_at = self._monotonic()
            self._has_keys = bool(await self._records.list_records(KEY.name, limit=1))
        return bool(self._has_keys)

    async def find(self, text: str, *, may_ask: bool = True) -> Caller | None:
        """Return the caller that this key or token identifies; None if the text is not valid.

        Args:
            text: the text in the request.
            may_ask: whether the store, or the issuer of tokens, may be asked about keys unknown to this process.

        Raises:
            StoreUnavailableError: if the store does not answer.
            TokenKeysUnavailableError: if there are no keys by which tokens can be checked.
        """
        prefix = prefix_of(text)
        if prefix is None:
            return await self._find_token(text, may_ask)
        _, known = self._remembered.get(prefix, (None, None))
        if not may_ask and (known is None or not known.matches(text, self._now())):
            return None
        key = await self._read(prefix)
        return key.caller if key is not None and key.matches(text, self._now()) else None

    async def is_still_valid(self, caller: Caller) -> bool:
        """Return whether the key or token of an earlier request is still valid; for requests that last long.

        Raises:
            StoreUnavailableError: if the store does not answer.
        """
        if caller.expires_at is not None:
            return self._now() < caller.expires_at
        if caller.prefix is None:
            return not await self.are_identified()
        key = await self._read(caller.prefix)
        return key is not None and key.is_valid_at(self._now())

    def forget(self, prefix: str) -> None:
        """Read a key again when a request has it next, because this process revoked it."""
        self._remembered.pop(prefix, None)

    async def _find_token(self, text: str, may_ask: bool) -> Caller | None:
        if self._make_tokens is None:
            return None
        if self._tokens is None:
            self._tokens = self._make_tokens()
        return await self._tokens.find(text, may_ask=may_ask)

    async def _read(self, prefix: str) -> ApiKey | None:
        read_at, key = self._remembered.get(prefix, (None, None))
        if read_at is not None and self._monotonic() - read_at < REMEMBERED_SECONDS:
            return key
        record = await read_record(self._records, KEY.id_of(prefix))
        key = None if record is None else KEY.content(record)
        self._remembered[prefix] = self._monotonic(), key
        self._remembered.move_to_end(prefix)
        if len(self._remembered) > _MAX_REMEMBERED_KEYS:
            self._remembered.popitem(last=False)
        return key
