"""The name in a certificate as Java prints it, and the rules that make a principal of it."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import ConfigError, WireError
from fencepost.broker.security.principal_names import (
    distinguished_name,
    parse_rules,
    principal_name,
    valid_until,
)

KEY = ec.generate_private_key(ec.SECP256R1())

Parts = list[x509.NameAttribute[str] | list[x509.NameAttribute[str]]]


def certificate(parts: Parts, until: dt.datetime = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)) -> bytes:
    names = [x509.RelativeDistinguishedName(p if isinstance(p, list) else [p]) for p in parts]
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(until)
        .sign(KEY, hashes.SHA256())
    )
    return built.public_bytes(Encoding.DER)


def named(*parts: tuple[x509.ObjectIdentifier, str]) -> str:
    return distinguished_name(certificate([x509.NameAttribute(*part) for part in parts]))


# Each expected text is what X500Principal.getName() of Java 17 returns for these bytes.
def test_the_last_part_comes_first() -> None:
    found = named(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.STATE_OR_PROVINCE_NAME, "Hesse"),
        (NameOID.LOCALITY_NAME, "Fulda"),
        (NameOID.STREET_ADDRESS, "Mill Lane 1"),
        (NameOID.ORGANIZATION_NAME, "Ops"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "Data"),
        (NameOID.USER_ID, "u1"),
        (NameOID.COMMON_NAME, "alice"),
    )
    assert found == "CN=alice,UID=u1,OU=Data,O=Ops,STREET=Mill Lane 1,L=Fulda,ST=Hesse,C=DE"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ops, Inc", "Ops\\, Inc"),
        ('a=b+c"d\\e<f>g;h#i', 'a\\=b\\+c\\"d\\\\e\\<f\\>g\\;h\\#i'),
        ("  two  spaces ", "\\ \\ two  spaces\\ "),
        ("Müller 東京", "Müller 東京"),
        ("a\nb", "a\nb"),
    ],
)
def test_a_value_is_escaped_as_java_escapes_it(text: str, shown: str) -> None:
    assert named((NameOID.COMMON_NAME, text)) == f"CN={shown}"


def test_a_type_that_rfc_2253_does_not_name_is_a_number_with_the_bytes_of_its_value() -> None:
    found = named((NameOID.SERIAL_NUMBER, "42"), (NameOID.EMAIL_ADDRESS, "a@b"))
    assert found == "1.2.840.113549.1.9.1=#1603614062,2.5.4.5=#13023432"


def test_a_part_may_have_several_values() -> None:
    pair = [
        x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
        x509.NameAttribute(NameOID.USER_ID, "u1"),
    ]
    found = distinguished_name(certificate([x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"), pair]))
    assert found in ("CN=alice+UID=u1,C=DE", "UID=u1+CN=alice,C=DE")


def test_the_form_of_the_text_does_not_matter_for_a_known_type() -> None:
    parts: Parts = [
        x509.NameAttribute(NameOID.COMMON_NAME, "alice", _type)
        for _type in (_ASN1Type.PrintableString, _ASN1Type.UTF8String, _ASN1Type.IA5String)
    ]
    assert distinguished_name(certificate(parts)) == "CN=alice,CN=alice,CN=alice"


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_bytes_that_are_no_certificate_are_refused(noise: bytes, at: int, byte: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at % len(damaged)] = byte
    for given_bytes in (noise, bytes(damaged), WHOLE[:at]):
        # A damaged name may still be one. Nothing else may be raised.
        with contextlib.suppress(WireError):
            distinguished_name(given_bytes)
        with contextlib.suppress(WireError):
            valid_until(given_bytes)


# From 2050 on, a certificate has its dates in another form.
@pytest.mark.parametrize("year", [2026, 2049, 2050])
def test_the_end_of_a_certificate_is_read(year: int) -> None:
    end = dt.datetime(year, 12, 31, 23, 59, 58, tzinfo=dt.UTC)
    assert valid_until(certificate([], end)) == end


WHOLE = certificate([x509.NameAttribute(NameOID.COMMON_NAME, "alice")])


# -- rules


# The cases of Kafka's SslPrincipalMapperTest.
@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=Duke,OU=S,O=Org,C=US", "CN=Duke,OU=S,O=Org,C=US"),
        ("", "CN=Duke", "CN=Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=Duke,OU=ServiceUsers,O=Org", "Duke"),
        ("RULE:^CN=(.*?),OU=S(.*?),O=(.*?)$/$1@$2/L", "CN=Duke,OU=SME,O=Org", "duke@me"),
        ("RULE:^cn=(.*?)$/$1/U , DEFAULT", "cn=duke", "DUKE"),
        ("RULE:^CN=(.*?)$/$1/, RULE:^OU=(.*?)$/$1/", "OU=sales", "sales"),
        ("RULE:^CN=(.*?)$/$1/L", "OU=sales", None),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "O=x,CN=Kafka1,C=y", "kafka1"),
        ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Tkac\\, Adam,OU=ITZ", "Tkac\\, Adam"),
        # A group that does not exist is text; so is an escaped dollar.
        ("RULE:^CN=(.*?)$/$1.$5\\$1/", "CN=a", "a.$5$1"),
        # The longest number that is a group.
        ("RULE:^CN=(.*?)$/$12/", "CN=a", "a2"),
        # The pattern must match the whole name.
        ("RULE:CN=a/b/", "CN=ab", None),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, name: str, expected: str | None) -> None:
    assert principal_name(parse_rules("rules", rules), name) == expected


@pytest.mark.parametrize(
    "rules",
    ["nonsense", "RULE:a/b", "RULE:a/b/X", "RULE:(/x/", "RULE:a/b/L RULE:c/d/", "DEFAULT/L"],
)
def test_a_rule_that_cannot_be_read_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_rules("ssl.principal.mapping.rules", rules)
