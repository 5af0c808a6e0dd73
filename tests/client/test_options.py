"""Options under Kafka's names, and the secrets among them."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import ConfigError
from fencepost.client.blocking import connect
from fencepost.client.jaas import parse_jaas
from fencepost.client.options import KNOWN, Endpoint, parse_bootstrap, read_options

if TYPE_CHECKING:
    from pathlib import Path

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}


def test_options_may_be_strings_or_numbers() -> None:
    options = read_options(
        "a:1", {"request.timeout.ms": "1500", "retry.backoff.ms": 7, "client.id": "me"}
    )
    assert (options.request_timeout_ms, options.retry_backoff_ms, options.client_id) == (
        1500,
        7,
        "me",
    )
    assert options.security_protocol == "PLAINTEXT"


def test_broker_addresses_are_parsed() -> None:
    assert parse_bootstrap(" a:1 , [::1]:9092,PLAINTEXT://b.example:3") == (
        Endpoint("a", 1),
        Endpoint("::1", 9092),
        Endpoint("b.example", 3),
    )
    assert str(Endpoint("::1", 9092)) == "[::1]:9092"


@pytest.mark.parametrize(
    "text", ["", " , ", "a", "a:", ":1", "a:x", "a:0", "a:65536", "::1:9092", "a:１"]
)
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_bootstrap(text)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"request.timout.ms": 1}, "did you mean request.timeout.ms"),
        ({"sasl.pasword": "x"}, "did you mean sasl.password"),
        ({"frobnicate": 1}, "'frobnicate' is not an option of a Kafka client"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms must be a whole number"),
        ({"request.timeout.ms": 0}, "request.timeout.ms must be at least 1"),
        ({"max.in.flight.requests.per.connection": 6}, "must be at most 5"),
        ({"isolation.level": "read_some"}, "read_committed, read_uncommitted"),
        ({"compression.type": "rar"}, "compression.type must be one of none, gzip"),
        ({"security.protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is needed"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-512"),
        (SASL, "sasl.username is needed"),
        ({**SASL, "sasl.username": "u"}, "sasl.password is needed"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
            "no file /nowhere/ca.pem",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.location": "t.jks"}, "must be a PEM file"),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.location": "k",
                "ssl.keystore.type": "PKCS12",
            },
            "openssl pkcs12",
        ),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldap"}, "https"),
    ],
)
def test_a_wrong_option_is_named_with_a_correction(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options("a:1", options)
    assert complaint in str(caught.value)


def test_options_of_other_clients_are_accepted_and_listed_as_ignored() -> None:
    options = read_options(
        "a:1", {"linger.ms": 5, "key.serializer": "x", "acks": "all", "client.id": "c"}
    )
    assert options.ignored == ("acks", "key.serializer", "linger.ms")


def test_known_options_include_ours_and_those_of_other_clients() -> None:
    assert {"client.id", "sasl.jaas.config", "linger.ms"} <= KNOWN


def test_an_option_set_to_none_means_the_default() -> None:
    assert read_options("a:1", {"client.id": None}).client_id == "fencepost"


@pytest.mark.parametrize("module", [SCRAM, f"kafkashaded.{SCRAM}"])
def test_a_jaas_login_as_spark_users_write_it_is_parsed(module: str) -> None:
    jaas = f'\n  {module} required\n  username="alice"\n  password="s3cret";\n'
    options = read_options("a:1", {**SASL, "sasl.jaas.config": jaas})
    assert options.login is not None
    assert (options.login.username, options.login.password.reveal()) == ("alice", "s3cret")


def test_a_jaas_login_without_quotes_or_with_escapes_is_parsed() -> None:
    login = parse_jaas(
        f'{PLAIN} Required serviceName=kafka username=bob password="a\\"b\\\\c;=d" ;'
    )
    assert (login.family, login.username, login.password.reveal()) == ("PLAIN", "bob", 'a"b\\c;=d')


@given(st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs"])))
def test_any_quoted_password_is_parsed_unchanged(password: str) -> None:
    assert (
        parse_jaas(f'{SCRAM} required username="u" password="{password}";').password.reveal()
        == password
    )


@pytest.mark.parametrize(
    ("jaas", "complaint"),
    [
        ("", "must look like"),
        (f'{SCRAM} username="u" password="hush-hush";', "must look like"),
        (f'{SCRAM} required password="hush-hush";', "no username"),
        (f'{SCRAM} required username="u";', "no password"),
        (f'{SCRAM} required username="u" password="hush-hush"', "one semicolon"),
        (f'{SCRAM} required username="u" password="hush"hush";', "one semicolon"),
        ("com.example.Krb5LoginModule required;", "com.example.Krb5LoginModule"),
        (f'{PLAIN} required username="u" password="hush-hush";', "is for PLAIN"),
    ],
)
def test_a_malformed_jaas_login_is_explained_without_its_password(
    jaas: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_options("a:1", {**SASL, "sasl.jaas.config": jaas})
    assert "hush" not in str(caught.value)


def test_secrets_are_not_printed_or_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = read_options(
        "a:1",
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "tell-nobody",
            "ssl.key.password": "tell-nobody",
            "ssl.keystore.certificate.chain": "chain",
            "ssl.keystore.key": "tell-nobody",
        },
    )
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("options: %s", options)
    cluster = connect("a:1", {**SASL, "sasl.username": "alice", "sasl.password": "tell-nobody"})
    assert options.login is not None
    shown = [
        repr(options),
        str(options),
        f"{options.login}",
        repr(cluster),
        repr(vars(cluster)),
        caplog.text,
    ]
    assert all("tell-nobody" not in text for text in shown)
    assert all("alice" in text for text in shown[:3])


def test_options_and_their_secrets_survive_pickling() -> None:
    options = read_options("a:1", {**SASL, "sasl.username": "u", "sasl.password": "p"})
    arrived = pickle.loads(pickle.dumps(options))
    assert arrived == options
    assert arrived.login.password.reveal() == "p"


def test_a_pem_file_is_accepted_under_java_and_librdkafka_names(tmp_path: Path) -> None:
    pem = tmp_path / "store.pem"
    pem.write_text("")
    for name in ("ssl.ca.location", "ssl.truststore.location"):
        options = read_options("a:1", {"security.protocol": "SSL", name: str(pem)})
        assert options.tls is not None
        assert options.tls.ca_path == str(pem)
        assert options.security_protocol == "SSL"


@pytest.mark.parametrize(
    "login",
    [
        {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"},
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "a", "sasl.password": "b"},
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.command": "cat token",
            "sasl.oauthbearer.extensions": "logicalCluster=a",
        },
    ],
)
def test_options_with_a_login_are_a_key_under_which_a_client_is_found_again(
    login: dict[str, str],
) -> None:
    """A Python worker of Spark keeps its clients by their options."""
    first, again = (read_options("a:1", {**SASL, **login}) for _ in range(2))
    assert {first: "client"}[again] == "client"
    assert pickle.loads(pickle.dumps(first)) == again
    assert read_options("a:1", {**SASL, **login, "client.id": "b"}) != first
