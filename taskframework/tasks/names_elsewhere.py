"""What options are called in other frameworks, so that a person who comes from there is told the name here."""

from __future__ import annotations

import difflib
from collections.abc import Collection

#: For names in Celery, Dramatiq, TaskIQ, arq and RQ: the options here, the nearest in meaning first. Some are options
#: of a type and some of a submission. A name is left out if no option here means the same.
_NAMES_HERE: dict[str, tuple[str, ...]] = {
    "autoretry_for": ("retry_on",),
    "retry_for": ("retry_on",),
    "retry_on_error": ("retry_on",),
    "countdown": ("not_before",),
    "defer_by": ("not_before",),
    "defer_until": ("not_before",),
    "delay": ("not_before", "initial_delay"),
    "eta": ("not_before",),
    "schedule": ("not_before",),
    "default_retry_delay": ("initial_delay",),
    "min_backoff": ("initial_delay",),
    "retry_backoff": ("initial_delay",),
    "max_backoff": ("max_delay",),
    "retry_backoff_max": ("max_delay",),
    "expires": ("deadline", "queue_timeout"),
    "max_age": ("queue_timeout", "deadline"),
    "ttl": ("queue_timeout", "deadline"),
    "failure_ttl": ("retention",),
    "ignore_result": ("retention",),
    "keep_result": ("retention",),
    "result_ttl": ("retention",),
    "store_results": ("retention",),
    "max_retries": ("max_attempts",),
    "max_tries": ("max_attempts",),
    "retries": ("max_attempts",),
    "job_timeout": ("timeout",),
    "soft_time_limit": ("timeout",),
    "time_limit": ("timeout",),
    "job_id": ("idempotency_key",),
    "task_id": ("idempotency_key",),
    "unique_id": ("unique", "idempotency_key"),
}


def names_meant(name: str, known: Collection[str]) -> list[str]:
    """Return the known option that a person who wrote `name` probably means; an empty list if there is none."""
    here = [option for option in _NAMES_HERE.get(name.lstrip("_"), ()) if option in known]
    return here[:1] or difflib.get_close_matches(name, known, 1)
