"""Turns exceptions of the MongoDB drivers into the framework's errors, with the reason in words and a remedy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError, ConnectionFailure, OperationFailure, PyMongoError, WriteConcernError

from taskframework.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError, ValueNotStorableError
from taskframework.tls_hints import certificate_hints
from taskframework.urls import redacted

_DUPLICATE_KEY = 11_000
#: Codes of errors after which a write may still have been made: the server is no longer primary, is shutting down, was
#: interrupted, ran out of time, or had no majority.
UNCERTAIN_CODES = frozenset({6, 7, 50, 64, 89, 91, 100, 189, 262, 9001, 10_107, 11_600, 11_602, 13_435, 13_436})
#: The end of the useful part of a message; after it come the topology, the whole reply, or the command.
_AFTER_THE_REASON = re.compile(r" \(configured timeouts|, Timeout: |, full error: | to execute command ")
#: The drivers' message if the replica set and the address name the members differently, which they call the cause.
_NO_MEMBER = re.compile(r"Could not reach any servers in \[(.*?)\]\. Replica set is configured")
_MEMBER = re.compile(r"\('([^']+)', (\d+)\)")
#: The drivers' message if no server has answered. It names no server, but the topology after it does.
_NOBODY_ANSWERED = re.compile(r"No (replica set members|servers) found yet")
_SERVER = re.compile(r"<ServerDescription \('([^']+)', (\d+)\)")
#: The beginning of the message if no connection became free. The driver then names the pool's size, which is no cause.
_ALL_IN_USE = "Timed out while checking out a connection"
#: The end of a message that begins with the whole query.
_NO_INDEX = "hint provided does not correspond to an existing index"
#: What to do about a refusal, by its code.
_ACCESS_HINTS = {
    13: "Give the user of store.url the role readWrite on this database.",
    18: "Check user and password in store.url. A user that was made in another database needs that name, for example "
    "?authSource=admin.",
}
#: Codes if the document would be larger after the write than the 16 MB that MongoDB allows.
_TOO_LARGE_CODES = frozenset({10_334, 17_419, 17_420})
UNENCODABLE = (BSONError, OverflowError, RecursionError, UnicodeEncodeError)


class DuplicateDocumentError(StoreError):
    """A document with this id or unique key is there already."""


class IndexMissingError(StoreError):
    """MongoDB: an index is missing. It is created again, if the user may do this; `taskframework doctor` names it."""

    code = "store_unavailable"
    hint = "Repeat it later: an index of a large collection takes minutes."


class DocumentTooLargeError(ValueNotStorableError, StoreError):
    """MongoDB: the values of a task are within their limits one by one, but not together."""

    def __init__(self) -> None:
        super().__init__("task", "its document would be larger than the 16 MB that MongoDB allows")
        self.hint = "Store large data elsewhere, and give the task its location."


class PartlyRefused(Exception):  # noqa: N818 (not an error of the whole write)
    def __init__(self, refused: dict[int, StoreError]) -> None:
        self.refused = refused


#: Parts of the message of a failed connection if only one side uses TLS, or the certificate is not trusted; with hints.
_TLS = {
    **certificate_hints("store.ca_file", "store.certificate"),
    "SSL handshake failed": "If the server does not use TLS, remove tls=true in store.url, and store.ca_file.",
    ": connection closed": "Check that it runs; if it was stopped, another member of its set takes its place. If it "
    "never answered, check store.url: a server with TLS needs tls=true there, or store.ca_file.",
}


@contextmanager
def driver_errors() -> Iterator[None]:
    """Turn the drivers' exceptions into the framework's errors."""
    try:
        yield
    except BulkWriteError as error:
        doubts = [entry for entry in error.details["writeErrors"] if entry["code"] in UNCERTAIN_CODES]
        if doubts := [*error.details["writeConcernErrors"], *doubts]:
            raise StoreUnavailableError(f"MongoDB: {doubts[0]['errmsg']}.") from error
        raise PartlyRefused({entry["index"]: write_error(entry) for entry in error.details["writeErrors"]}) from error
    except PyMongoError as error:
        raise _translate(error) from error
    except AttributeError as error:
        # With a type registry, pymongo 4.20 cannot read a write concern error that has labels. A primary that steps
        # down sends such an error. Like every write concern error it does not tell whether the write stays.
        if not isinstance(error.obj, RawBSONDocument):
            raise
        raise StoreUnavailableError("MongoDB: no majority confirmed the write.") from error
    except UNENCODABLE as error:
        raise ValueNotStorableError("value", str(error)[:200]) from error


@asynccontextmanager
async def driver_call(seconds: float) -> AsyncIterator[None]:
    """`driver_errors` for one call, which ends after these seconds even if the driver has not begun with it."""
    with driver_errors():
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise StoreUnavailableError(f"MongoDB: no answer within {seconds:g} s.") from error


def write_error(entry: Mapping[str, Any]) -> StoreError:
    if entry["code"] == _DUPLICATE_KEY:
        return DuplicateDocumentError()
    if entry["code"] in _TOO_LARGE_CODES:
        return DocumentTooLargeError()
    return StoreError(f"MongoDB refused a write: {entry['errmsg'][:300]} (code {entry['code']}).")


def _reason_of(text: str) -> str:
    if _NOBODY_ANSWERED.match(text) and (servers := _SERVER.findall(text)):
        return f"no answer from {', '.join(f'{host}:{port}' for host, port in servers)}"[:300]
    if text.startswith(_ALL_IN_USE):
        return "no answer on any connection"
    if members := _NO_MEMBER.match(text):
        named = ", ".join(f"{host}:{port}" for host, port in _MEMBER.findall(members[1]))
        return f"no answer from {named}, as the replica set names its members"[:300]
    return redacted(_AFTER_THE_REASON.split(text, maxsplit=1)[0][:300]).rstrip(".")


def _translate(error: PyMongoError) -> StoreError:
    reason = _reason_of(str(error))
    code = error.code if isinstance(error, OperationFailure) else None
    if code == _DUPLICATE_KEY:
        return DuplicateDocumentError()
    if code in _TOO_LARGE_CODES:
        return DocumentTooLargeError()
    if hint := _ACCESS_HINTS.get(code or 0):
        return StoreMisconfiguredError(f"MongoDB refused access: {reason}.", hint=hint)
    if _NO_INDEX in str(error):
        return IndexMissingError()
    away = isinstance(error, (ConnectionFailure, WriteConcernError)) or error.timeout or code in UNCERTAIN_CODES
    if away or error.has_error_label("RetryableWriteError"):
        if "RSGhost" not in str(error):
            hints = (hint for words, hint in _TLS.items() if words in reason)
            return StoreUnavailableError(f"MongoDB: {reason}.", hint=next(hints, None))
        return StoreUnavailableError(
            "MongoDB was started with --replSet, and its replica set is not initiated, or it has just been restarted.",
            hint="If the server is new, run rs.initiate() on it once.",
        )
    return StoreError(f"MongoDB: {reason}.")
