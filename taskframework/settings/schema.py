"""Every setting: its type, its default and one line of meaning. application.yml and the reference come from here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, ConfigDict, Field, ValidationInfo, field_validator

from taskframework.settings.limits import ConcurrencySettings, RateLimiterSettings
from taskframework.settings.section import ZERO, BoundedDuration, Section, check_not_below
from taskframework.settings.security import SecuritySettings
from taskframework.settings.servers import BrokerSettings, StoreSettings
from taskframework.settings.sizes import Size

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

#: By which address a program on this machine reaches a server that listens on all addresses.
_LOOPBACK_BY_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}
#: The longest time that the reaper waits after the end of a lease: a late renewal of a busy worker arrives within it.
_MAX_LEASE_GRACE = timedelta(seconds=5)


class RetrySettings(Section):
    """When a failed attempt is tried again, for tasks whose options do not say otherwise."""

    max_attempts: int = Field(
        default=5, ge=1, le=1000, description="Maximum number of attempts of a task, including the first"
    )
    initial_delay: BoundedDuration = Field(
        default=timedelta(seconds=5), ge=ZERO, description="Wait between the first failure and the second attempt"
    )
    max_delay: BoundedDuration = Field(
        default=timedelta(hours=1), ge=ZERO, description="Longest wait between two attempts"
    )
    backoff_factor: float = Field(default=2.0, ge=1, le=100, description="Each wait is the previous one times this")
    jitter_factor: float = Field(
        default=0.1, ge=0, le=1, description="Random share of each wait, so that failed tasks do not all retry together"
    )

    @field_validator("max_delay")
    @classmethod
    def _not_below_initial(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        return check_not_below(value, info, "initial_delay")


class RetentionSettings(Section):
    """How long ended tasks and other finished things stay in the store."""

    finished: BoundedDuration | None = Field(
        default=timedelta(days=7),
        gt=ZERO,
        description="How long completed and cancelled tasks are kept; empty: forever",
    )
    dead_letters: BoundedDuration | None = Field(
        default=timedelta(days=90),
        gt=ZERO,
        description="How long failed tasks and dead messages are kept; empty: forever",
    )
    idempotency_keys: BoundedDuration = Field(
        default=timedelta(hours=24),
        gt=ZERO,
        description="How long idempotency keys, and the tasks with them, are kept after the end of the task",
    )
    audit: BoundedDuration | None = Field(
        default=timedelta(days=365),
        gt=ZERO,
        description="How long the audit log and finished actions on many tasks are kept; empty: forever",
    )


class ObservabilitySettings(Section):
    """Logs, traces and warnings of the processes."""

    log_level: LogLevel = Field(default="INFO", description="Lowest level that is logged")
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="Format of the log on standard error; auto: console on a terminal, else json"
    )
    logging_config: Path | None = Field(
        default=None, description="File with levels of single loggers, such as config/logging.yml"
    )
    tracing: bool = Field(
        default=True,
        description="Whether spans are sent to otlp_endpoint; a program with its own tracer provider decides itself",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        max_length=500,
        description="Where spans are sent, such as http://localhost:4318/v1/traces; empty: the program decides",
    )
    loop_lag_warning: BoundedDuration = Field(
        default=timedelta(seconds=1),
        ge=ZERO,
        description="How long the event loop may be blocked before a warning names the blocking code; 0: never warn",
    )


class ApiSettings(Section):
    """The HTTP interface."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0: any free port")
    certificate: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain for TLS; empty: plain HTTP",
    )
    private_key: Path | None = Field(
        default=None, description="PEM file with the certificate's private key; empty: it is in the same file"
    )
    allow_remote: bool = Field(
        default=False, description="Allow other addresses than loopback although there are no API keys"
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names by which a reverse proxy on this machine is reached, such as [tasks.example.org]; "
        "needed only while there are no API keys",
    )
    proxies: tuple[str, ...] = Field(
        default=(),
        description="Addresses of reverse proxies, such as [10.0.0.5]; their headers X-Forwarded-For and "
        "X-Forwarded-Proto are trusted",
    )
    root_path: str = Field(
        default="",
        pattern=r"^(/[^/?#\s]+)*$",
        max_length=200,
        description="Path prefix that a reverse proxy removes, such as /background",
    )
    max_body: Size = Field(default=ByteSize(1024**2), ge=1024, description="Largest request body; larger ones get 413")
    max_connections: Literal["auto"] | Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default="auto",
        description="Maximum number of open connections, including event streams; further ones get 503. "
        "auto is three quarters of the process's limit of file descriptors, at most 10,000",
    )

    access_log: bool = Field(default=False, description="Whether to log one line per request")

    @field_validator("private_key")
    @classmethod
    def _require_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("certificate") is None:
            raise ValueError("has no effect without api.certificate")
        return value

    @property
    def url(self) -> str:
        """The address by which a program on this machine reaches the interface."""
        host = _LOOPBACK_BY_WILDCARD.get(self.host, self.host)
        name = f"[{host}]" if ":" in host else host
        return f"{'http' if self.certificate is None else 'https'}://{name}:{self.port}"


class WorkerSettings(Section):
    """How a worker executes. Its heartbeat is always a third of the lease."""

    concurrency: int = Field(
        default=100, ge=1, le=100_000, description="Tasks that one worker process executes at once"
    )
    processes: Literal["auto"] | Annotated[int, Field(ge=0, le=1024)] = Field(
        default=1,
        description="Processes that the command worker starts, each a complete worker; auto or 0: one per CPU",
    )
    prefetch: Literal["auto"] | Annotated[int, Field(ge=1, le=65535)] = Field(
        default="auto",
        description="Maximum number of unacknowledged messages of one queue; auto: enough to fill all slots",
    )
    lease: BoundedDuration = Field(
        default=timedelta(seconds=30),
        ge=timedelta(milliseconds=100),
        description="How long a silent worker keeps its tasks; a live one renews its leases every third of this",
    )
    max_crashes: int = Field(
        default=3, ge=1, description="Lost leases after which a task becomes a dead letter, even with attempts left"
    )
    # Longer than nearly all tasks run. After a crash of many workers, each process begins one long task in this time.
    probation: BoundedDuration = Field(
        default=timedelta(minutes=5),
        description="How long a running task whose next lost lease would be its last keeps other such tasks from"
        " starting in its process",
    )
    max_threads: int = Field(default=32, ge=1, description="Threads for tasks written as plain functions")
    max_processes: int | None = Field(
        default=None, ge=1, description='Processes for tasks with run_in="process"; empty: one per CPU'
    )
    http_host: str = Field(default="127.0.0.1", min_length=1, description="Address of a worker's health checks")
    http_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of a worker's /healthz, /readyz and /metrics; empty: none"
    )

    @property
    def heartbeat(self) -> timedelta:
        """How often a worker renews its leases: a third of a lease, so that two lost renewals do no harm."""
        return self.lease / 3

    @property
    def lease_grace(self) -> timedelta:
        """How long the reaper waits after the end of a lease. It looks twice in this time."""
        return min(_MAX_LEASE_GRACE, self.lease / 4)

    @property
    def claimed_within(self) -> timedelta:
        """How long a slot of a concurrency limit is held for a claim that is not made yet."""
        return self.lease / 2


class PrioritySettings(Section):
    """Which tasks a worker starts first. While tasks of several priorities wait, they share the slots by weight."""

    high: int = Field(default=8, ge=1, le=1000, description="Weight of high: of 8 + 4 + 1 free slots it gets 8")
    normal: int = Field(default=4, ge=1, le=1000, description="Weight of normal")
    low: int = Field(default=1, ge=1, le=1000, description="Weight of low")
    max_wait: BoundedDuration = Field(
        default=timedelta(minutes=5),
        gt=ZERO,
        description="A task that has waited longer than this goes before all others",
    )
    retries: Literal["same", "lower"] = Field(
        default="same", description="Priority of a retry: that of its task, or one lower"
    )


class RecoverySettings(Section):
    """How interrupted work is found and continued."""

    sweep_interval: BoundedDuration = Field(
        default=timedelta(seconds=1), gt=ZERO, description="How often to search for due tasks without a message"
    )
    relay_interval: BoundedDuration = Field(
        default=timedelta(seconds=1), gt=ZERO, description="How often to search for unpublished events"
    )
    batch_size: int = Field(default=100, ge=1, le=10_000, description="Maximum number of tasks handled per search")
    dispatch_grace: BoundedDuration = Field(
        default=timedelta(seconds=5),
        gt=ZERO,
        description="How long the submitting process has to send the first message",
    )
    redispatch: BoundedDuration = Field(
        default=timedelta(seconds=20),
        gt=ZERO,
        description="How long to wait for a claim before the message is sent again; doubles each time",
    )
    redispatch_max: BoundedDuration = Field(
        default=timedelta(minutes=15), gt=ZERO, description="Longest wait for a claim"
    )
    no_handler_delay: BoundedDuration = Field(
        default=timedelta(seconds=30),
        gt=ZERO,
        description="How long a task is put off if the worker cannot run its type or its version",
    )
    no_handler_limit: int = Field(
        default=120,
        ge=1,
        description="How often a task is put off before it becomes a dead letter (120 times 30s is an hour)",
    )

    @field_validator("redispatch_max")
    @classmethod
    def _not_below_first(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        return check_not_below(value, info, "redispatch")


class BatchesSettings(Section):
    """Batches of tasks."""

    upload_timeout: BoundedDuration = Field(
        default=timedelta(minutes=10),
        ge=timedelta(seconds=1),
        description="How long the upload of a batch may pause; after that, the batch is cancelled",
    )


class StreamsSettings(Section):
    """Ordered streams."""

    gap: BoundedDuration = Field(
        default=timedelta(seconds=60),
        ge=timedelta(milliseconds=100),
        description="How long a stream's results wait for a missing one without a deadline, once a later one exists",
    )


class SchedulesSettings(Section):
    """Schedules by names of your own: `nightly: {cron: "30 2 * * *", task_type: report}`; see docs/schedules.md."""

    # The names are free. The values below a name are checked when the schedule is made, as for a schedule over HTTP.
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    @property
    def named(self) -> Mapping[str, Any]:
        """The definitions of the schedules, by name."""
        return self.__pydantic_extra__


class ShutdownSettings(Section):
    """How a process stops."""

    await_termination_timeout: BoundedDuration = Field(
        default=timedelta(seconds=30),
        ge=ZERO,
        description="How long running tasks may take to finish after SIGTERM; then they are released to other workers",
    )


class AppSettings(Section):
    """The program that is run."""

    modules: tuple[str, ...] = Field(
        default=(), description="Modules that define tasks, such as [myapp.tasks]; --app adds more"
    )
    source: str = Field(
        default="taskframework",
        pattern=r"^\S+$",
        max_length=200,
        description="Name of this installation, used as source of its external events; a URI or part of one",
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
