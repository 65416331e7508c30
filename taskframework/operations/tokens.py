"""Who a caller is by a token (JWT) that somebody else made for it: the issuer, who identifies users for many programs.

Nothing of a token is believed before its signature is checked with a public key of the issuer, by an algorithm that the
settings name. Then it must be for this installation (`aud`), by that issuer (`iss`), and not over (`exp`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from taskframework.errors import ExtraMissingError
from taskframework.model.keys import Caller, Role
from taskframework.model.values import is_name
from taskframework.operations.token_keys import PublicKey, TokenKeys

try:
    import jwt
except ImportError as error:
    raise ExtraMissingError("security.jwt_keys", "PyJWT", "jwt") from error

#: Characters of a token; what is longer is none.
_LONGEST = 8_000
#: Claims that a token must have. A token cannot be revoked, so one without `exp` would count for ever.
_REQUIRED = ["exp", "iss", "aud"]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens count, and what their claims mean."""

    issuer: str
    audience: str
    algorithms: Collection[str]
    #: How far the clock of the issuer may be off.
    leeway: timedelta
    principal_claim: str
    roles_claim: str
    users_claim: str


class Tokens:
    """Tells who calls by a token, in one process."""

    def __init__(self, rules: TokenRules, keys: TokenKeys) -> None:
        """Prepare.

        Args:
            rules: which tokens count.
            keys: the issuer's.
        """
        self._rules = rules
        self._keys = keys

    async def find(self, text: str, *, asks: bool = True) -> Caller | None:
        """Who shows this as a token; None if it is none that counts.

        Args:
            text: what was shown.
            asks: whether the issuer may be asked for keys that are not known yet.

        Raises:
            TokenKeysUnavailableError: if there are no keys, and none can be had now.
        """
        try:
            header = jwt.get_unverified_header(text) if len(text) <= _LONGEST else {}
        except jwt.InvalidTokenError:
            return None
        algorithm = header.get("alg")
        if algorithm not in self._rules.algorithms:
            return None
        key = await self._keys.find(header.get("kid"), asks=asks)
        if key is None or key.algorithm not in (None, algorithm):
            return None
        claims = self._claims(text, key)
        return None if claims is None else self._caller(claims)

    def _claims(self, text: str, key: PublicKey) -> dict[str, Any] | None:
        rules = self._rules
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.material,
                algorithms=list(rules.algorithms),
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=rules.leeway,
                options={"require": _REQUIRED},
            )
        except (jwt.InvalidTokenError, ValueError, TypeError):  # a key of another kind than the algorithm raises these
            return None
        return claims

    def _caller(self, claims: dict[str, Any]) -> Caller | None:
        rules = self._rules
        principal = _claim(claims, rules.principal_claim)
        if not (isinstance(principal, str) and is_name(principal)):
            return None
        roles = tuple(role for role in Role if role in _words(_claim(claims, rules.roles_claim)))
        acts = _claim(claims, rules.users_claim) is True
        try:
            ends = datetime.fromtimestamp(int(claims["exp"]), UTC) + rules.leeway
        except (ValueError, OverflowError):  # as of an issuer that counts milliseconds
            return None
        return Caller(principal, roles, acts, expires_at=ends)


def _claim(claims: Any, name: str) -> Any:
    """A claim by its name, which may be that of one within others: `realm_access.roles`."""
    if isinstance(claims, dict) and name in claims:
        return claims[name]
    outer, _, inner = name.partition(".")
    return _claim(claims[outer], inner) if inner and isinstance(claims, dict) and outer in claims else None


def _words(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else ()
