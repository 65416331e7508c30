"""Files for TLS that cannot be used are named at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from taskframework.clock import SystemClock
from taskframework.errors import ConfigurationError
from taskframework.settings import Settings
from taskframework.wiring.adapters import build_broker, build_buckets, build_store
from tests.support.certificates import Authority

#: For each section: its address, and the beginning of the settings of its files.
_SECTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "broker": ({"url": "amqps://h/"}, ""),
    "store": ({"url": "mongodb://h/d"}, ""),
    "rate_limiter": ({"type": "redis", "redis_url": "rediss://h"}, "redis_"),
}


def _build(section: str, more: str = "", **files: Path) -> None:
    address, prefix = _SECTIONS[section]
    address = {key: value + more if key.endswith("url") else value for key, value in address.items()}
    given = address | {prefix + name: str(file) for name, file in files.items()}
    settings = Settings.model_validate({"store": {"url": "sqlite:///x.db"}} | {section: given})
    store = build_store(settings, SystemClock())
    build_broker(settings, SystemClock())
    build_buckets(settings, store, SystemClock())


def _encrypted(private: Path) -> bytes:
    key = load_pem_private_key(private.read_bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"phrase"))


@pytest.mark.parametrize("section", _SECTIONS)
def test_a_key_with_a_pass_phrase_is_refused_and_asked_for_nowhere(tmp_path: Path, section: str) -> None:
    certificate, private, both = Authority(tmp_path).signed("own")
    _build(section, certificate=both)
    both.write_bytes(certificate.read_bytes() + _encrypted(private))
    prefix = _SECTIONS[section][1]
    with pytest.raises(
        ConfigurationError, match=rf"{section}\.{prefix}certificate: .*own\.both.*without a pass phrase"
    ):
        _build(section, certificate=both)
    if section == "store":
        _build(section, "?tlsCertificateKeyFilePassword=phrase", certificate=both)
        return
    private.write_bytes(_encrypted(private))
    with pytest.raises(
        ConfigurationError, match=rf"own\.key .*in {section}\.{prefix}private_key its key, without a pass"
    ):
        _build(section, certificate=certificate, private_key=private)


@pytest.mark.parametrize("section", _SECTIONS)
def test_an_authority_that_is_no_pem_file_is_named(tmp_path: Path, section: str) -> None:
    file = tmp_path / "ca.pem"
    for content in ("", "no certificate"):
        file.write_text(content)
        with pytest.raises(ConfigurationError, match=rf"{section}\.\w*ca_file: .*ca\.pem holds no certificate"):
            _build(section, ca_file=file)
    _build(section, ca_file=Authority(tmp_path).file)
