"""Builds an `ssl.SSLContext` from PEM files or PEM text.

Python's ssl module loads private keys from files only. So a key that is given as text goes through
a temporary file, which only its owner can read and which is deleted before this returns.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import TYPE_CHECKING

from fencepost.base.failures import ConfigError

if TYPE_CHECKING:
    from fencepost.client.options import Tls


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Returns the context for these options; ConfigError names the option that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.check_hostname
    # Check the chain even without host name checks: otherwise anyone could be in the middle.
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, tls)
    _load_client_certificate(context, tls)
    return context


def _trust(context: ssl.SSLContext, tls: Tls) -> None:
    try:
        if tls.ca_path is not None and os.path.isdir(tls.ca_path):
            context.load_verify_locations(capath=tls.ca_path)
        elif tls.ca_path is not None:
            context.load_verify_locations(cafile=tls.ca_path)
        elif tls.ca_text is not None:
            # Python takes ASCII alone; a comment between the certificates may have more.
            text = tls.ca_text.encode("ascii", "replace").decode("ascii")
            context.load_verify_locations(cadata=text)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as problem:
        raise ConfigError(
            "ssl.ca.location (or ssl.truststore.*) does not hold PEM certificates"
        ) from problem


def _load_client_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    password = None if tls.key_password is None else tls.key_password.reveal()
    # Without a password OpenSSL prompts on the terminal, and a server would hang. An empty one
    # fails instead.
    try:
        if tls.certificate_text is not None:
            if tls.key_text is None:
                raise ConfigError("ssl.keystore.certificate.chain needs ssl.keystore.key beside it")
            _load_text(context, tls.certificate_text, tls.key_text.reveal(), password or "")
        elif tls.certificate_path is not None:
            context.load_cert_chain(tls.certificate_path, tls.key_path, password or "")
    except (ssl.SSLError, OSError):
        # Without the cause, which could quote the key.
        raise ConfigError(
            "the client certificate cannot be loaded: check that ssl.certificate.location and "
            "ssl.key.location (or ssl.keystore.*) are PEM and belong together, and that "
            "ssl.key.password is right"
        ) from None


def _load_text(context: ssl.SSLContext, certificate: str, key: str, password: str) -> None:
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{certificate}\n{key}\n")
        context.load_cert_chain(path, None, password)
    finally:
        os.unlink(path)
