"""Certificates for tests of TLS: an authority of its own, and what it signs for servers and clients on this machine."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """Signs certificates; all files are in one folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Make its own certificate."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.file = folder / f"{name}.pem"
        made = self._new(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self.file.write_bytes(
            made.add_extension(usage, True).sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        )

    def signed(self, name: str, valid_from: timedelta = timedelta(days=-1)) -> tuple[Path, Path, Path]:
        """Certificate, key, and both in one file, for a server on this machine or a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        here = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        )
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        made = self._new(_named(name), key, valid_from).add_extension(here, False).add_extension(purposes, False)
        certificate, private, both = (self._folder / f"{name}{end}" for end in (".pem", ".key", ".both"))
        certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        both.write_bytes(certificate.read_bytes() + private.read_bytes())
        return certificate, private, both

    def _new(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, valid_from: timedelta = timedelta(days=-1)
    ) -> x509.CertificateBuilder:
        begin = datetime.now(UTC) + valid_from
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(days=2))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
