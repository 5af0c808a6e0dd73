"""Java's .properties files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import ConfigError
from fencepost.base.properties import read_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# a comment\n! another\n\n  # indented\n", {}),
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b\nc d\ne", {"a": "b", "c": "d", "e": ""}),
        ("a==b", {"a": "=b"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("  a\t=\f b", {"a": "b"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("a=one,\\\n   two,\\\n   three", {"a": "one,two,three"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n#no comment", {"a": "b#no comment"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\t\\n\\u00e4\\q", {"a": "\t\näq"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_a_file_is_parsed_as_java_parses_it(text: str, found: dict[str, str]) -> None:
    assert read_properties(text) == found


def test_an_invalid_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="hexadecimal"):
        read_properties("a=\\u12")


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        found = read_properties(text)
    except ConfigError:
        return
    assert all(isinstance(value, str) for value in found.values())


@given(
    st.dictionaries(
        st.from_regex(r"[a-z.]{1,9}", fullmatch=True), st.from_regex(r"[ -~]*", fullmatch=True)
    )
)
def test_plain_settings_round_trip(settings: dict[str, str]) -> None:
    lines = [
        f"{name}={value.replace(chr(92), chr(92) * 2).strip()}" for name, value in settings.items()
    ]
    assert read_properties("\n".join(lines)) == {
        name: value.strip() for name, value in settings.items()
    }
