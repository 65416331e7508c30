"""Settings of the two servers that the framework needs: the broker and the store."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from taskframework.settings.section import ZERO, BoundedDuration, Section, check_only_with_scheme
from taskframework.urls import check_broker_url, check_store_url, scheme_of


def _false_to_off(value: object) -> object:
    """Turn false back into `off`, because YAML reads `off` without quotes as false."""
    return "off" if value is False else value


class BrokerSettings(Section):
    """The broker that carries the messages, and how long the framework waits for it."""

    url: Annotated[str, AfterValidator(check_broker_url)] = Field(
        default="embedded://",
        description="Address of the broker: embedded:// (in this process) or amqp://user:password@host:5672/vhost",
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authority that signed the broker's certificate, for amqps://; empty: the system's",
    )
    certificate: Path | None = Field(
        default=None, description="PEM file with the client certificate of this program, if the broker requires one"
    )
    private_key: Path | None = Field(
        default=None, description="PEM file with the certificate's private key; empty: it is in the same file"
    )
    prefix: str = Field(
        default="tasks",
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=50,
        description="First part of every exchange and queue name; each installation on one broker needs its own",
    )
    delay: Literal["auto", "plugin", "store"] = Field(
        default="auto",
        description="Where a task waits for its time: the broker's plugin, the store, or auto (plugin if installed)",
    )
    delay_limit: BoundedDuration = Field(
        default=timedelta(minutes=10),
        ge=ZERO,
        description="Longer delays stay in the store even with the plugin, where they can be listed and cancelled",
    )
    consumer_timeout: BoundedDuration = Field(
        default=timedelta(minutes=30),
        ge=timedelta(seconds=1),
        description="The broker's consumer_timeout (detected if shorter); tasks that run half of it are acknowledged",
    )
    delivery_limit: int = Field(
        default=20, ge=1, description="Deliveries of one message before the broker dead-letters it (x-delivery-limit)"
    )
    heartbeat: BoundedDuration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(seconds=1),
        description="AMQP heartbeat; a silent connection is closed after about three of them",
    )
    connect_timeout: BoundedDuration = Field(
        default=timedelta(seconds=10), gt=ZERO, description="Longest wait for one attempt to connect"
    )
    publish_timeout: BoundedDuration = Field(
        default=timedelta(seconds=5),
        gt=ZERO,
        description="Longest wait for the broker's confirmation of one message; the sweeper sends it again later",
    )
    max_unconfirmed: int = Field(default=512, ge=1, description="Maximum number of unconfirmed messages of one process")
    fast_path: Annotated[Literal["auto", "off"], BeforeValidator(_false_to_off)] = Field(
        default="auto",
        description="Read and write messages past the AMQP driver if its version fits (auto), or never (off)",
    )
    dead_letter_collector: bool = Field(
        default=True,
        description="Whether api and worker move messages from <prefix>.dlq into the store; if not, they stay there",
    )

    @field_validator("ca_file", "certificate", "private_key")
    @classmethod
    def _require_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return check_only_with_scheme(value, info, "url", "amqps")

    @property
    def scheme(self) -> str:
        """The part of the address before `://`; it chooses the adapter."""
        return scheme_of(self.url)


class StoreSettings(Section):
    """The store that keeps every task."""

    url: Annotated[str, AfterValidator(check_store_url)] = Field(
        default="sqlite:///taskframework.db",
        description="Address of the store: sqlite:///file or mongodb://host:27017/database?replicaSet=name",
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authority that signed MongoDB's certificate; enables TLS, like ?tls=true",
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file with the client certificate and key of this program, if MongoDB requires one; "
        "it enables TLS too",
    )
    driver: Literal["motor", "pymongo"] = Field(
        default="motor", description="Driver for MongoDB: motor, or pymongo's own asynchronous client"
    )
    timeout: BoundedDuration = Field(
        default=timedelta(seconds=10), gt=ZERO, description="Longest wait for one operation of the store"
    )
    pool_size: int = Field(default=100, ge=1, description="Maximum number of connections of one process to MongoDB")

    @field_validator("ca_file", "certificate")
    @classmethod
    def _require_mongodb(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return check_only_with_scheme(value, info, "url", "mongodb", "mongodb+srv")

    @property
    def scheme(self) -> str:
        """The part of the address before `://`; it chooses the adapter."""
        return scheme_of(self.url)
