"""Options that have another name in the framework from which somebody comes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from taskframework import SubmitRequest, TaskOptions, task
from taskframework.errors import RegistrationError
from taskframework.submission.acceptance import BATCH_OPTIONS, OPTIONS
from taskframework.tasks import names_elsewhere
from taskframework.tasks.names_elsewhere import names_meant


def _option(name: str) -> dict[str, Any]:
    return {name: 5}


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("max_retries", "max_attempts"),  # Celery, Dramatiq
        ("soft_time_limit", "timeout"),  # Celery; by its letters it would be rate_limit
        ("expires", "queue_timeout"),  # Celery
        ("max_backoff", "max_delay"),  # Dramatiq
        ("result_ttl", "retention"),  # RQ
        ("timeuot", "timeout"),  # only misspelt
    ],
)
def test_an_option_of_a_type_with_its_name_elsewhere_is_refused_with_the_name_here(there: str, here: str) -> None:
    with pytest.raises(RegistrationError, match=rf"no option {there}\. Did you mean {here}\?"):
        TaskOptions(**_option(there))
    with pytest.raises(RegistrationError, match=rf"no option {there}\. Did you mean {here}\?"):
        task("report", **_option(there))


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("countdown", "not_before"),  # Celery
        ("expires", "deadline"),  # Celery
        ("delay", "not_before"),  # Dramatiq
        ("_defer_until", "not_before"),  # arq
        ("_job_id", "idempotency_key"),  # arq
    ],
)
def test_an_option_of_a_submission_with_its_name_elsewhere_is_refused_with_the_name_here(there: str, here: str) -> None:
    with pytest.raises(TypeError, match=rf"no option {there}; did you mean {here}\?"):
        SubmitRequest(task_type="report", **_option(there))


def test_a_name_that_means_nothing_here_has_no_suggestion() -> None:
    assert names_meant("bind", [field.name for field in fields(TaskOptions)]) == []


def test_every_name_here_exists_and_no_name_there_is_an_option_of_the_same_place() -> None:
    of_types = {field.name for field in fields(TaskOptions)}
    for there, options in names_elsewhere._NAMES_HERE.items():
        assert set(options) <= of_types | OPTIONS | BATCH_OPTIONS, there
        assert there not in of_types | OPTIONS | BATCH_OPTIONS
