"""An authority and one certificate for a listener, with keys on an elliptic curve.

They are made in about a millisecond, for one broker of one test, and are valid for a day.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography import x509

AUTHORITY_FILE: Final = "ca.pem"
LISTENER_FILE: Final = "listener.pem"
_VALID: Final = dt.timedelta(days=1)


def make_certificates(folder: str, hosts: Iterable[str]) -> tuple[str, str]:
    """Writes two files: the authority's certificate, and the listener's key with its certificate.

    ConfigError says what to install if cryptography is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as missing:
        raise ConfigError(
            "Security(tls=True) makes certificates, which needs cryptography: install it with "
            "`pip install 'fencepost[secure-tests]'`, or use Security(tls=False)."
        ) from missing

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def certificate(
        name: str, key: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> bytes:
        # An hour ago, because clocks of containers differ.
        begin = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("fencepost test authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + _VALID)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        signed = builder.sign(authority, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    authority = ec.generate_private_key(ec.SECP256R1())
    listener = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    authority_pem = certificate(
        "fencepost test authority",
        authority.public_key(),
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (identifier, False),
    )
    listener_pem = certificate(
        "fencepost test listener",
        listener.public_key(),
        (x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)]), True),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    )
    key_pem = listener.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (
        write_private(folder, AUTHORITY_FILE, authority_pem),
        write_private(folder, LISTENER_FILE, key_pem + listener_pem),
    )


def write_private(folder: str, name: str, data: bytes) -> str:
    """Writes a file that nobody else may read, and returns its path."""
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    return path


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
