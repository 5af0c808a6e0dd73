"""The client's options, under Kafka's names.

`read_options` accepts what users of any Kafka client write: a mapping of dotted names to strings or
numbers. It supports the names of the Java client, and librdkafka's names for PEM files. Options of
Kafka clients that have no effect here (key.serializer, linger.ms) are accepted and listed in
`ignored`. Unknown names are refused with the nearest known one: dropping a mistyped security option
in silence would be worse than an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.options import INT32_MAX, must_be, parse_whole, suggest
from fencepost.client.jaas import MSK_IAM, parse_jaas
from fencepost.client.secret import Secret
from fencepost.client.tokens import TokenSource, read_token_source

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER: Final = "OAUTHBEARER"
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)


_NO_PASSWORD: Final = Secret("")


class Endpoint(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Trusted certificates and our own certificate and key, as PEM paths or PEM text."""

    ca_path: str | None = None
    ca_text: str | None = None
    certificate_path: str | None = None
    certificate_text: str | None = None
    key_path: str | None = None
    key_text: Secret | None = None
    key_password: Secret | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """SASL mechanism and credentials."""

    mechanism: str
    username: str = ""
    password: Secret = _NO_PASSWORD
    """Of OAUTHBEARER, the token of one connection."""
    tokens: TokenSource | None = None
    """Where OAUTHBEARER gets a token for each connection."""
    # Options are keys of a dict in Spark's workers (spark/connection.py), and a dict has no hash.
    extensions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Beside the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """All options of a client.

    Defaults are those of Kafka's Java client unless a comment says why not.
    """

    bootstrap: tuple[Endpoint, ...]
    client_id: str = "fencepost"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    connection_setup_timeout_ms: int = 10_000
    max_in_flight: int = 5
    max_request_bytes: int = 1_048_576
    buffer_bytes: int = 33_554_432
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    max_partition_fetch_bytes: int = 1_048_576
    # Every consumer of transactions wants read_committed; Kafka's default predates transactions.
    isolation_level: str = "read_committed"
    compression_type: str = "none"
    tls: Tls | None = None
    login: Login | None = None
    ignored: tuple[str, ...] = field(default=(), compare=False)

    @property
    def security_protocol(self) -> str:
        """Kafka's name for this combination of TLS and SASL."""
        return SECURITY_PROTOCOLS[(self.tls is not None) + 2 * (self.login is not None)]


class User(Enum):
    """What an option affects."""

    READERS = "reading"
    WRITERS = "writing"
    ALL = "all requests"


class _Setting(NamedTuple):
    field: str
    read: Callable[[str, Any], Any]
    user: User
    meaning: str


class OptionView(NamedTuple):
    """One option, for documentation."""

    name: str
    default: str
    user: User
    meaning: str


def list_options() -> list[OptionView]:
    """Every option that has an effect, by name."""
    defaults = {one.name: one.default for one in fields(ClientOptions)}
    views = [
        OptionView(name, str(defaults[setting.field]), setting.user, setting.meaning)
        for name, setting in _SETTINGS.items()
    ]
    views += [OptionView(name, *rest) for name, rest in _SECURITY.items()]
    return sorted(views)


def read_options(bootstrap_servers: str, options: Mapping[str, Any] | None = None) -> ClientOptions:
    """Parses options by Kafka's names; ConfigError names the option and the accepted values.

    A `bootstrap.servers` among the options is ignored in favour of the argument.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    _refuse_unknown(given)
    values: dict[str, Any] = {}
    for name, setting in _SETTINGS.items():
        if name in given:
            values[setting.field] = setting.read(name, given[name])
    protocol = _choice(*SECURITY_PROTOCOLS)(
        "security.protocol", given.get("security.protocol", "PLAINTEXT")
    )
    return ClientOptions(
        bootstrap=parse_bootstrap(bootstrap_servers),
        tls=_read_tls(given) if protocol.endswith("SSL") else None,
        login=_read_login(given) if protocol.startswith("SASL") else None,
        ignored=tuple(sorted(given.keys() & UNUSED)),
        **values,
    )


def parse_bootstrap(text: str) -> tuple[Endpoint, ...]:
    """Parses `host:port,host:port`. IPv6 addresses are in brackets."""
    endpoints = tuple(_parse_endpoint(part.strip()) for part in text.split(",") if part.strip())
    if not endpoints:
        raise ConfigError("bootstrap.servers is empty: name at least one broker as host:port")
    return endpoints


def _parse_endpoint(text: str) -> Endpoint:
    # Kafka allows SECURITY_PROTOCOL://host:port in listeners, and people paste it.
    _, _, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    if (
        not colon
        or not host
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65536
    ):
        raise ConfigError(f"bootstrap.servers has {text!r}, which is not host:port")
    if host.startswith("[") and host.endswith("]"):
        return Endpoint(host[1:-1], int(port))
    if ":" in host:
        raise ConfigError(
            f"bootstrap.servers has {text!r}: put the IPv6 address in brackets, [{host}]:{port}"
        )
    return Endpoint(host, int(port))


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    for name in given:
        if name in KNOWN or name.startswith(OTHER_LOGINS):
            continue
        raise ConfigError(f"{name!r} is not an option of a Kafka client{suggest(name, KNOWN)}")


def _number(least: int, most: int = INT32_MAX) -> Callable[[str, Any], int]:
    return lambda name, value: parse_whole(name, value, least=least, most=most)


def _choice(*allowed: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        for word in allowed:
            if str(value).strip().lower() == word.lower():
                return word
        raise must_be(name, f"one of {', '.join(allowed)}", value)

    return read


def _text(name: str, value: Any) -> str:
    return str(value)


_SETTINGS: Final[Mapping[str, _Setting]] = {
    "client.id": _Setting(
        "client_id", _text, User.ALL, "the name of this client in the brokers' logs"
    ),
    "request.timeout.ms": _Setting(
        "request_timeout_ms", _number(1), User.ALL, "how long one request may take"
    ),
    "default.api.timeout.ms": _Setting(
        "default_api_timeout_ms", _number(1), User.ALL, "how long a call may take, with its retries"
    ),
    "delivery.timeout.ms": _Setting(
        "delivery_timeout_ms",
        _number(1),
        User.WRITERS,
        "how long a batch may wait for its acknowledgement, with retries",
    ),
    "retry.backoff.ms": _Setting(
        "retry_backoff_ms", _number(0), User.ALL, "the pause before the first retry"
    ),
    "retry.backoff.max.ms": _Setting(
        "retry_backoff_max_ms",
        _number(0),
        User.ALL,
        "the longest pause: it doubles from retry to retry",
    ),
    "metadata.max.age.ms": _Setting(
        "metadata_max_age_ms",
        _number(0),
        User.ALL,
        "how long a known leader is used without a lookup",
    ),
    "socket.connection.setup.timeout.ms": _Setting(
        "connection_setup_timeout_ms", _number(1), User.ALL, "how long a connection may take"
    ),
    # The broker detects duplicates among a producer's last five batches only.
    "max.in.flight.requests.per.connection": _Setting(
        "max_in_flight", _number(1, 5), User.WRITERS, "unanswered requests per broker, 1 to 5"
    ),
    "max.request.size": _Setting(
        "max_request_bytes",
        _number(1, 100 * 1024 * 1024),
        User.WRITERS,
        "the bytes of one request; larger records are refused",
    ),
    "buffer.memory": _Setting(
        "buffer_bytes",
        _number(1, 2**40),
        User.WRITERS,
        "bytes that may wait for their acknowledgement before a writer waits",
    ),
    "fetch.max.bytes": _Setting(
        "fetch_max_bytes", _number(1), User.READERS, "the bytes of one answer to a Fetch request"
    ),
    "fetch.max.wait.ms": _Setting(
        "fetch_max_wait_ms", _number(0), User.READERS, "how long a broker waits for new records"
    ),
    "fetch.min.bytes": _Setting(
        "fetch_min_bytes", _number(0), User.READERS, "how many bytes it waits for"
    ),
    "max.partition.fetch.bytes": _Setting(
        "max_partition_fetch_bytes",
        _number(1),
        User.READERS,
        "the bytes of one partition in one answer",
    ),
    "isolation.level": _Setting(
        "isolation_level",
        _choice("read_committed", "read_uncommitted"),
        User.READERS,
        "`read_uncommitted` also returns records of open and aborted transactions",
    ),
    "compression.type": _Setting(
        "compression_type",
        _choice("none", "gzip", "snappy", "lz4", "zstd"),
        User.WRITERS,
        "`none`, `gzip`, `snappy`, `lz4` or `zstd`",
    ),
}

_SECURITY: Final[Mapping[str, tuple[str, User, str]]] = {
    name: (default, User.ALL, meaning)
    for name, default, meaning in (
        ("security.protocol", "PLAINTEXT", "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`"),
        ("ssl.ca.location", "", "a PEM file of trusted certificates; the system's without one"),
        ("ssl.certificate.location", "", "a PEM file with this client's certificate"),
        (
            "ssl.endpoint.identification.algorithm",
            "https",
            "`https` checks the brokers' host names; empty or `none` does not",
        ),
        ("ssl.key.location", "", "a PEM file with this client's private key"),
        ("ssl.key.password", "", "the password of the private key"),
        ("ssl.keystore.certificate.chain", "", "this client's certificate, as PEM text"),
        ("ssl.keystore.key", "", "this client's private key, as PEM text"),
        ("ssl.keystore.location", "", "a PEM file with this client's certificate and key"),
        ("ssl.keystore.type", "PEM", "must be `PEM`"),
        ("ssl.truststore.certificates", "", "trusted certificates, as PEM text"),
        ("ssl.truststore.location", "", "as `ssl.ca.location`"),
        ("ssl.truststore.type", "PEM", "must be `PEM`"),
        ("sasl.jaas.config", "", "user and password, as Kafka's Java clients have them"),
        (
            "sasl.mechanism",
            "",
            "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`; required with SASL",
        ),
        ("sasl.mechanisms", "", "librdkafka's name of `sasl.mechanism`"),
        (
            "oauth_cb",
            "",
            "a function that returns a token for `OAUTHBEARER`, as in confluent-kafka",
        ),
        (
            "sasl.oauthbearer.token.command",
            "",
            "a command that prints a token for `OAUTHBEARER`; not in Kafka",
        ),
        ("sasl.oauthbearer.config", "", "the argument of `oauth_cb`"),
        (
            "sasl.oauthbearer.token.endpoint.url",
            "",
            "an identity provider that gives tokens to a client id and secret",
        ),
        (
            "sasl.oauthbearer.client.credentials.client.id",
            "",
            "the client there; librdkafka's `sasl.oauthbearer.client.id`, JAAS's `clientId`",
        ),
        (
            "sasl.oauthbearer.client.credentials.client.secret",
            "",
            "its secret; `sasl.oauthbearer.client.secret`, `clientSecret`",
        ),
        ("sasl.oauthbearer.scope", "", "the scope, if the provider wants one"),
        ("sasl.oauthbearer.extensions", "", "sent beside the token: `NAME=VALUE,NAME=VALUE`"),
        ("sasl.password", "", "the password, if there is no `sasl.jaas.config`"),
        ("sasl.username", "", "the user, if there is no `sasl.jaas.config`"),
    )
}

UNUSED: Final = frozenset(
    {
        "acks", "allow.auto.create.topics", "auto.commit.interval.ms",
        "auto.include.jmx.reporter", "auto.offset.reset", "batch.size",
        "bootstrap.controllers", "bootstrap.servers", "check.crcs", "client.dns.lookup",
        "client.rack", "compression.gzip.level", "compression.lz4.level",
        "compression.zstd.level", "connections.max.idle.ms", "enable.auto.commit",
        "enable.idempotence", "enable.metrics.push", "exclude.internal.topics", "group.id",
        "group.instance.id", "group.protocol", "group.remote.assignor",
        "heartbeat.interval.ms", "interceptor.classes", "key.deserializer",
        "key.serializer", "linger.ms", "max.block.ms", "max.poll.interval.ms",
        "max.poll.records", "message.timeout.ms", "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
        "metric.reporters", "metrics.num.samples", "metrics.recording.level",
        "metrics.sample.window.ms", "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
        "partitioner.class", "receive.buffer.bytes", "reconnect.backoff.max.ms",
        "reconnect.backoff.ms", "retries", "sasl.client.callback.handler.class",
        "security.providers", "send.buffer.bytes", "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms", "ssl.cipher.suites",
        "ssl.enabled.protocols", "ssl.engine.factory.class", "ssl.keymanager.algorithm",
        "ssl.keystore.password", "ssl.protocol", "ssl.provider",
        "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
        "ssl.truststore.password", "transaction.timeout.ms", "transactional.id",
        "value.deserializer", "value.serializer",
    }
)  # fmt: skip
"""Options of Kafka clients that have no effect here: this client does not do it, or its caller
does."""

OTHER_LOGINS: Final = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")
"""Prefixes of options for SASL mechanisms that we do not support. They pass, because
`sasl.mechanism` is refused."""

KNOWN: Final = frozenset(_SETTINGS) | _SECURITY.keys() | UNUSED


def _read_tls(given: Mapping[str, Any]) -> Tls:
    for store in ("ssl.truststore", "ssl.keystore"):
        _require_pem(store, given)
    algorithm = str(given.get("ssl.endpoint.identification.algorithm", "https")).strip().lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigError(
            "ssl.endpoint.identification.algorithm must be https, or empty to skip host name checks"
        )
    keystore = _path("ssl.keystore.location", given)
    key_text = given.get("ssl.keystore.key")
    key_password = given.get("ssl.key.password")
    return Tls(
        ca_path=_path("ssl.ca.location", given) or _path("ssl.truststore.location", given),
        ca_text=given.get("ssl.truststore.certificates"),
        certificate_path=_path("ssl.certificate.location", given) or keystore,
        certificate_text=given.get("ssl.keystore.certificate.chain"),
        key_path=_path("ssl.key.location", given) or keystore,
        key_text=None if key_text is None else Secret(str(key_text)),
        key_password=None if key_password is None else Secret(str(key_password)),
        check_hostname=algorithm == "https",
    )


def _require_pem(store: str, given: Mapping[str, Any]) -> None:
    """Refuses Java key stores, and says how to convert one to PEM."""
    location = str(given.get(f"{store}.location", ""))
    kind = str(given.get(f"{store}.type", "")).upper()
    suffix = os.path.splitext(location)[1].lower()
    if kind in ("", "PEM") and suffix not in (".jks", ".p12", ".pfx"):
        return
    raise ConfigError(
        f"{store}.location must be a PEM file ({store}.type=PEM): export it with "
        "`keytool -exportcert -rfc` or `openssl pkcs12 -in store.p12 -out store.pem`"
    )


def _path(name: str, given: Mapping[str, Any]) -> str | None:
    value = given.get(name)
    if value is None or not str(value).strip():
        return None
    path = str(value).strip()
    # librdkafka's name for the operating system's certificates.
    if name == "ssl.ca.location" and path == "probe":
        return None
    if not os.path.exists(path):
        raise ConfigError(f"{name}: there is no file {path}")
    return path


def _read_login(given: Mapping[str, Any]) -> Login:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms"))
    if mechanism is None:
        raise ConfigError(
            f"sasl.mechanism is needed with SASL: one of {', '.join(SASL_MECHANISMS)}"
        )
    if str(mechanism).upper() == "AWS_MSK_IAM":
        raise ConfigError(MSK_IAM)
    chosen = _choice(*SASL_MECHANISMS)("sasl.mechanism", mechanism)
    if chosen == OAUTHBEARER:
        return Login(mechanism=chosen, tokens=read_token_source(given))
    if "sasl.jaas.config" in given:
        jaas = parse_jaas(str(given["sasl.jaas.config"]))
        if not chosen.startswith(jaas.family):
            raise ConfigError(
                f"sasl.mechanism is {chosen}, but the login module of sasl.jaas.config is for "
                f"{jaas.family}"
            )
        return Login(mechanism=chosen, username=jaas.username, password=jaas.password)
    for name in ("sasl.username", "sasl.password"):
        if name not in given:
            raise ConfigError(f"{name} is needed with {chosen} (or sasl.jaas.config)")
    return Login(
        mechanism=chosen,
        username=str(given["sasl.username"]),
        password=Secret(str(given["sasl.password"])),
    )
