"""Certificates for tests: an authority, listeners and clients, made in milliseconds."""

from __future__ import annotations

import datetime as dt
import os
import ssl
from pathlib import Path
from typing import Final

import trustme

ALICE: Final = "User:CN=alice,OU=Data,O=Ops\\, Inc"


class Authority:
    """An authority, and the files that it issues."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.file = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def listener(self, file: str = "listener", host: str = "127.0.0.1", *, days: int = 2) -> str:
        """A file with a key and a certificate for a listener; negative days as for a client."""
        now = dt.datetime.now(dt.UTC)
        issued = self._authority.issue_cert(
            host,
            "localhost",
            not_before=now - dt.timedelta(days=30),
            not_after=now + dt.timedelta(days=days),
        )
        return self.save(issued, file)

    def client(
        self, name: str = "alice", *, days: int = 2, until: dt.datetime | None = None
    ) -> str:
        """The same for a client; with negative days it has expired."""
        now = dt.datetime.now(dt.UTC)
        issued = self._authority.issue_cert(
            f"{name}@client.test",
            common_name=name,
            organization_unit_name="Data",
            organization_name="Ops, Inc",
            not_before=now - dt.timedelta(days=30),
            not_after=until or now + dt.timedelta(days=days),
        )
        return self.save(issued, name)

    def save(self, issued: trustme.LeafCert, name: str) -> str:
        """Writes a certificate and its key, for nobody else to read; replaces an earlier one."""
        path = self.folder / f"{self._name}-{name}.pem"
        other = path.with_suffix(".new")
        other.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        other.chmod(0o600)
        os.replace(other, path)
        return str(path)

    def trusting(self, certificate: str | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, and may have a certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def tls_config(authority: Authority, **settings: str) -> dict[str, object]:
    """The settings of a broker with one TLS listener."""
    return {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.listener(),
        "ssl.truststore.location": authority.file,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
