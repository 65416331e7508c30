"""The settings, and how the configuration is read."""

from taskframework.settings.limits import BucketSettings, ConcurrencySettings, RateLimiterSettings
from taskframework.settings.load import ExplainedSetting, LoadedSettings, explain, load_settings
from taskframework.settings.schema import (
    ApiSettings,
    AppSettings,
    ObservabilitySettings,
    PrioritySettings,
    RecoverySettings,
    RetentionSettings,
    RetrySettings,
    SchedulesSettings,
    Settings,
    ShutdownSettings,
    WorkerSettings,
)
from taskframework.settings.security import SecuritySettings
from taskframework.settings.servers import BrokerSettings, StoreSettings
from taskframework.urls import redacted, sqlite_file

__all__ = [
    "ApiSettings",
    "AppSettings",
    "BrokerSettings",
    "BucketSettings",
    "ConcurrencySettings",
    "ExplainedSetting",
    "LoadedSettings",
    "ObservabilitySettings",
    "PrioritySettings",
    "RateLimiterSettings",
    "RecoverySettings",
    "RetentionSettings",
    "RetrySettings",
    "SchedulesSettings",
    "SecuritySettings",
    "Settings",
    "ShutdownSettings",
    "StoreSettings",
    "WorkerSettings",
    "explain",
    "load_settings",
    "redacted",
    "sqlite_file",
]
