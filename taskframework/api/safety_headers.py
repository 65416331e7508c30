"""The headers that keep a browser from misusing an answer: from running it, framing it, or guessing its type. Every
answer has them.

No header here allows another site to read an answer (CORS), so a browser refuses that by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

#: Scripts, styles, pictures and connections come only from files of this server; no other site may frame a page.
CONTENT_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFETY_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        # A browser must not guess a type, because results are texts of users.
        "x-content-type-options": "nosniff",
        "content-security-policy": CONTENT_POLICY,
        "x-frame-options": "DENY",
        # Data of one user must not stay in any cache on the way.
        "cache-control": "no-store",
        # Addresses contain ids and keys of streams.
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
)
#: Only in answers over TLS: for a year the browser then uses only TLS for this host.
_STRICT_TRANSPORT_SECURITY = (b"strict-transport-security", b"max-age=31536000")
_RAW_SAFETY_HEADERS = tuple((name.encode(), value.encode()) for name, value in SAFETY_HEADERS.items())

RawHeaders = Iterable[tuple[bytes, bytes]]


def with_safety_headers(headers: RawHeaders, *, is_encrypted: bool) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with the safety headers added; those that the answer sets itself stay.

    Args:
        headers: the headers of the answer, with names in lower case.
        is_encrypted: whether the answer is sent over TLS.
    """
    own = list(headers)
    names = {name for name, _ in own}
    own += [header for header in _RAW_SAFETY_HEADERS if header[0] not in names]
    return [*own, _STRICT_TRANSPORT_SECURITY] if is_encrypted else own
