"""Certificates: the TLS context of a listener, and its reload.

Theory of operation
-------------------
A listener has a current `ssl.SSLContext`, and every connection takes the one that is current when
it is accepted. So new certificates need no restart: at most once a second a new connection makes
the broker look at the files. If one has changed, a new context is built from all of them. If that
succeeds it becomes the current one, with all that belongs to it: certificate, authorities and
`ssl.client.auth`. If it fails, as with a certificate whose key has not been written yet, the
current one stays, the log has one line, and the next change is tried again. Connections that are
open keep what they have. A context is never changed, and never exchanged within a handshake: an
exchange in `sni_callback` leaves the verification of clients as it was.

An expired certificate is taken with a warning: it may be replaced without a restart, and a broker
that did not start would serve its other listeners no better.

Only PEM is read, from files or from the settings themselves. A private key that everybody on the
machine can read is refused; one that its group can read is not, because that is how secrets are
mounted for a service.

No session is resumed where clients are asked for certificates: a resumed one would keep the
certificate of a client that is no longer trusted. There are no session tickets of TLS 1.3 at all;
for TLS 1.2 see `broker/network/tls_filter.py`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import ssl
import stat
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import ConfigError, WireError
from fencepost.broker.security.mapping_rules import Rule, parse_rules, principal_name
from fencepost.broker.security.principal_names import distinguished_name, valid_until

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig

log = logging.getLogger(__name__)

RELOAD_SECONDS: Final = 1.0
"""How often the files are looked at, while clients connect."""

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

TLS_1_3_SUITES: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
TLS_1_2_SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""The suites of TLS 1.2 that are worth having, and their names in OpenSSL."""

BEGIN: Final = b"-----BEGIN"
BEGIN_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
END_CERTIFICATE: Final = b"-----END CERTIFICATE-----"
JAVA_STORE: Final = b"\xfe\xed\xfe\xed"


class Pem(NamedTuple):
    """A PEM file, or what would be in it."""

    setting: str
    path: str | None
    text: str


class TlsSettings(NamedTuple):
    """What the context of a listener is made of."""

    listener: str
    keystore: Pem
    key_password: str | None
    truststore: Pem | None
    versions: tuple[ssl.TLSVersion, ...]
    ciphers: str | None
    """In OpenSSL's words; None for its default."""
    client_auth: ssl.VerifyMode
    rules: tuple[Rule, ...]


def read_tls_settings(config: BrokerConfig, listener: str) -> TlsSettings:
    """The TLS settings of a listener; ConfigError for those that do not fit together."""

    def of(setting: str) -> str | None:
        found: str | None = config.of_listener(listener, setting)
        return found or None

    chain, key = of("ssl.keystore.certificate.chain"), of("ssl.keystore.key")
    keystore = _pem(listener, "ssl.keystore.location", of("ssl.keystore.location"))
    if chain or key:
        if keystore or not (chain and key):
            raise ConfigError(
                f"listener {listener} needs either ssl.keystore.location, or both "
                "ssl.keystore.certificate.chain and ssl.keystore.key"
            )
        keystore = Pem("ssl.keystore.certificate.chain", None, f"{key}\n{chain}")
    if keystore is None:
        raise ConfigError(
            f"listener {listener} uses TLS and has no certificate: set ssl.keystore.location to a "
            "PEM file with a private key and its certificate chain"
        )
    truststore = _pem(listener, "ssl.truststore.location", of("ssl.truststore.location"))
    if certificates := of("ssl.truststore.certificates"):
        if truststore:
            raise ConfigError(
                f"listener {listener} has both ssl.truststore.location and "
                "ssl.truststore.certificates; it needs one of them"
            )
        truststore = Pem("ssl.truststore.certificates", None, certificates)
    client_auth = CLIENT_AUTH[config.client_auth(listener)]
    if client_auth is not ssl.CERT_NONE and truststore is None:
        raise ConfigError(
            f"listener {listener} asks clients for certificates (ssl.client.auth) and trusts no "
            "authority: set ssl.truststore.location to a PEM file with the authorities"
        )
    versions = config.of_listener(listener, "ssl.enabled.protocols")
    ciphers, versions = _ciphers(config.of_listener(listener, "ssl.cipher.suites"), versions)
    return TlsSettings(
        listener=listener,
        keystore=keystore,
        key_password=of("ssl.key.password"),
        truststore=truststore,
        versions=tuple(VERSIONS[each] for each in versions),
        ciphers=ciphers,
        client_auth=client_auth,
        rules=parse_rules(
            "ssl.principal.mapping.rules",
            config.of_listener(listener, "ssl.principal.mapping.rules"),
        ),
    )


def _pem(listener: str, setting: str, path: str | None) -> Pem | None:
    return None if path is None else Pem(f"{setting} of listener {listener}", path, "")


def _ciphers(
    suites: tuple[str, ...], versions: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """OpenSSL's name of the suites, and the versions of TLS that have one of them."""
    if not versions:
        raise ConfigError("ssl.enabled.protocols is empty; choose from TLSv1.2, TLSv1.3")
    if not suites:
        return None, versions
    newer, older = _by_version(suites, versions)
    having = {"TLSv1.3": bool(newer), "TLSv1.2": bool(older)}
    left = tuple(version for version in versions if having[version])
    if not left:
        raise ConfigError(
            f"ssl.cipher.suites has no suite of {', '.join(versions)} (ssl.enabled.protocols)"
        )
    return ":".join(TLS_1_2_SUITES[name] for name in older) or None, left


def _by_version(
    suites: tuple[str, ...], versions: tuple[str, ...]
) -> tuple[frozenset[str], list[str]]:
    """The suites of TLS 1.3, and those of TLS 1.2; ConfigError for what cannot be chosen."""
    unknown = [name for name in suites if name not in TLS_1_2_SUITES.keys() | TLS_1_3_SUITES]
    if unknown:
        raise ConfigError(
            f"ssl.cipher.suites has {', '.join(unknown)}; choose from "
            f"{', '.join((*sorted(TLS_1_3_SUITES), *TLS_1_2_SUITES))}"
        )
    newer, older = TLS_1_3_SUITES & set(suites), [each for each in suites if each in TLS_1_2_SUITES]
    if newer and newer != TLS_1_3_SUITES and "TLSv1.3" in versions:
        raise ConfigError(
            "ssl.cipher.suites has some suites of TLS 1.3, among which Python cannot choose: name "
            f"all of them ({', '.join(sorted(TLS_1_3_SUITES))}) or none"
        )
    return newer, older


# -- contexts
# -----------------------------------------------------------------------------------------------


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """A context for the connections of a listener; ConfigError if it cannot be made."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = min(settings.versions)
    context.maximum_version = max(settings.versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    if settings.ciphers is not None:
        context.set_ciphers(settings.ciphers)
    _load_keystore(context, settings)
    if settings.truststore is not None:
        _load_truststore(context, settings.truststore)
    context.verify_mode = settings.client_auth
    return context


def _load_keystore(context: ssl.SSLContext, settings: TlsSettings) -> None:
    source = settings.keystore
    # Without a password OpenSSL would ask for one at the terminal.
    password = settings.key_password or ""
    is_encrypted = False
    with _file_of(source) as path:
        try:
            _refuse_open_key(source, path)
            content = _read_pem(source, path)
            is_encrypted = b"ENCRYPTED" in content
            context.load_cert_chain(path, password=password)
            _warn_if_expired(source, content)
        except ssl.SSLError as problem:
            why = _why(problem, "it must have a private key and its certificate chain, both as PEM")
            if is_encrypted and problem.reason != "KEY_VALUES_MISMATCH":
                why = "the private key is encrypted, and ssl.key.password is not its password"
            raise ConfigError(f"{source.setting} cannot be used: {why}") from problem
        except OSError as problem:
            raise _unreadable(source, problem) from problem


def _warn_if_expired(source: Pem, content: bytes) -> None:
    """The first certificate is the listener's own."""
    begin = content.find(BEGIN_CERTIFICATE)
    end = content.find(END_CERTIFICATE, begin)
    if begin < 0 or end < 0:
        return
    text = content[begin : end + len(END_CERTIFICATE)].decode("ascii", errors="replace")
    with contextlib.suppress(WireError, ValueError):  # OpenSSL has read it: that is enough.
        until = valid_until(ssl.PEM_cert_to_DER_cert(text))
        if until < dt.datetime.now(dt.UTC):
            log.warning(
                "%s: the certificate has expired on %s, and clients refuse it: replace it",
                source.setting,
                f"{until:%Y-%m-%d %H:%M} UTC",
            )


def _load_truststore(context: ssl.SSLContext, source: Pem) -> None:
    try:
        if source.path is not None:
            _read_pem(source, source.path)
        # Python takes ASCII alone; a comment between the certificates may have more.
        text = source.text.encode("ascii", "replace").decode("ascii")
        context.load_verify_locations(cafile=source.path, cadata=text or None)
    except ssl.SSLError as problem:
        why = _why(problem, "it must have certificates of authorities, as PEM")
        raise ConfigError(f"{source.setting} cannot be used: {why}") from problem
    except OSError as problem:
        raise _unreadable(source, problem) from problem


def _unreadable(source: Pem, problem: OSError) -> ConfigError:
    return ConfigError(f"{source.setting} cannot be read: {source.path}: {problem.strerror}")


def _why(problem: ssl.SSLError, wanted: str) -> str:
    """What is wrong with a file, in words; `wanted` if OpenSSL found nothing that it can read."""
    match problem.reason:
        case "KEY_VALUES_MISMATCH":
            return "the private key does not belong to the certificate"
        case "NO_CERTIFICATE_OR_CRL_FOUND":
            return "it has no certificate"
        case "EE_KEY_TOO_SMALL" | "CA_KEY_TOO_SMALL":
            return "its key is too short"
        case "CA_MD_TOO_WEAK":
            return "its signature uses a hash that is no longer safe"
    if problem.reason in (None, "PEM_LIB", "NO_START_LINE"):
        return wanted
    return problem.reason.lower().replace("_", " ")


@contextlib.contextmanager
def _file_of(source: Pem) -> Iterator[str]:
    """The path of a PEM file; of a text, that of a private file which is gone at the end."""
    if source.path is not None:
        yield source.path
        return
    descriptor, path = tempfile.mkstemp(prefix="fencepost-", suffix=".pem")  # Its mode is 0600.
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(source.text)
        yield path
    finally:
        os.unlink(path)


def _refuse_open_key(source: Pem, path: str) -> None:
    if os.name == "posix" and os.stat(path).st_mode & stat.S_IROTH:
        raise ConfigError(
            f"{source.setting} is {path}, a private key that every user of this machine can read. "
            f"Close it: chmod o= {path}"
        )


def _read_pem(source: Pem, path: str) -> bytes:
    """The content of a PEM file; ConfigError for another form."""
    with open(path, "rb") as file:
        start = file.read(1024 * 1024)
    if BEGIN in start:
        return start
    form = "a Java keystore (JKS)" if start[:4] == JAVA_STORE else "no PEM file"
    if start[:1] == b"\x30":
        form = "a PKCS12 keystore, or another binary form"
    raise ConfigError(
        f"{source.setting} is {path}, {form}; only PEM is read. Convert it: keytool "
        "-importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12 (JKS only),"
        " then openssl pkcs12 -in FILE.p12 -nodes -out FILE.pem"
    )


class Certificates:
    """The certificates of one listener: the context that new connections take."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings: Final = settings
        self._paths: Final = [
            source.path
            for source in (settings.keystore, settings.truststore)
            if source is not None and source.path is not None
        ]
        self._stamps = self._look()
        self._context = make_context(settings)
        self._looked_at = 0.0

    def current(self, now: float) -> ssl.SSLContext:
        """The context for a connection that is accepted now; the files may have changed."""
        if self._paths and now - self._looked_at >= RELOAD_SECONDS:
            self._looked_at = now
            self._reload()
        return self._context

    @property
    def asks_clients(self) -> bool:
        """Whether clients are asked for certificates."""
        return self.settings.client_auth is not ssl.CERT_NONE

    def for_one_connection(self) -> ssl.SSLContext:
        """A context that knows no sessions; ConfigError if the files cannot be used just now."""
        return make_context(self.settings)

    def _reload(self) -> None:
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = make_context(self.settings)
        except ConfigError as problem:
            log.warning("listener %s keeps its certificates: %s", self.settings.listener, problem)
        else:
            log.info("listener %s has new certificates", self.settings.listener)

    def _look(self) -> list[tuple[int, ...] | None]:
        """What changes when a file does; None for a file that is not there."""
        return [_stamp(path) for path in self._paths]

    def principal(self, certificate: bytes | None) -> str | None:
        """The principal of a client with this certificate (DER); None if no rule fits."""
        if certificate is None:
            return "User:ANONYMOUS"
        name = principal_name(self.settings.rules, distinguished_name(certificate))
        return None if name is None else f"User:{name}"


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
