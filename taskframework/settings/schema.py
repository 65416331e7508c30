"""Every setting: its type, its default and one line of meaning. application.yml and the reference come from here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, ConfigDict, Field, ValidationInfo, field_validator

from taskframework.settings.durations import Duration
from taskframework.settings.limits import ConcurrencySettings, RateLimiterSettings
from taskframework.settings.section import ZERO, Section, not_below
from taskframework.settings.security import SecuritySettings
from taskframework.settings.servers import BrokerSettings, StoreSettings
from taskframework.settings.sizes import Size

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

#: The address by which a program on this machine reaches what listens on all its addresses.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
#: How long the reaper waits after the end of a lease at the most: the late renewal of a busy worker arrives by then.
_LONGEST_GRACE = timedelta(seconds=5)


class RetrySettings(Section):
    """When a failed attempt is tried again, for tasks whose options do not say otherwise."""

    max_attempts: int = Field(default=5, ge=1, le=1000, description="Attempts a task has in all, the first included")
    initial_delay: Duration = Field(
        default=timedelta(seconds=5), ge=ZERO, description="Wait between the first failure and the second attempt"
    )
    max_delay: Duration = Field(default=timedelta(hours=1), ge=ZERO, description="No wait grows longer than this")
    backoff_factor: float = Field(default=2.0, ge=1, le=100, description="Each wait is this many times the one before")
    jitter_factor: float = Field(
        default=0.1, ge=0, le=1, description="Share of a wait that is random, so that failures do not return together"
    )

    @field_validator("max_delay")
    @classmethod
    def _not_below_initial(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        return not_below(value, info, "initial_delay")


class RetentionSettings(Section):
    """How long what is over stays in the store."""

    finished: Duration | None = Field(
        default=timedelta(days=7), gt=ZERO, description="Completed and cancelled tasks; empty keeps them for ever"
    )
    dead_letters: Duration | None = Field(
        default=timedelta(days=90), gt=ZERO, description="Failed tasks and parked messages; empty keeps them for ever"
    )
    idempotency_keys: Duration = Field(
        default=timedelta(hours=24),
        gt=ZERO,
        description="Idempotency keys after the end of their task, but no longer than the task itself",
    )
    audit: Duration | None = Field(
        default=timedelta(days=365),
        gt=ZERO,
        description="Notes of what operators did, and their actions on many tasks; empty keeps them for ever",
    )


class ObservabilitySettings(Section):
    """What the processes tell about themselves."""

    log_level: LogLevel = Field(default="INFO", description="Least severe line that is logged")
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="Form of the log on standard error; auto is console on a terminal, else json"
    )
    logging_config: Path | None = Field(
        default=None, description="File with levels for single loggers, such as config/logging.yml"
    )
    tracing: bool = Field(
        default=True,
        description="Whether spans go to otlp_endpoint; a program with a tracer provider of its own decides by that",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        max_length=500,
        description="Where spans go, such as http://localhost:4318/v1/traces; empty leaves it to the program",
    )
    loop_lag_warning: Duration = Field(
        default=timedelta(seconds=1),
        ge=ZERO,
        description="How long the event loop may stand still before a warning names the code that blocks it; 0 never",
    )


class ApiSettings(Section):
    """The HTTP interface."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one")
    certificate: Path | None = Field(
        default=None,
        description="PEM file with the certificate for TLS, and those up to its root; empty serves plain HTTP",
    )
    private_key: Path | None = Field(
        default=None, description="PEM file with the key of it; empty: it is in the same file"
    )
    allow_remote: bool = Field(
        default=False, description="Listen on other than loopback although there are no API keys"
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names by which a reverse proxy on this machine is reached, such as [tasks.example.org]; "
        "needed only while there are no API keys",
    )
    proxies: tuple[str, ...] = Field(
        default=(),
        description="Addresses of reverse proxies, such as [10.0.0.5]; what these say of the caller's address and of "
        "TLS (X-Forwarded-For, X-Forwarded-Proto) is believed",
    )
    root_path: str = Field(
        default="",
        pattern=r"^(/[^/?#\s]+)*$",
        max_length=200,
        description="Path that a reverse proxy cuts off before it forwards, such as /background",
    )
    max_body: Size = Field(
        default=ByteSize(1024**2), ge=1024, description="Largest request body; more is answered with 413"
    )
    max_connections: Literal["auto"] | Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default="auto",
        description="Connections open at once, event streams included; further ones are answered with 503. "
        "auto is three quarters of the process's limit of file descriptors, at most 10,000",
    )

    access_log: bool = Field(default=False, description="One log line a request")

    @field_validator("private_key")
    @classmethod
    def _with_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("certificate") is None:
            raise ValueError("is without effect as long as there is no api.certificate")
        return value

    @property
    def url(self) -> str:
        """How a program on this machine reaches it."""
        host = _EVERYWHERE.get(self.host, self.host)
        name = f"[{host}]" if ":" in host else host
        return f"{'http' if self.certificate is None else 'https'}://{name}:{self.port}"


class WorkerSettings(Section):
    """How a worker executes. Its heartbeat is always a third of the lease."""

    concurrency: int = Field(default=100, ge=1, le=100_000, description="Tasks one worker process executes at once")
    processes: Literal["auto"] | Annotated[int, Field(ge=0, le=1024)] = Field(
        default=1,
        description="Processes that the command worker starts, each a whole worker; auto or 0 is one for each CPU",
    )
    prefetch: Literal["auto"] | Annotated[int, Field(ge=1, le=65535)] = Field(
        default="auto",
        description="Most messages of one queue taken and not acknowledged; auto fills all slots from any one queue",
    )
    lease: Duration = Field(
        default=timedelta(seconds=30),
        ge=timedelta(milliseconds=100),
        description="How long a worker that is silent keeps its tasks; it renews them every third of this",
    )
    max_crashes: int = Field(default=3, ge=1, description="Lost leases after which a task is a dead letter")
    max_threads: int = Field(default=32, ge=1, description="Threads for tasks written as plain functions")
    max_processes: int | None = Field(
        default=None, ge=1, description='Processes for tasks with run_in="process"; empty is one for each CPU'
    )
    http_host: str = Field(default="127.0.0.1", min_length=1, description="Address of a worker's own health checks")
    http_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of a worker's /healthz, /readyz and /metrics; empty serves none"
    )

    @property
    def heartbeat(self) -> timedelta:
        """How often a worker renews its leases: a third of a lease, so that two lost renewals cost nothing."""
        return self.lease / 3

    @property
    def lease_grace(self) -> timedelta:
        """How long the reaper waits after the end of a lease, and how often it looks."""
        return min(_LONGEST_GRACE, self.lease / 4)

    @property
    def claimed_within(self) -> timedelta:
        """How long a slot of a concurrency limit is held for a claim that is not made yet."""
        return self.lease / 2


class PrioritySettings(Section):
    """Which tasks a worker starts first. While tasks of several priorities wait, they share the slots by weight."""

    high: int = Field(default=8, ge=1, le=1000, description="Weight of high: of 8 + 4 + 1 free slots it gets 8")
    normal: int = Field(default=4, ge=1, le=1000, description="Weight of normal")
    low: int = Field(default=1, ge=1, le=1000, description="Weight of low")
    max_wait: Duration = Field(
        default=timedelta(minutes=5), gt=ZERO, description="A task that waited longer goes before every other"
    )
    retries: Literal["same", "lower"] = Field(
        default="same", description="Priority of a repeated attempt: that of its task, or one lower"
    )


class RecoverySettings(Section):
    """How what was interrupted is taken up again."""

    sweep_interval: Duration = Field(
        default=timedelta(seconds=1), gt=ZERO, description="How often due tasks without a message are looked for"
    )
    relay_interval: Duration = Field(
        default=timedelta(seconds=1), gt=ZERO, description="How often events that were not published are looked for"
    )
    batch_size: int = Field(default=100, ge=1, le=10_000, description="Tasks one look takes up")
    dispatch_grace: Duration = Field(
        default=timedelta(seconds=5), gt=ZERO, description="Time the submitting process has to send the first message"
    )
    redispatch: Duration = Field(
        default=timedelta(seconds=20), gt=ZERO, description="Wait for a claim before the message is sent again; doubles"
    )
    redispatch_max: Duration = Field(
        default=timedelta(minutes=15), gt=ZERO, description="The wait for a claim grows no longer than this"
    )
    no_handler_delay: Duration = Field(
        default=timedelta(seconds=30), gt=ZERO, description="How long a task of a type nobody here knows is put off"
    )
    no_handler_limit: int = Field(
        default=120, ge=1, description="Times a task is put off before it is a dead letter (120 times 30s is an hour)"
    )

    @field_validator("redispatch_max")
    @classmethod
    def _not_below_first(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        return not_below(value, info, "redispatch")


class BatchesSettings(Section):
    """Batches of tasks."""

    upload_timeout: Duration = Field(
        default=timedelta(minutes=10),
        ge=timedelta(seconds=1),
        description="How long the upload of a batch may pause; if it does not go on by then, the batch is cancelled",
    )


class StreamsSettings(Section):
    """Ordered streams."""

    gap: Duration = Field(
        default=timedelta(seconds=60),
        ge=timedelta(milliseconds=100),
        description="How long results of a stream wait for one without a deadline, once a later one is there",
    )


class SchedulesSettings(Section):
    """Schedules by names of your own: `nightly: {cron: "30 2 * * *", task_type: report}`; see docs/schedules.md."""

    # The names are free. What is below a name is checked where the schedule is made, as for one that is made over HTTP.
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    @property
    def named(self) -> Mapping[str, Any]:
        """What is defined, by name."""
        return self.__pydantic_extra__


class ShutdownSettings(Section):
    """How a process stops."""

    await_termination_timeout: Duration = Field(
        default=timedelta(seconds=30),
        ge=ZERO,
        description="Time running tasks have to finish after SIGTERM; then they are released to other workers",
    )


class AppSettings(Section):
    """The program that is run."""

    modules: tuple[str, ...] = Field(
        default=(), description="Modules whose tasks are registered, such as [myapp.tasks]; --app adds to them"
    )
    source: str = Field(
        default="taskframework",
        pattern=r"^\S+$",
        max_length=200,
        description="Name of this installation, the source of its external events; a URI or a part of one",
    )


class Settings(Section):
    """Everything that can be configured, by section."""

    app: AppSettings = AppSettings()
    broker: BrokerSettings = BrokerSettings()
    store: StoreSettings = StoreSettings()
    api: ApiSettings = ApiSettings()
    security: SecuritySettings = SecuritySettings()
    worker: WorkerSettings = WorkerSettings()
    priority: PrioritySettings = PrioritySettings()
    retry: RetrySettings = RetrySettings()
    recovery: RecoverySettings = RecoverySettings()
    batches: BatchesSettings = BatchesSettings()
    streams: StreamsSettings = StreamsSettings()
    schedules: SchedulesSettings = SchedulesSettings()
    rate_limiter: RateLimiterSettings = RateLimiterSettings()
    concurrency: ConcurrencySettings = ConcurrencySettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    retention: RetentionSettings = RetentionSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
