"""Buckets in Redis: the rules of `taskframework.model.rate_limits` as atomic scripts, with the server's clock."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from taskframework.clock import Clock
from taskframework.errors import ExtraMissingError
from taskframework.limits.buckets import LimiterUnavailableError
from taskframework.model.rate_limits import (
    KEPT_AFTER_FULL,
    ROUNDING,
    UNUSED_TURNS_SECONDS,
    Bucket,
    HoldBucket,
    TakePermits,
)
from taskframework.tls_hints import certificate_hints
from taskframework.urls import redacted

try:
    from redis.asyncio import Redis
    from redis.exceptions import AuthenticationError, RedisError, ResponseError
except ImportError as error:
    raise ExtraMissingError("rate_limiter.type: redis", "redis", "redis") from error

logger = logging.getLogger(__name__)

T = TypeVar("T")
#: Errors of connecting when only one side speaks TLS, or a certificate is not trusted, and their remedies.
_TLS_HINTS = {
    **certificate_hints("rate_limiter.redis_ca_file", "rate_limiter.redis_certificate"),
    "WRONG_VERSION_NUMBER": "The server does not use TLS at this port: write redis:// in rate_limiter.redis_url.",
    "reset by peer": "Check that it runs and that rate_limiter.redis_url is right; a port for TLS needs rediss://, and "
    "rate_limiter.redis_certificate if the server requires a client certificate.",
}
#: Words in what Redis says when it refuses, and what helps.
_REFUSAL_HINTS = {
    "maxmemory": "Its memory is full: raise maxmemory of Redis, or give the limits a server of their own.",
    "read only replica": "rate_limiter.redis_url leads to a replica: name the primary.",
    "invalid username-password": "Correct the user and the password in rate_limiter.redis_url.",
    "Authentication required": "Write the user and the password into rate_limiter.redis_url.",
}
#: PEM files for TLS: the authority, the client's certificate, and its key.
TlsFiles = tuple[Path | None, Path | None, Path | None]

#: Redis is away if an answer takes longer than this many seconds.
_TIMEOUT_SECONDS = 1.0
#: While Redis is away: the seconds of the first pause between two tries, and of the longest one.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 1.0

#: To list buckets, each call looks at the first number of keys of the database, and there are at most as many calls as
#: the second number says: the server may be shared with a program that has millions of keys.
_SCANNED_KEYS, _MAX_SCANS = 1_000, 100

#: A key that each look at buckets writes: a server that is full or a replica answers, but no task could begin. It is
#: written with a command of the scripts, which the user of Redis may use in any case.
_WRITE_CHECK = "write-check"
#: The fields of a bucket.
_FIELDS = ["full_at", "line_at", "late_at"]

#: The beginning of both scripts. A restarted server may have lost buckets, or may have them in an older state. So no
#: bucket has more permits than it got since the start of the server. The server tells its age as a difference of whole
#: seconds, so it started before the end of the second that the age names.
_SCRIPT_START = """
local rate, at_once = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local age = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
local started_at = tonumber(time[1]) - age + 1
local known = redis.call('HMGET', KEYS[1], 'full_at', 'line_at', 'late_at')
local full_at = math.max(tonumber(known[1] or 0), started_at + at_once / rate)
local line_at, late_at = tonumber(known[2] or 0), tonumber(known[3] or 0)
"""
_SCRIPT_END = f"""
local function text(number) return string.format('%.17g', number) end
local bucket = {{text(full_at), text(line_at), text(late_at), text(now), text(granted), text(first_at)}}
redis.call('HSET', KEYS[1], 'full_at', bucket[1], 'line_at', bucket[2], 'late_at', bucket[3])
redis.call('EXPIREAT', KEYS[1], math.ceil(math.max(full_at, line_at, late_at)) + {KEPT_AFTER_FULL.seconds})
return bucket
"""
_TAKE_SCRIPT = f"""{_SCRIPT_START}
local most, ahead, in_line, has_turn = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6] == '1'
local start = math.max(full_at, now)
local ready = math.floor((now + ahead - start) * rate + at_once + {ROUNDING})
local granted = math.max(0, math.min(most, ready))
if in_line and not has_turn and now - full_at > {UNUSED_TURNS_SECONDS} + 1 / rate then line_at, late_at = 0, 0 end
if in_line and not has_turn and math.max(line_at, late_at) > now then granted = 0 end
local first_at = start + (1 - at_once) / rate
if in_line and granted == 0 then
    first_at = math.max(first_at, late_at, now)
    if has_turn then
        late_at = first_at + most / rate
    else
        first_at = math.max(first_at, line_at)
        line_at = first_at + most / rate
    end
end
if granted > 0 then full_at = start + granted / rate end
{_SCRIPT_END}"""
_HOLD_SCRIPT = f"""{_SCRIPT_START}
local seconds, granted = tonumber(ARGV[3]), 0
local first_at = now + seconds
full_at = math.max(full_at, now + seconds + (at_once - 1) / rate)
{_SCRIPT_END}"""


class RedisBuckets:
    """Buckets in Redis: one limit for all processes that use the same server and prefix."""

    def __init__(
        self, url: str, prefix: str, clock: Clock, files: TlsFiles = (None, None, None), *, waits: bool = True
    ) -> None:
        """Prepare without connecting.

        Args:
            url: `redis://host:port/number`.
            prefix: the beginning of every key.
            clock: for the pauses while Redis is away.
            files: for `rediss://`: the authority of the server's certificate, the client's certificate, and its key.
            waits: whether `take` waits while Redis is away; if not, it lets everything through, and `read` gives None.

        Raises:
            LimiterUnavailableError: if the URL cannot be used.
        """
        try:
            names = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
            tls: dict[str, Any] = {name: str(file) for name, file in zip(names, files, strict=True) if file is not None}
            self._redis: Redis = Redis.from_url(
                url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                decode_responses=True,
                **tls,
            )
        except ValueError as error:
            raise LimiterUnavailableError(f"The address of Redis cannot be used: {redacted(str(error))}.") from error
        self._prefix = f"{prefix}:"
        self._write_check = (f"{prefix}:{_WRITE_CHECK}", "is_writable", "1")
        self._clock = clock
        self._waits_while_away = waits
        self._is_away = False
        self._take_script = self._redis.register_script(_TAKE_SCRIPT)
        self._hold_script = self._redis.register_script(_HOLD_SCRIPT)

    async def take(self, take: TakePermits) -> Bucket:
        arguments = (take.limit.rate, take.limit.capacity, take.most, take.ahead, int(take.in_line), int(take.has_turn))
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return _bucket_of(await self._call(self._take_script(keys=[self._key(take)], args=arguments)))
            except LimiterUnavailableError:
                if not self._waits_while_away:
                    return Bucket(granted=take.most)
            await self._clock.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def hold(self, hold: HoldBucket) -> None:
        arguments = (hold.limit.rate, hold.limit.capacity, hold.seconds)
        await self._call(self._hold_script(keys=[self._key(hold)], args=arguments))

    async def read(self, record_id: str) -> Bucket | None:
        try:
            return await self._call(self._read(self._prefix + record_id))
        except LimiterUnavailableError:
            if self._waits_while_away:
                raise
            return None

    async def list_known(self, limit: int) -> Sequence[tuple[str, Bucket]]:
        return await self._call(self._list_known(limit))

    async def close(self) -> None:
        await self._redis.aclose()

    async def _list_known(self, limit: int) -> list[tuple[str, Bucket]]:
        await self._redis.hset(*self._write_check)
        keys: list[str] = []
        cursor = 0
        for _ in range(_MAX_SCANS):
            cursor, found = await self._redis.scan(cursor, match=f"{self._prefix}rate/*", count=_SCANNED_KEYS)
            keys += map(str, found)  # they are texts, which the types of redis 8 do not know
            if cursor == 0 or len(keys) >= limit:
                break
        known = sorted(set(keys))[:limit]  # a scan may return a key more than once
        reads = self._redis.pipeline(transaction=False)
        for key in known:
            reads.hmget(key, _FIELDS)
        buckets = map(_bucket_of_fields, await reads.execute())
        return [(key.removeprefix(self._prefix), bucket) for key, bucket in zip(known, buckets, strict=True)]

    async def _read(self, key: str) -> Bucket:
        reads = self._redis.pipeline(transaction=False)  # both in one round trip
        reads.hset(*self._write_check)
        reads.hmget(key, _FIELDS)
        return _bucket_of_fields((await reads.execute())[1])

    def _key(self, change: TakePermits | HoldBucket) -> str:
        return self._prefix + change.record_id

    async def _call(self, call: Awaitable[T]) -> T:
        """Return the answer of Redis; log once that Redis is away, and once that it is back.

        Raises:
            LimiterUnavailableError: if Redis does not answer, or refuses.
        """
        try:
            answer = await call
        except (RedisError, OSError) as error:
            # A refusal inside a script ends with the number of the script, which says nothing to people.
            reason = redacted(str(error).partition(" script: ")[0]).removesuffix(".")
            has_refused = isinstance(error, ResponseError | AuthenticationError)
            if not self._is_away:
                consequence = "tasks with a rate limit wait" if self._waits_while_away else "rate limits are not kept"
                logger.warning("Redis %s, %s: %s", "refuses" if has_refused else "is away", consequence, reason)
            self._is_away = True
            hints = _REFUSAL_HINTS if has_refused else _TLS_HINTS
            hint = next((hint for words, hint in hints.items() if words in reason), None)
            what = "refuses" if has_refused else "does not answer"
            raise LimiterUnavailableError(f"Redis {what}: {reason}.", hint=hint) from error
        if self._is_away:
            logger.info("Redis is back")
        self._is_away = False
        return answer


def _bucket_of_fields(known: Sequence[str | None]) -> Bucket:
    full_at, line_at, late_at = (float(value or 0) for value in known)
    return Bucket(full_at, line_at, late_at)


def _bucket_of(answer: Any) -> Bucket:
    full_at, line_at, late_at, asked_at, granted, first_at = map(float, answer)
    return Bucket(full_at, line_at, late_at, asked_at, int(granted), first_at)
