r"""The principal that the name in a certificate stands for: `ssl.principal.mapping.rules`.

    RULE:^CN=(.*?),OU=Sales.*$/$1/L,  RULE:^CN=(.*?)$/$1@home/,  DEFAULT

A rule has a pattern, which the whole name must match, and what replaces it; L or U makes that lower
or upper case. The first rule that matches decides; DEFAULT is the name as it is. A name without a
rule is refused.

Clients choose the names in their certificates, so patterns are RE2's, which take linear time: with
a pattern of Kafka's own documentation, Java and Python take half a minute for a name of 1,444
letters. `_re2` makes a pattern mean what it means in Java, or refuses it: a rule that gave a client
another name than on Apache Kafka would give it the rights of somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fencepost.base import patterns
from fencepost.base.failures import ConfigError, WireError


class Rule(NamedTuple):
    """One rule of `ssl.principal.mapping.rules`."""

    pattern: patterns.Pattern | None
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
    if not patterns.is_available():
        raise ConfigError(
            f"{setting} has a RULE, and its pattern needs google-re2, which is not installed: "
            "pip install 'fencepost[re2]'"
        )
    try:
        pattern = patterns.compile_pattern(_re2(found["pattern"]), captures=True)
        parts = tuple(_parts(found["replacement"], pattern.groups))
    except ValueError as problem:
        raise ConfigError(
            f"{setting} has the rule {found[0].strip(' ,')!r}, which cannot be used: {problem}"
        ) from problem
    return Rule(pattern, parts, found["case"])


_TOKEN: Final = re.compile(
    r"(?P<quoted>\\Q.*?(?:\\E|$))|(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<group>\(\?(?!:|<[a-zA-Z]).{,2})|(?P<dot>\.)|.",
    re.DOTALL,
)
_DOT: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"
_SPACE: Final = {r"\s": r"[\s\x0b]", r"\S": r"[^\s\x0b]"}
_OTHERWISE: Final = frozenset({r"\b", r"\B", r"\v", r"\0", r"\C"})
"""Escapes of RE2 that mean something else in Java, or nothing. The ends of words are those of any
language in Java before 19."""


def _re2(pattern: str) -> str:
    """Java's pattern in RE2's words; ValueError for what they read in two ways."""
    return "".join(_token(found) for found in _TOKEN.finditer(pattern))


def _token(found: re.Match[str]) -> str:
    text = found[0]
    if found["dot"]:
        return _DOT
    if found["group"]:
        raise ValueError(
            f"{text!r}: RE2 has no lookahead or lookbehind, and flags are not accepted "
            "(write [Cc][Nn] for (?i)cn)"
        )
    if found["set"]:
        return _set(text)
    if text in _OTHERWISE:
        raise ValueError(f"{text!r} has another meaning in Java")
    return _SPACE.get(text, text)


def _set(text: str) -> str:
    """A set of characters, such as [a-z]."""
    escapes = set(re.findall(r"\\.", text, re.DOTALL))
    others = re.sub(r"\\.", "", text[1:], flags=re.DOTALL)
    if "[" in others or "&&" in others or not escapes.isdisjoint(_OTHERWISE | {r"\Q", r"\S"}):
        raise ValueError(f"the set {text!r} has another meaning in Java")
    return re.sub(r"\\.", lambda found: r"\s\x0b" if found[0] == r"\s" else found[0], text)


def _parts(replacement: str, groups: int) -> Iterator[str | int]:
    for found in _REPLACEMENT.finditer(replacement):
        digits = found["group"]
        if found["text"] == "$" and replacement.startswith("{", found.end()):
            raise ValueError("groups in a replacement have numbers: write $1, or \\$ for a dollar")
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
    """The name of a principal by the first rule that matches; None without one.

    WireError for a rule that leaves nothing of the name.
    """
    for rule in rules:
        if (found := rule.apply(name)) is not None:
            if not found:
                raise WireError("a rule of ssl.principal.mapping.rules leaves nothing of its name")
            return found
    return None
