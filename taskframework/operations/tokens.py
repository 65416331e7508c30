"""Identifies a caller by a token (JWT) from an issuer, a server that identifies users for many programs.

Nothing in a token is trusted before its signature is checked with a public key of the issuer, by an algorithm that the
settings name. Then the token must be for this installation (`aud`), from this issuer (`iss`), and not expired (`exp`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from taskframework.errors import ExtraMissingError
from taskframework.model.keys import Caller, Role, is_reserved
from taskframework.model.values import is_name
from taskframework.operations.token_keys import PublicKey, TokenKeys

try:
    import jwt
except ImportError as error:
    raise ExtraMissingError("security.jwt_keys", "PyJWT", "jwt") from error

logger = logging.getLogger(__name__)

#: The least seconds between two log lines about refusals of one kind, so that repeated requests do not fill the log.
_MIN_LOG_INTERVAL_SECONDS = 10.0
#: The most characters of a token; a longer text is refused.
_MAX_TOKEN_CHARACTERS = 8_000
#: Claims that a token must have. A token cannot be revoked, so a token without `exp` would be valid for ever.
_REQUIRED_CLAIMS = ["exp", "iss", "aud"]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens are valid, and what their claims mean."""

    issuer: str
    audience: str
    algorithms: Collection[str]
    #: How far the clock of the issuer may be off.
    leeway: timedelta
    principal_claim: str
    roles_claim: str
    users_claim: str


class _RefusedError(Exception):
    """A token is refused. Only the log has the reason, so that an attacker who invents tokens learns nothing."""


class _WrongSignatureError(_RefusedError):
    """A token was not signed with the key that was tried."""


class Tokens:
    """Identifies callers by tokens, in one process."""

    def __init__(self, rules: TokenRules, keys: TokenKeys, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Prepare.

        Args:
            rules: which tokens are valid.
            keys: the keys of the issuer.
            monotonic: returns seconds of a clock that is never set.
        """
        self._rules = rules
        self._keys = keys
        self._monotonic = monotonic
        #: When each kind of refusal was last logged.
        self._logged_at: dict[str, float] = {}

    async def find(self, text: str, *, may_ask: bool = True) -> Caller | None:
        """Return the caller that this token identifies; None if the token is not valid. The log says why.

        Args:
            text: the text in the request.
            may_ask: whether the issuer may be asked for keys that are not known yet.

        Raises:
            TokenKeysUnavailableError: if there are no keys, and none can be read now.
        """
        try:
            caller = self._make_caller(await self._read_claims(text, may_ask=may_ask))
        except _RefusedError as refused:
            self._log_once(str(refused), "a token was refused: %s", refused)
            return None
        if not caller.roles:
            claim = self._rules.roles_claim
            self._log_once(
                claim, "a token of %s has no rights: its claim %s contains no known role", caller.principal, claim
            )
        return caller

    def _log_once(self, kind: str, text: str, *values: object) -> None:
        """Log a line, unless a line of the same kind was logged just before."""
        now = self._monotonic()
        if now - self._logged_at.get(kind, float("-inf")) >= _MIN_LOG_INTERVAL_SECONDS:
            self._logged_at[kind] = now
            logger.info(text, *values)

    async def _read_claims(self, text: str, *, may_ask: bool) -> dict[str, Any]:
        """Return the claims of a token, whose signature is right.

        Raises:
            _RefusedError: if the token is not valid.
            TokenKeysUnavailableError: if there are no keys, and none can be read now.
        """
        header = self._read_header(text)
        key_id = header.get("kid")
        key = await self._keys.find(key_id, may_ask=may_ask)
        if key is None and key_id is None:
            raise _RefusedError("it has no key id (kid), and security.jwt_keys has several keys")
        if key is None:
            raise _RefusedError("no key at security.jwt_keys has its key id (kid)")
        try:
            return self._verify(text, header, key)
        except _WrongSignatureError:
            replacement = await self._keys.find_replacement(key, key_id) if may_ask else None
            if replacement is None:
                raise
            return self._verify(text, header, replacement)

    def _read_header(self, text: str) -> dict[str, Any]:
        """Return the header of a token, which says how and with which key the token is signed."""
        if len(text) > _MAX_TOKEN_CHARACTERS:
            raise _RefusedError(f"it is longer than {_MAX_TOKEN_CHARACTERS:,} characters")
        try:
            header: dict[str, Any] = jwt.get_unverified_header(text)
        except jwt.InvalidTokenError:
            raise _RefusedError("it is not a JWT") from None
        if header.get("alg") not in self._rules.algorithms:
            raise _RefusedError("its algorithm is not in security.jwt_algorithms")
        return header

    def _verify(self, text: str, header: dict[str, Any], key: PublicKey) -> dict[str, Any]:
        rules = self._rules
        if key.algorithm not in (None, header["alg"]):
            raise _RefusedError("its key is for another algorithm")
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.material,
                algorithms=list(rules.algorithms),
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=rules.leeway,
                options={"require": _REQUIRED_CLAIMS},
            )
        except jwt.InvalidSignatureError as error:
            raise _WrongSignatureError(_reason(error, rules)) from None
        except jwt.InvalidTokenError as error:
            raise _RefusedError(_reason(error, rules)) from None
        except (ValueError, TypeError):
            raise _RefusedError("the type of its key does not match its algorithm") from None
        return claims

    def _make_caller(self, claims: dict[str, Any]) -> Caller:
        rules = self._rules
        principal = _claim(claims, rules.principal_claim)
        if not (isinstance(principal, str) and is_name(principal)):
            raise _RefusedError(f"its claim {rules.principal_claim} is not a user name")
        if is_reserved(principal):
            raise _RefusedError(f"its claim {rules.principal_claim} is reserved for callers without a key")
        roles = tuple(role for role in Role if role in _words(_claim(claims, rules.roles_claim)))
        acts = _claim(claims, rules.users_claim) is True
        try:
            ends = datetime.fromtimestamp(int(claims["exp"]), UTC) + rules.leeway
        except (ValueError, OverflowError, OSError):  # for example from an issuer that counts milliseconds
            raise _RefusedError("its exp is not a time in seconds") from None
        return Caller(principal, roles, acts, expires_at=ends)


def _reason(error: jwt.InvalidTokenError, rules: TokenRules) -> str:
    """Return why PyJWT refuses a token, with the setting with which the claim was compared."""
    if isinstance(error, jwt.InvalidAudienceError):
        return f"its aud is not security.jwt_audience, {rules.audience!r}"
    if isinstance(error, jwt.InvalidIssuerError):
        return f"its iss is not security.jwt_issuer, {rules.issuer!r}"
    return str(error)


def _claim(claims: Any, name: str) -> Any:
    """Return a claim by its name; a dot names a claim inside another claim: `realm_access.roles`."""
    if isinstance(claims, dict) and name in claims:
        return claims[name]
    outer, _, inner = name.partition(".")
    return _claim(claims[outer], inner) if inner and isinstance(claims, dict) and outer in claims else None


def _words(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else ()
