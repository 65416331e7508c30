"""Submit each job of an actor once, even if calls are repeated: with a key, and again until the job is accepted."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar
from urllib.parse import quote

import orjson

from taskframework.clock import Clock, SystemClock
from taskframework.errors import ApiUnavailableError, StoreUnavailableError
from taskframework.model.values import MAX_NAME_LENGTH, Json, fingerprint

logger = logging.getLogger(__name__)

Accepted = TypeVar("Accepted")

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 5.0


def job_key(
    tenant_id: str, session_id: str, index: int, job_type: str, target_language: str = "", features: Json = None
) -> str:
    """The idempotency key of one job: equal for the same job, different for any other job.

    Args:
        tenant_id: the tenant whose job it is.
        session_id: the session; no other session ever gets this id, even after a restart of the program.
        index: the index of the part in the session, from 0.
        job_type: what is done with the part.
        target_language: empty if there is none.
        features: everything else that makes it another job, as JSON.

    Returns:
        `tenant:session:index:type:language:hash`, or a hash of that if it is longer than a key may be.
    """
    features_hash = fingerprint(orjson.dumps(features, option=orjson.OPT_SORT_KEYS))
    parts = (tenant_id, session_id, str(index), job_type, target_language)
    key = ":".join([*(quote(part, safe="") for part in parts), features_hash])
    return key if len(key) <= MAX_NAME_LENGTH else f"job:{fingerprint(key, 'a')}{fingerprint(key, 'b')}"


async def submit_once(
    submit: Callable[[], Awaitable[Accepted]], *, patience: timedelta = timedelta(minutes=1), clock: Clock | None = None
) -> Accepted:
    """Submit, and repeat the submission while the store or the API is away.

    A submission that failed may be stored nevertheless, so it needs an idempotency key. While this waits, the actor's
    mailbox fills, and the senders of events wait.

    Args:
        submit: submits, with the same key each time.
        patience: how long to repeat the submission.
        clock: the clock; tests give their own.

    Raises:
        StoreUnavailableError, ApiUnavailableError: if the store or the API is away for longer.
        SubmissionError: at once, if the submission is refused.
    """
    clock = clock or SystemClock()
    give_up_at, pause = clock.monotonic() + patience.total_seconds(), _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await submit()
        except (StoreUnavailableError, ApiUnavailableError) as error:
            if clock.monotonic() + pause > give_up_at:
                raise
            logger.info("not submitted yet: %s", error.message)
        await clock.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE_SECONDS)
