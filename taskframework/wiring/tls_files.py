"""Checks at the start that files for TLS can be used: drivers report a wrong file only when they connect, for ever."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

from taskframework.errors import ConfigurationError
from taskframework.settings.section import Section

#: Options of an address by which its driver gets the pass phrase of a key.
_PASS_PHRASE = re.compile("[?&;](tlsCertificateKeyFilePassword|ssl_password)=", re.IGNORECASE)


def require_tls_files(section: Section, name: str, url: str, prefix: str = "") -> None:
    """Check the authority, the certificate and the key in a section of the settings.

    Args:
        section: the settings.
        name: the name of the section.
        url: the address that the files are for.
        prefix: the beginning of the three settings.

    Raises:
        ConfigurationError: naming the setting and the file.
    """
    ca_file, certificate, private_key = f"{prefix}ca_file", f"{prefix}certificate", f"{prefix}private_key"
    files: dict[str, Path | None] = {key: getattr(section, key, None) for key in (ca_file, certificate, private_key)}
    for key, file in files.items():
        if file is not None and not os.access(file, os.R_OK):
            raise _refusal(f"{name}.{key}", f"{file} cannot be read", "Give a PEM file that exists.")
    if (authority := files[ca_file]) is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authority)
        except OSError as error:
            problem = f"{authority} holds no certificate that can be read ({error.strerror or error})"
            raise _refusal(
                f"{name}.{ca_file}", problem, "Give the certificate of the authority as a PEM file."
            ) from None
    if (own := files[certificate]) is not None and not _PASS_PHRASE.search(url):
        key_setting = f"{name}.{private_key}" if hasattr(section, private_key) else None
        require_certificate(f"{name}.{certificate}", own, key_setting, files[private_key])


def require_certificate(setting: str, certificate: Path, key_setting: str | None, private_key: Path | None) -> None:
    """Check a certificate and its key.

    Args:
        setting: the setting of the certificate.
        certificate: its file.
        key_setting: the setting of the key; None if the key must be in the same file.
        private_key: its file; None if the key is in the same file.

    Raises:
        ConfigurationError: if they cannot be used together, or need a pass phrase.
    """
    try:
        # Without the last argument, OpenSSL would ask for a pass phrase on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, lambda: "")
    except OSError as error:
        key_place = f"in {key_setting}" if key_setting else "in the same file"
        raise _refusal(
            setting,
            f"{certificate} cannot be used with its key{f' {private_key}' if private_key else ''} "
            f"({error.strerror or error})",
            f"Name PEM files: the certificate, and {key_place} its key, without a pass phrase.",
        ) from None


def _refusal(key: str, problem: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"{key}: {problem}.", key=key, hint=hint)
