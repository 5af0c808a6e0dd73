"""The name in a client certificate.

`distinguished_name` reads the subject of a certificate as Java prints it (X500Principal.getName():
RFC 2253, the last part first), because rules and ACLs are written for that text. Only the nine
types of RFC 2253 have short names there; any other is its number and the bytes of its value in
hexadecimal: `1.2.840.113549.1.9.1=#160f...` for an e-mail address. Those bytes are not in what
`getpeercert()` returns, so the subject is read from the certificate itself. A handshake has
verified it before, and every length is checked here all the same.

Two names are one text only if they have the same letters, in whatever encoding. Java reads the
bytes of every text as UTF-8 and prints U+FFFD for those that are not, so two names that differ
there are one principal. Here a certificate is refused if it has bytes that the type of its text
cannot hold. BMPString is decoded as UTF-16, and T61String as Latin-1, which is what authorities put
into it.

`valid_until` reads when a certificate expires.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final, NamedTuple

from fencepost.base.failures import WireError
from fencepost.base.limits import MAX_CERTIFICATE_NAME_LENGTH

SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The types of RFC 2253, by number."""

OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
SET: Final = 0x31
UTC_TIME: Final = 0x17
VERSION: Final = 0xA0
ENCODINGS: Final = {
    0x0C: ("UTF8String", "utf-8"),
    0x13: ("PrintableString", "ascii"),
    0x14: ("T61String", "latin-1"),
    0x16: ("IA5String", "ascii"),
    0x1B: ("GeneralString", "ascii"),
    0x1E: ("BMPString", "utf-16-be"),
}
"""The types of text, by tag. The value of another type is shown as its bytes."""

ESCAPED: Final = ',=+<>#;"\\'
SPACES: Final = " \r"


# -- the name in a certificate
# ------------------------------------------------------------------------------------


class _Value(NamedTuple):
    """One value of a certificate: its tag, its bytes, and all of it as it is encoded."""

    tag: int
    content: bytes
    encoded: bytes


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate (DER) in the form of RFC 2253, as Java prints it."""
    try:
        return _subject(certificate)
    except (StopIteration, ValueError) as problem:
        raise WireError("it has another form than a certificate") from problem


def valid_until(certificate: bytes) -> dt.datetime:
    """When a certificate (DER) expires."""
    try:
        _, end = _values(_fields(certificate)[3].content)
        form = "%y%m%d%H%M%SZ" if end.tag == UTC_TIME else "%Y%m%d%H%M%SZ"
        return dt.datetime.strptime(end.content.decode("ascii"), form).replace(tzinfo=dt.UTC)
    except (StopIteration, ValueError, IndexError) as problem:
        raise WireError("it has another form than a certificate") from problem


def _fields(certificate: bytes) -> list[_Value]:
    """serialNumber, signature, issuer, validity, subject, and what follows."""
    whole = next(iter(_values(certificate)))
    fields = list(_values(next(iter(_values(whole.content))).content))
    return fields[1:] if fields and fields[0].tag == VERSION else fields


def _subject(certificate: bytes) -> str:
    fields = _fields(certificate)
    if len(fields) < 5 or fields[4].tag != SEQUENCE:
        raise WireError("the certificate has no subject")
    parts = [_relative_name(part) for part in _values(fields[4].content)]
    if not parts:
        raise WireError("its subject is empty: it names nobody")
    name = ",".join(reversed(parts))
    if len(name) > MAX_CERTIFICATE_NAME_LENGTH:
        raise WireError(f"its name has more than {MAX_CERTIFICATE_NAME_LENGTH} letters")
    return name


def _relative_name(part: _Value) -> str:
    return "+".join(_attribute(each) for each in _values(part.content))


def _attribute(pair: _Value) -> str:
    kind, value = _values(pair.content)
    number = _object_identifier(kind.content)
    name = SHORT_NAMES.get(number)
    if name is None or value.tag not in ENCODINGS:
        return f"{name or number}=#{value.encoded.hex()}"
    return f"{name}={_escape(_text(name, value))}"


def _text(name: str, value: _Value) -> str:
    kind, encoding = ENCODINGS[value.tag]
    try:
        return value.content.decode(encoding)
    except UnicodeDecodeError as problem:
        raise WireError(
            f"{name} has bytes that a {kind} cannot hold (0x{value.content.hex()})"
        ) from problem


def _escape(text: str) -> str:
    inner = text.strip(SPACES)
    start = len(text) - len(text.lstrip(SPACES))
    before, after = text[:start], text[start + len(inner) :]
    found = "".join(f"\\{char}" if char in ESCAPED else char for char in inner)
    return "".join(
        ["".join(f"\\{char}" for char in before), found, *(f"\\{char}" for char in after)]
    ).replace("\0", "\\00")


def _object_identifier(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] >= 0x80:
        raise WireError("a name in the certificate has no type")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _values(content: bytes) -> Iterator[_Value]:
    """The values that are encoded one after the other."""
    start = 0
    while start < len(content):
        head, size = start + 2, content[start + 1] if start + 1 < len(content) else -1
        if size >= 0x80:
            count = size & 0x7F
            size = int.from_bytes(content[head : head + count], "big") if 1 <= count <= 4 else -1
            head += count
        if size < 0 or head + size > len(content):
            raise WireError("the certificate is cut off")
        end = head + size
        yield _Value(content[start], content[head:end], content[start:end])
        start = end
