"""Settings of rate limits and concurrency limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from taskframework.names import NAME
from taskframework.settings.section import Section, check_only_with_scheme, refuse_truth
from taskframework.urls import check_redis_url

#: The name of the bucket that `rate_limiter.default` describes.
DEFAULT_BUCKET = "default"


class BucketSettings(Section):
    """How much a bucket lets through."""

    # Below this minimum, the time of a turn could be after the year 9999.
    rate: float = Field(
        ge=0.00001,
        le=1_000_000,
        description="Attempts per second; 0.5 is one every two seconds, 0.00001 about one a day",
    )
    burst_capacity: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Attempts that may start at once after a pause; they do not add to the rate",
    )


class ConcurrencySettings(Section):
    """How many attempts of a task type run at once over all workers."""

    limits: dict[str, Annotated[int, BeforeValidator(refuse_truth), Field(ge=1, le=1000)]] = Field(
        default={}, description="Numbers that override those in the options of task types, such as {resize: 3}"
    )


class RateLimiterSettings(Section):
    """How many attempts a second begin over all workers. Task types choose a bucket by its name."""

    type: Literal["memory", "store", "redis"] = Field(
        default="store",
        description="Where buckets are kept: store or redis, shared by all processes; memory, one for each process",
    )
    redis_url: str = Field(
        default="redis://localhost:6379/0",
        pattern=r"^(rediss?|unix)://\S+$",
        max_length=500,
        description="Address of Redis, if type is redis",
    )
    redis_ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authority that signed Redis's certificate, for rediss://; empty: the system's",
    )
    redis_certificate: Path | None = Field(
        default=None, description="PEM file with the client certificate of this program, if Redis requires one"
    )
    redis_private_key: Path | None = Field(
        default=None, description="PEM file with the certificate's private key; empty: it is in the same file"
    )
    on_unavailable: Literal["wait", "allow"] = Field(
        default="wait",
        description="What tasks with a rate limit do while Redis is away: wait, or start without the limit",
    )
    default: BucketSettings | None = Field(
        default=None, description="The bucket with the name default, such as {rate: 10, burst_capacity: 20}"
    )
    providers: dict[str, BucketSettings] = Field(
        default={}, description="More buckets by name, such as {openai: {rate: 5, burst_capacity: 10}}"
    )

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: str) -> str:
        return check_redis_url(value)

    @field_validator("redis_ca_file", "redis_certificate", "redis_private_key")
    @classmethod
    def _require_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return check_only_with_scheme(value, info, "redis_url", "rediss")

    @field_validator("providers")
    @classmethod
    def _check_bucket_names(cls, value: dict[str, BucketSettings]) -> dict[str, BucketSettings]:
        for name in value:
            if name == DEFAULT_BUCKET or NAME.fullmatch(name) is None:
                raise ValueError(
                    f"must not name a bucket {name!r:.50}: use lower-case letters, digits, '.', '_' and '-', "
                    f"and for {DEFAULT_BUCKET} the setting rate_limiter.default"
                )
        return value

    @property
    def buckets(self) -> Mapping[str, BucketSettings]:
        """Every bucket by its name."""
        return self.providers if self.default is None else {DEFAULT_BUCKET: self.default, **self.providers}
