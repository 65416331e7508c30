"""What is wrong with a certificate is told with what to do about it, by a handshake with a server that has it."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.tls_hints import certificate_hints
from tests.support.certificates import Authority

_HINTS = certificate_hints("store.ca_file", "store.certificate")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("expired", "Renew the server's certificate, or check the clock"),
        ("too early", "Renew the server's certificate, or check the clock"),
        ("name", "Use a name in the address that is in the server's certificate"),
        ("authority", "Set store.ca_file to the authority"),
        ("no certificate", "set store.certificate to a valid one"),
        ("stranger's certificate", "set store.certificate to a valid one"),
    ],
)
def test_each_certificate_error_has_its_own_hint(tmp_path: Path, wrong: str, hint: str) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    days = {"expired": -10, "too early": 10}.get(wrong, 0)
    certificate, private, _ = authority.signed("server", valid_from=timedelta(days=days - 1))
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    server_side.load_cert_chain(certificate, private)
    client_side = ssl.create_default_context(cafile=(stranger if wrong == "authority" else authority).file)
    if wrong.endswith("certificate"):
        server_side.verify_mode = ssl.CERT_REQUIRED
    if wrong == "stranger's certificate":
        client_side.load_cert_chain(*stranger.signed("client")[:2])
    said = _refusal(server_side, client_side, "elsewhere" if wrong == "name" else "localhost")
    assert hint in next(found for words, found in _HINTS.items() if words in said), said


def _refusal(server_side: ssl.SSLContext, client_side: ssl.SSLContext, name: str) -> str:
    """What the client's side says of a handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    # With TLS 1.3 the server refuses a certificate after the handshake of the client.
    for step in (client.do_handshake, client.do_handshake, client.read):
        try:
            step()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return str(error)
        with suppress(ssl.SSLError):  # it tells the client
            server.do_handshake()
    raise AssertionError("nothing was refused")
