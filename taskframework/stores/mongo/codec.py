"""How documents are written as BSON, and values are read: integers of 64 bits as `int`, not the driver's own class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bson
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.raw_bson import RawBSONDocument

from taskframework.errors import ValueNotStorableError
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.faults import UNENCODABLE

_MAX_DOCUMENT_BYTES = 16 * 1024 * 1024


class _PlainInteger(TypeDecoder):
    """Reads integers of 64 bits as `int`, not as the driver's own class."""

    bson_type = bson.Int64

    def transform_bson(self, value: int) -> int:
        return int(value)


#: Times are read without their zone; see `taskframework.stores.mongo.documents.with_utc`.
CODEC: CodecOptions[Document] = CodecOptions(type_registry=TypeRegistry([_PlainInteger()]))


def encode_document(document: Document, what: str) -> RawBSONDocument:
    """A document in BSON. It is encoded before it joins a group, so that a value that cannot be stored is found early.

    Raises:
        ValueNotStorableError: names `what`.
    """
    try:
        raw = bson.encode(document)
    except UNENCODABLE as error:
        raise ValueNotStorableError(what, str(error)[:200]) from error
    if len(raw) > _MAX_DOCUMENT_BYTES:
        raise ValueNotStorableError(what, f"it has {len(raw):,} bytes, MongoDB takes {_MAX_DOCUMENT_BYTES:,}")
    return RawBSONDocument(raw)


def with_plain_integers(value: Any) -> Any:
    """`_PlainInteger` for the reply to a plain command, in which the drivers do not convert integers."""
    if isinstance(value, bson.Int64):
        return int(value)
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return value
    for place, item in items:
        if isinstance(item, (dict, list, bson.Int64)):
            value[place] = with_plain_integers(item)
    return value
