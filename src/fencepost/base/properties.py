r"""The syntax of Java's .properties files, in which Kafka keeps its settings.

A line is blank, a comment (it begins with `#` or `!`), or a key and a value separated by `=`, `:`
or blanks. A backslash at the end of a line appends the next line without its leading blanks. In a
key or value a backslash makes the next character literal, except in \t \n \r \f and \uXXXX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fencepost.base.failures import ConfigError

_BLANKS: Final = " \t\f"
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "": ""}


def read_properties(text: str) -> dict[str, str]:
    """The keys and values of a file; the last value of a key wins."""
    found = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None, "the pattern matches the empty key too"
        found[_unescape(match.group(1))] = _unescape(line[match.end() :])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    joined = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        if _ends_open(joined):
            joined = joined[:-1]
            continue
        yield joined
        joined = ""
    if joined:
        yield joined


def _ends_open(line: str) -> bool:
    """Whether the line ends in an odd number of backslashes: the last one escapes the break."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_meant, text) if "\\" in text else text


def _meant(match: re.Match[str]) -> str:
    escaped = match.group(1)
    if escaped == "u":
        raise ConfigError(r"\u must be followed by four hexadecimal digits")
    if len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _CONTROLS.get(escaped, escaped)
