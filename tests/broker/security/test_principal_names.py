"""The name in a certificate as Java prints it."""

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

from fencepost.base.failures import WireError
from fencepost.broker.security.principal_names import (
    ENCODINGS,
    distinguished_name,
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


def with_text(tag: int, content: bytes) -> bytes:
    """The certificate of Alice with another common name, which no library would write."""
    old = bytes((0x0C, 5)) + b"alice"
    assert WHOLE.count(old) == 1
    assert len(content) == 5
    return WHOLE.replace(old, bytes((tag, 5)) + content)


@pytest.mark.parametrize(
    ("tag", "content", "kind"),
    [
        (0x0C, b"ali\xffe", "UTF8String"),
        (0x0C, b"ali\xc0\x80", "UTF8String"),
        (0x0C, b"a\xed\xa0\x80b", "UTF8String"),
        (0x13, b"ali\xc3\xa9", "PrintableString"),
        (0x16, b"ali\xe9e", "IA5String"),
        (0x1B, b"ali\xe9e", "GeneralString"),
        (0x1E, b"\0a\0li", "BMPString"),
    ],
)
def test_a_name_with_bytes_that_its_text_cannot_hold_is_refused(
    tag: int, content: bytes, kind: str
) -> None:
    """Java reads all of them as UTF-8, and many become one name."""
    with pytest.raises(WireError, match=f"CN has bytes that a {kind} cannot hold"):
        distinguished_name(with_text(tag, content))


def test_other_alphabets_are_decoded() -> None:
    assert distinguished_name(with_text(0x14, b"Ren\xe9e")) == "CN=Renée"
    pair = (NameOID.COMMON_NAME, "東京 λ")
    found = distinguished_name(certificate([x509.NameAttribute(*pair, _ASN1Type.BMPString)]))
    assert found == "CN=東京 λ"


@given(*[st.sampled_from(sorted(ENCODINGS)), st.binary(min_size=5, max_size=5)] * 2)
def test_two_names_are_one_only_if_they_have_the_same_letters(
    tag: int, content: bytes, other_tag: int, other: bytes
) -> None:
    texts = []
    for kind, value in ((tag, content), (other_tag, other)):
        with contextlib.suppress(WireError):
            texts.append((distinguished_name(with_text(kind, value)), (kind, value)))
    if len(texts) == 2 and texts[0][0] == texts[1][0]:
        letters = [value.decode(ENCODINGS[kind][1]) for _, (kind, value) in texts]
        assert letters[0] == letters[1]


def test_a_subject_without_a_name_is_refused() -> None:
    with pytest.raises(WireError, match="its subject is empty"):
        distinguished_name(certificate([]))


def test_a_name_that_is_too_long_is_refused() -> None:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, "x" * 60) for _ in range(64)]
    assert len(distinguished_name(certificate([*parts]))) == 64 * 64 - 1
    with pytest.raises(WireError, match="its name has more than 4096 letters"):
        distinguished_name(certificate([*parts, *parts[:1]]))


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
