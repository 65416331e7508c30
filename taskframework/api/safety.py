"""The headers that keep a browser from misusing an answer: from running it, framing it, or guessing its type. Every
answer has them.

Nothing here allows another site to read an answer (CORS): a browser then refuses that by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

#: Scripts, styles, pictures and connections are this server's own, in files of their own; no other site frames a page.
CONTENT_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFETY: Mapping[str, str] = MappingProxyType(
    {
        # A browser must not guess a type: results are the users' own texts.
        "x-content-type-options": "nosniff",
        "content-security-policy": CONTENT_POLICY,
        "x-frame-options": "DENY",
        # What belongs to one user is kept in no cache on the way.
        "cache-control": "no-store",
        # Addresses hold ids and keys of streams.
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
)
#: In answers that go by TLS: for a year the browser then asks this host by TLS alone.
_ALWAYS_TLS = (b"strict-transport-security", b"max-age=31536000")
_RAW = tuple((name.encode(), value.encode()) for name, value in SAFETY.items())

RawHeaders = Iterable[tuple[bytes, bytes]]


def with_safety(headers: RawHeaders, *, is_encrypted: bool) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those for safety; what an answer says of these itself stays.

    Args:
        headers: of the answer, with names in lower case.
        is_encrypted: whether it goes by TLS.
    """
    own = list(headers)
    names = {name for name, _ in own}
    own += [header for header in _RAW if header[0] not in names]
    return [*own, _ALWAYS_TLS] if is_encrypted else own
