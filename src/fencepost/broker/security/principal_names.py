"""The name in a client certificate, and the principal that it stands for.

`distinguished_name` reads the subject of a certificate as Java prints it (X500Principal.getName():
RFC 2253, the last part first), because rules and ACLs are written for that text. Only the nine
types of RFC 2253 have short names there; any other is its number and the bytes of its value in
hexadecimal: `1.2.840.113549.1.9.1=#160f...` for an e-mail address. Those bytes are not in what
`getpeercert()` returns, so the subject is read from the certificate itself. A handshake has
verified it before, and every length is checked here all the same.

`parse_rules` reads `ssl.principal.mapping.rules`:

    RULE:^CN=(.*?),OU=Sales.*$/$1/L,  RULE:^CN=(.*?)$/$1@home/,  DEFAULT

A rule has a pattern, which the whole name must match, and what replaces it; L or U makes that lower
or upper case. The first rule that matches decides; DEFAULT is the name as it is. A name without a
rule is refused.

`valid_until` reads when a certificate expires.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fencepost.base.failures import ConfigError, WireError

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
TEXT_TAGS: Final = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)
"""UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString."""

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
    return ",".join(reversed(parts))


def _relative_name(part: _Value) -> str:
    return "+".join(_attribute(each) for each in _values(part.content))


def _attribute(pair: _Value) -> str:
    kind, value = _values(pair.content)
    number = _object_identifier(kind.content)
    name = SHORT_NAMES.get(number)
    if name is None or value.tag not in TEXT_TAGS:
        return f"{name or number}=#{value.encoded.hex()}"
    return f"{name}={_escape(value.content.decode('utf-8', errors='replace'))}"


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


# -- rules
# --------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One rule of `ssl.principal.mapping.rules`."""

    pattern: re.Pattern[str] | None
    """What the whole name must match; None for DEFAULT, the name as it is."""
    replacement: tuple[str | int, ...] = ()
    """Texts, and the numbers of groups."""
    case: str = ""
    """L or U, or an empty text."""

    def apply(self, name: str) -> str | None:
        """What the rule makes of a name; None if it does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(self._fill_in, name)
        return {"L": found.lower(), "U": found.upper()}.get(self.case, found)

    def _fill_in(self, match: re.Match[str]) -> str:
        return "".join(
            part if isinstance(part, str) else match[part] or "" for part in self.replacement
        )


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|$)"
)
_REPLACEMENT: Final = re.compile(r"\\(?P<escaped>.)|\$(?P<group>[0-9]+)|(?P<text>.)", re.DOTALL)


def parse_rules(setting: str, text: str) -> tuple[Rule, ...]:
    """Parses the rules; ConfigError names the first that cannot be read."""
    rules: list[Rule] = []
    position, text = 0, text.strip()
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ConfigError(
                f"{setting} cannot be read from {text[position:]!r} on; a rule is DEFAULT, "
                "RULE:pattern/replacement/, or the same with L or U behind it"
            )
        rules.append(_rule(setting, found))
        position = found.end()
    return tuple(rules) or (Rule(None),)


def _rule(setting: str, found: re.Match[str]) -> Rule:
    if found["default"]:
        return Rule(None)
    try:
        pattern = re.compile(found["pattern"])
    except re.error as problem:
        raise ConfigError(
            f"{setting} has the pattern {found['pattern']!r}, which is none: {problem}"
        ) from problem
    return Rule(pattern, tuple(_parts(found["replacement"], pattern.groups)), found["case"])


def _parts(replacement: str, groups: int) -> Iterator[str | int]:
    for found in _REPLACEMENT.finditer(replacement):
        digits = found["group"]
        if digits is None:
            yield found["escaped"] or found["text"]
            continue
        # The longest number that is a group, as in Java; $5 without five groups is text.
        for length in range(len(digits), 0, -1):
            if int(digits[:length]) <= groups:
                yield int(digits[:length])
                yield digits[length:]
                break
        else:
            yield found[0]


def principal_name(rules: Sequence[Rule], name: str) -> str | None:
    """The name of a principal by the first rule that matches; None without one."""
    for rule in rules:
        if (found := rule.apply(name)) is not None:
            return found
    return None
