"""The public keys of who makes tokens: from a file, or asked for by HTTP; kept, and looked at again when one is new."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson

from taskframework.errors import ConfigurationError, ExtraMissingError
from taskframework.operations.keys import TokenKeysUnavailableError
from taskframework.settings.urls import redacted

try:
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate
except ImportError as error:
    raise ExtraMissingError("security.jwt_keys", "PyJWT and cryptography", "jwt") from error

logger = logging.getLogger(__name__)

#: Seconds after which keys are read again although all are known: the issuer may have taken one back.
_FRESH_SECONDS = 300.0
#: Least seconds between two looks. Tokens with made-up key ids must not make us ask for each.
_PAUSE_SECONDS = 10.0
_TIMEOUT_SECONDS = 5.0
_MOST_BYTES = 256 * 1024
_MOST_KEYS = 100
_SHARED_SECRET = "oct"

Load = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of an issuer."""

    material: Any
    #: By what tokens name it; None: it came without a name.
    id: str | None = None
    #: The only algorithm that it is for; None: all that fit it.
    algorithm: str | None = None


class TokenKeys:
    """The keys of one issuer."""

    def __init__(self, place: str, load: Load, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Know none yet.

        Args:
            place: where they are, for messages.
            load: reads them.
            monotonic: seconds on a clock that nobody sets.
        """
        self._place = redacted(place)
        self._load = load
        self._monotonic = monotonic
        self._keys: tuple[PublicKey, ...] = ()
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    @classmethod
    def at(cls, place: str) -> TokenKeys:
        """The keys at an address or in a file."""
        is_remote = place.startswith(("https://", "http://"))
        return cls(place, partial(_fetched, place) if is_remote else partial(_read, Path(place)))

    async def find(self, key_id: object, *, asks: bool = True) -> PublicKey | None:
        """The key of an id; without an id the only one.

        Args:
            key_id: what a token says; it may be anything.
            asks: whether to look again for one that is not known.

        Raises:
            TokenKeysUnavailableError: if none are known, and none can be read.
        """
        found = self._known(key_id)
        age = self._monotonic() - self._looked_at
        if asks and (age >= _FRESH_SECONDS or (found is None and age >= _PAUSE_SECONDS)):
            await self._look()
            found = self._known(key_id)
        if not self._keys:
            raise TokenKeysUnavailableError(f"There are no keys for tokens from {self._place}.")
        return found

    def _known(self, key_id: object) -> PublicKey | None:
        named = [key for key in self._keys if key.id == key_id]
        # A PEM file gives a key no id, and an issuer with one key may leave the id out of its tokens.
        is_only = len(self._keys) == 1 and (key_id is None or self._keys[0].id is None)
        return named[0] if named else self._keys[0] if is_only else None

    async def _look(self) -> None:
        asked_at = self._looked_at
        async with self._looking:
            if self._looked_at != asked_at:
                return  # another request looked while this one waited
            try:
                self._keys = tuple(_keys_of(await self._load()))
            except (OSError, httpx.HTTPError, ValueError, jwt.PyJWTError) as error:
                # Those that are known stay: an issuer that is away for a while must not lock everybody out.
                logger.warning("the keys for tokens at %s cannot be read: %s", self._place, _reason(error))
            finally:
                self._looked_at = self._monotonic()


def _reason(error: Exception) -> str:
    """What went wrong, without the address: it may hold a password."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answered {error.response.status_code}"
    return str(error) or type(error).__name__


def require_readable(place: str) -> None:
    """Look once whether a file of keys can be used, so that a wrong one is noticed at the start.

    Raises:
        ConfigurationError: if it cannot; of an address it is not known, since its server may be away for now.
    """
    if place.startswith(("https://", "http://")):
        return
    try:
        has_keys = bool(list(_keys_of(Path(place).read_bytes())))
    except (OSError, ValueError, jwt.PyJWTError) as error:
        raise ConfigurationError(
            f"security.jwt_keys: {place} cannot be read ({type(error).__name__}).",
            key="security.jwt_keys",
            hint="Give a PEM file with one public key or certificate, or a JWKS file.",
        ) from None
    if not has_keys:
        raise ConfigurationError(
            f"security.jwt_keys: {place} has no usable public key.", key="security.jwt_keys", hint="Add a public key."
        )


async def _read(path: Path) -> bytes:
    return await asyncio.to_thread(path.read_bytes)


async def _fetched(place: str) -> bytes:
    url = httpx.URL(place)
    # A password goes beside the address: httpx logs the address of each request.
    auth = (url.username, url.password) if url.userinfo else None
    asker = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, auth=auth)
    async with asker, asker.stream("GET", url.copy_with(userinfo=b"")) as answer:
        answer.raise_for_status()
        content = b""
        async for piece in answer.aiter_bytes():
            content += piece
            if len(content) > _MOST_BYTES:
                raise ValueError("too many bytes")
        return content


def _keys_of(content: bytes) -> Iterable[PublicKey]:
    """The public keys in a file; what is for encryption, or is a secret of two, is none.

    Raises:
        ValueError, jwt.PyJWTError: if it is neither PEM nor a JWKS.
    """
    if content.lstrip().startswith(b"-----BEGIN"):
        return [_of_pem(content)]
    whole = orjson.loads(content)
    given = whole.get("keys") if isinstance(whole, dict) else None
    if not isinstance(given, list):
        raise ValueError("not a JWKS")
    usable = [key for key in given[:_MOST_KEYS] if isinstance(key, dict) and key.get("use", "sig") == "sig"]
    return [made for key in usable if key.get("kty") != _SHARED_SECRET and (made := _made(key)) is not None]


def _made(key: dict[str, Any]) -> PublicKey | None:
    public = {name: value for name, value in key.items() if name != "d"}  # a private part is none of ours
    try:
        return PublicKey(jwt.PyJWK(public).key, key.get("kid"), key.get("alg"))
    except (jwt.PyJWTError, TypeError, ValueError):
        return None  # of a kind that this release does not know


def _of_pem(content: bytes) -> PublicKey:
    if b"BEGIN CERTIFICATE" in content:
        return PublicKey(load_pem_x509_certificate(content).public_key())
    return PublicKey(load_pem_public_key(content))
