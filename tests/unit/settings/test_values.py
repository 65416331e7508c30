from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from taskframework.errors import ConfigurationError
from taskframework.settings import Settings
from taskframework.settings.sizes import Size
from taskframework.urls import check_broker_url, check_redis_url, check_store_url, redacted, scheme_of, sqlite_file

_SIZE = TypeAdapter[int](Size)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1MiB", 1048576), ("512 KiB", 524288), ("1.5MB", 1_500_000), ("2048", 2048), (4096, 4096), ("1gib", 1024**3)],
)
def test_sizes_are_read(value: object, expected: int) -> None:
    assert _SIZE.validate_python(value) == expected


@pytest.mark.parametrize("value", ["", "MiB", "-1", "1 cup", None, 1.5])
def test_wrong_sizes_are_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        _SIZE.validate_python(value)


@pytest.mark.parametrize(("value", "text"), [(1048576, "1MiB"), (1536, "1536"), (2048, "2KiB"), (0, "0")])
def test_sizes_are_written_in_the_largest_unit_that_fits(value: int, text: str) -> None:
    assert _SIZE.dump_python(_SIZE.validate_python(value)) == text
    assert _SIZE.validate_python(text) == value


@pytest.mark.parametrize(
    "url",
    [
        "embedded://",
        "amqp://localhost",
        "amqp://user:p%40ss@host:5672/vhost",
        "amqps://host/?heartbeat=5",
        "amqp://[::1]:5672/",
        "AMQP://host",
    ],
)
def test_broker_addresses_are_accepted(url: str) -> None:
    assert check_broker_url(url) == url


@pytest.mark.parametrize(
    ("url", "next_step"),
    [
        ("", "must be embedded://, amqp://user:password@host:5672/vhost"),
        ("rabbit.example", "must be embedded://"),
        ("redis://host", "must be embedded://"),
        ("embedded://host", "must have nothing after embedded://"),
        ("amqp://", "write amqp://user:password@host:5672/vhost"),
        ("amqp://user:secret", "has no valid host"),
        ("amqp://user:se@cret/1@host:notaport/", "has no valid host"),
        ("amqp://host:70000/", "has a port that does not exist; ports are 1 to 65535"),
    ],
)
def test_wrong_broker_addresses_are_refused_with_the_right_form(url: str, next_step: str) -> None:
    with pytest.raises(ValueError, match=next_step) as caught:
        check_broker_url(url)
    assert "secret" not in str(caught.value)
    assert "se@cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///tasks.db",
        "sqlite:////var/lib/tasks.db",
        "mongodb://host/tasks",
        "mongodb://a:27017,b:27017,c/tasks?replicaSet=rs0&appName=a@b",
        "mongodb+srv://user:p%2Fss@cluster.example/tasks",
    ],
)
def test_store_addresses_are_accepted(url: str) -> None:
    assert check_store_url(url) == url


@pytest.mark.parametrize(
    ("url", "next_step"),
    [
        ("tasks.db", "must be sqlite:///file or mongodb://host:27017/database"),
        ("postgres://host/db", "must be sqlite:///file"),
        ("sqlite://tasks.db", "write sqlite:///file"),
        ("sqlite:///", "write sqlite:///file"),
        ("sqlite:///folder/", "write sqlite:///file"),
        ("sqlite:///:memory:", "needs a file"),
        ("mongodb:///tasks", "has no valid host"),
        ("mongodb://host:27017,host:0/tasks", "has a port that does not exist"),
        ("mongodb://host:27017", "needs one database in its path; write mongodb://host/database"),
        ("mongodb://host/?replicaSet=rs0", "needs one database"),
        ("mongodb://host/a/b", "needs one database"),
        ("mongodb+srv://user:secret@host", r"write mongodb\+srv://host/database"),
    ],
)
def test_wrong_store_addresses_are_refused_with_the_right_form(url: str, next_step: str) -> None:
    with pytest.raises(ValueError, match=next_step) as caught:
        check_store_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://localhost:6379/0", "rediss://user:p%2Fss@host", "redis://[::1]:6379", "redis://:pw@host/0?db=1"),
        *("redis:///0", "redis://", "unix:///run/redis.sock", "unix://user:pw@/run/redis.sock?db=1"),
    ],
)
def test_redis_addresses_are_accepted(url: str) -> None:
    assert check_redis_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "redis://u:secret/x@host:6379/0",
            "redis://u:12/secret@host/0",
            "rediss://u:secret#x@host",
            "redis://u:secret",
        ),
        *("redis://u:secret?x@host/0", "redis://u:secret@host:port/0"),
    ],
)
def test_wrong_redis_addresses_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"has no valid host; .* percent-encode special characters") as caught:
        check_redis_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "option"),
    [
        *(
            ("amqps://host/?heartbeat=5&no_verify_ssl=1", "no_verify_ssl"),
            ("amqps://host/v?no_verify_ssl=", "no_verify"),
        ),
        *(
            ("amqps://host/?no_verify%5Fssl=true", "no_verify_ssl"),
            ("mongodb://host/d?tlsInsecure=true", "tlsInsecure"),
        ),
        ("mongodb://host/d?tls=true&TLSAllowInvalidCertificates=true", "tlsAllowInvalidCertificates"),
        ("mongodb://host/d?tls=true;tlsAllowInvalidHostnames=true", "tlsAllowInvalidHostnames"),
        *(
            ("rediss://host?ssl_cert_reqs=none", "ssl_cert_reqs"),
            ("rediss://h/?ssl_cert_reqs=optional", "ssl_cert_reqs"),
        ),
        ("rediss://host/0?ssl_check_hostname=false", "ssl_check_hostname"),
    ],
)
def test_an_address_cannot_switch_off_checks_of_certificates(url: str, option: str) -> None:
    section, key, ca_file = {
        "amqps": ("broker", "url", "broker.ca_file"),
        "mongodb": ("store", "url", "store.ca_file"),
        "rediss": ("rate_limiter", "redis_url", "rate_limiter.redis_ca_file"),
    }[scheme_of(url)]
    with pytest.raises(ConfigurationError, match=f"{section}.{key} must not have the option {option}") as caught:
        Settings.model_validate({section: {key: url}})
    assert f"set {ca_file} to the authority that signed" in str(caught.value)


def test_options_that_leave_the_checks_as_they_are_are_accepted() -> None:
    check_broker_url("amqps://host/?no_verify_ssl=0")
    check_store_url("mongodb://host/db?tls=true&tlsInsecure=false")
    check_redis_url("rediss://host/0?ssl_cert_reqs=required&ssl_check_hostname=true")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://user:secret@host:5672/v", "amqp://user:***@host:5672/v"),
        ("amqp://user:sec@ret/x@host/v", "amqp://user:***@host/v"),
        ("amqp://:secret@host", "amqp://:***@host"),
        ("mongodb://u:secret@a:1,b:2/db?w=1", "mongodb://u:***@a:1,b:2/db?w=1"),
        (
            "mongodb://h/db?tlsCertificateKeyFilePassword=secret&w=1",
            "mongodb://h/db?tlsCertificateKeyFilePassword=***&w=1",
        ),
        (
            "mongodb://h/db?authMechanismProperties=AWS_SESSION_TOKEN:secret&w=1",
            "mongodb://h/db?authMechanismProperties=***&w=1",
        ),
        ("user:secret@host", "user:***@host"),
        ("https://secret@host/keys", "https://***@host/keys"),
        ("https://h/k?sig=secret&X-Amz-Signature=secret&a=1", "https://h/k?sig=***&X-Amz-Signature=***&a=1"),
        ("https://h/k#access_token=secret", "https://h/k#access_token=***"),
        ("mongodb://h/db?authSource=admin&pwd=secret", "mongodb://h/db?authSource=admin&pwd=***"),
        ("amqp://user@host", "amqp://user@host"),
        ("amqp://host:5672", "amqp://host:5672"),
        ("sqlite:///tasks.db", "sqlite:///tasks.db"),
        ("myapp.tasks", "myapp.tasks"),
    ],
)
def test_secrets_are_masked_and_nothing_else(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_the_parts_of_an_address_are_read() -> None:
    assert scheme_of("AMQP://host") == "amqp"
    assert scheme_of("host") == ""
    assert sqlite_file("sqlite:///a/b.db") == Path("a/b.db")
    assert sqlite_file("sqlite:////a/b.db") == Path("/a/b.db")
