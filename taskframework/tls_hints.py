"""What to do when the certificate of a server, or of this program, is refused."""

from __future__ import annotations

_RENEW = "Renew the server's certificate, or check the clock of this machine."


def certificate_hints(ca_file: str, certificate: str) -> dict[str, str]:
    """Return parts of the messages of TLS, each with what to do about it; the first that fits counts.

    Args:
        ca_file: the setting of the authority that signed the server's certificate.
        certificate: the setting of the certificate that the server gets.
    """
    own = f"The server wants a certificate of this program: set {certificate} to a valid one, of an authority it knows."
    return {
        "certificate has expired": _RENEW,
        "certificate is not yet valid": _RENEW,
        "certificate is not valid for": "Use a name in the address that is in the server's certificate.",
        "CERTIFICATE_VERIFY_FAILED": f"Set {ca_file} to the authority that signed the server's certificate.",
        "ALERT_CERTIFICATE_": own,  # required, expired, revoked, unknown
        "ALERT_BAD_CERTIFICATE": own,
        "ALERT_UNKNOWN_CA": own,
    }
