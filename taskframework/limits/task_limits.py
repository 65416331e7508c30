"""The limits of a task type: checks them, finds the record of the bucket or of the slots, holds the bucket."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta

from taskframework.errors import RegistrationError
from taskframework.limits.buckets import Buckets
from taskframework.model.rate_limits import RATE, AttemptLimit, BucketLimit, HoldBucket
from taskframework.model.slots import SLOTS
from taskframework.model.task import Task
from taskframework.model.values import Json
from taskframework.settings import RateLimiterSettings
from taskframework.tasks.limits import ConcurrencyLimit, RateLimit, limit_key
from taskframework.tasks.registry import Registration

logger = logging.getLogger(__name__)


def limits_of(settings: RateLimiterSettings) -> Mapping[str, BucketLimit]:
    """Return how much each bucket of the settings lets through, by its name."""
    return {name: AttemptLimit(it.rate, it.burst_capacity) for name, it in settings.buckets.items()}


def bucket_id(limit: RateLimit, registration: Registration, parameters: Json) -> str:
    """Return the id of the bucket from which a task of this type, with these parameters, takes its permits."""
    return RATE.id_of(limit.name, *_key_of(limit, registration, parameters))


async def hold_bucket_of(
    buckets: Buckets, limits: Mapping[str, BucketLimit], registration: Registration, task: Task, delay: timedelta
) -> None:
    """Let no attempt begin for this time under the bucket of a task, because the service that it protects refused the
    task. If the type has no rate limit, only warn.

    Raises:
        TaskframeworkError: if the buckets are away.
    """
    if (limit := registration.rate_limit) is None:
        logger.warning(
            "task %s: RetryableError(pause_limit=True) paused nothing, because task type %s has no rate_limit"
            " in its options",
            task.task_id,
            task.task_type,
        )
        return
    record_id = bucket_id(limit, registration, task.parameters)
    await buckets.hold(HoldBucket(record_id, limits[limit.name], delay.total_seconds()))


def concurrency_limit_of(registration: Registration | None, numbers: Mapping[str, int]) -> ConcurrencyLimit | None:
    """Return the concurrency limit of a task type; a number in the settings replaces the number in its options."""
    if registration is None:
        return None
    limit, number = registration.concurrency_limit, numbers.get(registration.task_type)
    if number is None:
        return limit
    return ConcurrencyLimit(number, None if limit is None else limit.key)


def slots_id(limit: ConcurrencyLimit, registration: Registration, parameters: Json = None) -> str:
    """Return the id of the record of the slots from which a task of this type, with these parameters, takes one."""
    return SLOTS.id_of(registration.task_type, *_key_of(limit, registration, parameters))


def _key_of(limit: RateLimit | ConcurrencyLimit, registration: Registration, parameters: Json) -> list[str]:
    return [] if limit.key is None else [limit_key(parameters, *registration.names_of(limit.key))]


def check_limits(registration: Registration, buckets: Iterable[str]) -> None:
    """Check that the bucket of a task type exists, and the fields that the keys of its limits name.

    Args:
        registration: the registration of the task type.
        buckets: the names in the settings.

    Raises:
        RegistrationError: if a bucket or a field does not exist; names the nearest name.
    """
    if (concurrency := registration.concurrency_limit) is not None:
        _check_key(registration, "concurrency limit", concurrency.key)
    if (limit := registration.rate_limit) is None:
        return
    if limit.name not in (names := list(buckets)):
        test_example = f"rate_limiter={{'providers': {{{limit.name!r}: {{'rate': 5}}}}}}"
        raise RegistrationError(
            f"Task type {registration.task_type!r} has the rate limit {limit.name!r}, which is not in the settings.",
            hint=f"{_nearest(limit.name, names)} Set rate_limiter.providers.{limit.name}, or rate_limiter.default. "
            f"A test, which reads no application.yml, gives it to its harness: {test_example}.",
        )
    _check_key(registration, "rate limit", limit.key)


def _check_key(registration: Registration, limit: str, key: str | None) -> None:
    fields = registration.parameter_fields
    if key is not None and fields is not None and key not in fields:
        raise RegistrationError(
            f"The {limit} of task type {registration.task_type!r} has the key {key!r}, which is not a field of its "
            "parameters.",
            hint=f"{_nearest(key, sorted(fields))} Use the name of a submitted field.",
        )


def _nearest(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {nearest[0]!r}?" if nearest else f"There is: {', '.join(known) or 'none'}."
