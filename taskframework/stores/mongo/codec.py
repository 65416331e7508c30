"""How values are read from BSON: integers of 64 bits become `int`, not the driver's own class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bson
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry

from taskframework.stores.mongo.documents import Document


class _PlainInteger(TypeDecoder):
    """Reads integers of 64 bits as `int`, not as the driver's own class."""

    bson_type = bson.Int64

    def transform_bson(self, value: int) -> int:
        return int(value)


#: Times are read without their zone; see `taskframework.stores.mongo.documents.with_utc`.
CODEC: CodecOptions[Document] = CodecOptions(type_registry=TypeRegistry([_PlainInteger()]))


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
