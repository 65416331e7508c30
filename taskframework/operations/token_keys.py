"""The public keys of the issuer of tokens: read from a file or over HTTP, kept, and read again for an unknown key."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson

from taskframework.errors import ConfigurationError, ExtraMissingError
from taskframework.operations.keys import TokenKeysUnavailableError
from taskframework.urls import redacted

try:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate
except ImportError as error:
    raise ExtraMissingError("security.jwt_keys", "PyJWT and cryptography", "jwt") from error

logger = logging.getLogger(__name__)

#: Seconds after which keys are read again although all are known: the issuer may have removed a key.
_MAX_AGE_SECONDS = 300.0
#: The least seconds between two reads, so that tokens with invented key ids do not cause a read each.
_MIN_READ_INTERVAL_SECONDS = 10.0
#: Seconds that one read may take as a whole, however slowly the answer comes.
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 256 * 1024
_MAX_KEYS = 100
_SHARED_SECRET = "oct"
#: The shortest RSA key that is used: RFC 7518 requires this length for signatures.
_MIN_RSA_BITS = 2048

Load = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of an issuer."""

    material: Any
    #: The key id in tokens; None if the key came without an id.
    id: str | None = None
    #: The only algorithm for which the key may be used; None means all that fit the key.
    algorithm: str | None = None

    @property
    def is_too_short(self) -> bool:
        """Whether it is an RSA key so short that others may break it, and then make tokens."""
        return isinstance(self.material, RSAPublicKey) and self.material.key_size < _MIN_RSA_BITS


class TokenKeys:
    """The keys of one issuer."""

    def __init__(self, place: str, load: Load, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Know no keys yet.

        Args:
            place: where the keys are, for messages.
            load: reads the keys.
            monotonic: returns seconds of a clock that is never set.
        """
        self._place = redacted(place)
        self._load = load
        self._monotonic = monotonic
        self._keys: tuple[PublicKey, ...] = ()
        #: The keys that were too short at the last read, by their ids.
        self._short: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        #: Why the last read failed; None if it did not.
        self._failure: str | None = None
        #: The read that is under way, or the last one.
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    def at(cls, place: str) -> TokenKeys:
        """Make the keys at an address or in a file."""
        is_remote = place.startswith(("https://", "http://"))
        return cls(place, partial(_fetch, place) if is_remote else partial(_read_file, Path(place)))

    async def find(self, key_id: object, *, may_ask: bool = True) -> PublicKey | None:
        """Return the key with an id; without an id the only key.

        Args:
            key_id: the key id in a token; it may be any value.
            may_ask: whether to read the keys again if this key is not known.

        Raises:
            TokenKeysUnavailableError: if no keys are known, and none can be read; also if this key is not known and
                the last read failed: the issuer may have changed its keys since.
        """
        found = self._find_known(key_id)
        age = self._monotonic() - self._read_at
        if may_ask and age >= (_MIN_READ_INTERVAL_SECONDS if found is None else _MAX_AGE_SECONDS):
            reading = self._begin_reading()
            if found is None:  # a request with a known key never waits for the issuer
                await asyncio.shield(reading)
                found = self._find_known(key_id)
        if not self._keys:
            raise TokenKeysUnavailableError(f"There are no keys for tokens from {self._place}.")
        if found is None and key_id is not None and self._failure is not None:
            raise TokenKeysUnavailableError(f"The keys for tokens at {self._place} could not be read again.")
        return found

    async def read(self) -> Sequence[PublicKey]:
        """Read the keys now, and return those that are used.

        Raises:
            TokenKeysUnavailableError: if they cannot be read; it says why.
        """
        await asyncio.shield(self._begin_reading())
        if self._failure is not None:
            raise TokenKeysUnavailableError(f"The keys for tokens at {self._place} cannot be read: {self._failure}.")
        return self._keys

    async def find_replacement(self, key: PublicKey, key_id: object) -> PublicKey | None:
        """Return the key that the issuer uses now instead of this key, which did not make the signature of a token.

        Only for a key that was found without its id: the id of a key says whether it is the right one, and if there is
        none, a wrong signature is the only sign that the issuer has replaced the key.

        Args:
            key: the key that `find` returned.
            key_id: the key id in the token.

        Returns:
            Another key, or None if the issuer still uses this one, as far as known.
        """
        if key.id is not None and key.id == key_id:
            return None
        if self._monotonic() - self._read_at >= _MIN_READ_INTERVAL_SECONDS:
            await asyncio.shield(self._begin_reading())
        found = self._find_known(key_id)
        return None if found == key else found

    def _find_known(self, key_id: object) -> PublicKey | None:
        named = [key for key in self._keys if key.id == key_id]
        # A PEM file gives a key no id, and an issuer with one key may leave the id out of its tokens.
        is_only = len(self._keys) == 1 and (key_id is None or self._keys[0].id is None)
        return named[0] if named else self._keys[0] if is_only else None

    def _begin_reading(self) -> asyncio.Task[None]:
        """Return the one read that all callers share that need keys."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_keys())
        return self._reading

    async def _read_keys(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                content = await self._load()
            keys = self._without_short(_parse_keys(content))
            if not keys:
                raise ValueError("there is no usable public key in the answer")
            self._keys, self._failure = keys, None
        except Exception as error:  # whatever an issuer sends must not break the requests
            self._failure = _reason(error)
            # The known keys stay: an issuer that is away for a while must not lock all callers out.
            logger.warning("the keys for tokens at %s cannot be read: %s", self._place, self._failure)
        finally:
            self._read_at = self._monotonic()

    def _without_short(self, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
        """The keys that are long enough. The log names each of the others once, not at each read."""
        short = {f"{key.id!r:.100}": key.material.key_size for key in keys if key.is_too_short}
        for name in short.keys() - self._short:
            text = "the key %s for tokens at %s is not used: RSA with %d bits is too short, it needs %d"
            logger.warning(text, name, self._place, short[name], _MIN_RSA_BITS)
        self._short = frozenset(short)
        return tuple(key for key in keys if not key.is_too_short)


def _reason(error: Exception) -> str:
    """Return what went wrong, without the address, which may contain a password."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answered {error.response.status_code}"
    if isinstance(error, TimeoutError):
        return f"no whole answer within {_TIMEOUT_SECONDS:g} s"
    return str(error) or type(error).__name__


def require_readable(place: str) -> None:
    """Check once that a file of keys can be used, so that a wrong file is noticed at the start.

    An address is not checked, because its server may be away at the moment.

    Raises:
        ConfigurationError: if the file cannot be used.
    """
    if place.startswith(("https://", "http://")):
        return
    try:
        has_keys = any(not key.is_too_short for key in _parse_keys(Path(place).read_bytes()))
    except (OSError, ValueError, jwt.PyJWTError) as error:
        raise ConfigurationError(
            f"security.jwt_keys: {place} cannot be read ({type(error).__name__}).",
            key="security.jwt_keys",
            hint="Give a PEM file with one public key or certificate, or a JWKS file.",
        ) from None
    if not has_keys:
        raise ConfigurationError(
            f"security.jwt_keys: {place} has no usable public key.",
            key="security.jwt_keys",
            hint=f"Add a public key; one of RSA needs {_MIN_RSA_BITS:,} bits or more.",
        )


async def _read_file(path: Path) -> bytes:
    return await asyncio.to_thread(path.read_bytes)


async def _fetch(place: str) -> bytes:
    url = httpx.URL(place)
    # Send a password apart from the address, because httpx logs the address of each request.
    auth = (url.username, url.password) if url.userinfo else None
    client = httpx.AsyncClient(timeout=None, auth=auth)  # the reader limits the whole, which httpx cannot
    async with client, client.stream("GET", url.copy_with(userinfo=b"")) as response:
        response.raise_for_status()
        content = b""
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > _MAX_BYTES:
                raise ValueError("too many bytes")
        return content


def _parse_keys(content: bytes) -> Sequence[PublicKey]:
    """Return the public keys in a file, without keys for encryption and shared secrets.

    Raises:
        ValueError, jwt.PyJWTError: if the content is neither PEM nor a JWKS.
    """
    if content.lstrip().startswith(b"-----BEGIN"):
        return [_parse_pem(content)]
    document = orjson.loads(content)
    given = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(given, list):
        raise ValueError("not a JWKS")
    usable = [key for key in given[:_MAX_KEYS] if isinstance(key, dict) and key.get("use", "sig") == "sig"]
    return [made for key in usable if key.get("kty") != _SHARED_SECRET and (made := _make_key(key)) is not None]


def _make_key(key: dict[str, Any]) -> PublicKey | None:
    public = {name: value for name, value in key.items() if name != "d"}  # never keep a private part
    try:
        return PublicKey(jwt.PyJWK(public).key, key.get("kid"), key.get("alg"))
    except Exception:  # PyJWT raises even NotImplementedError, for the algorithm "none"
        return None  # a type of key that this release does not know


def _parse_pem(content: bytes) -> PublicKey:
    if b"BEGIN CERTIFICATE" in content:
        return PublicKey(load_pem_x509_certificate(content).public_key())
    return PublicKey(load_pem_public_key(content))
