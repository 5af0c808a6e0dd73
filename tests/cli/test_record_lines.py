"""Records as lines of text and JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli.record_lines import (
    FIELDS,
    LineError,
    as_json,
    as_raw,
    as_text,
    escape,
    read_json,
    text_reader,
)
from fencepost.records.opened import Record

maybe_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)


records = st.builds(
    Record,
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(0, 2**63 - 1),
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple),
)


@given(records, st.integers(0, 99))
def test_a_record_that_was_printed_as_json_is_read_as_the_same(
    record: Record, partition: int
) -> None:
    line = json.dumps(as_json("t", partition, record)).encode()
    assert b"\n" not in line
    found = read_json(line)
    assert found.partition == partition
    assert found.record == record._replace(offset=0)


@given(maybe_bytes, maybe_bytes)
def test_no_two_values_look_alike_and_none_breaks_a_line(
    one: bytes | None, other: bytes | None
) -> None:
    assert (escape(one) == escape(other)) == (one == other)
    assert escape(one).isprintable()


def test_text_in_any_script_stays_as_it_is_and_control_characters_are_escaped() -> None:
    assert escape("Zürich 東京 🙂".encode()) == "Zürich 東京 🙂"
    assert escape(b"\x1b[31m\r\n\\") == "\\x1b[31m\\r\\n\\\\"
    assert escape(b"\xff") == "\\xff"
    assert escape(None) == "\\N"
    assert escape(b"\\N") == "\\\\N"


def test_a_line_of_text_has_the_wanted_fields() -> None:
    record = Record(7, 0, b"k", b"a\tb", (("h", b"1"), ("n", None)))
    assert as_text(FIELDS, 3, record) == (b"3\t7\t1970-01-01 00:00:00.000 UTC\tk\th=1,n=\\N\ta\\tb")
    assert as_text(("value",), 3, Record(timestamp_ms=-1)) == b"\\N"
    assert as_raw(("key", "value"), 0, Record(key=None, value=b"\xff\n")) == b"\t\xff\n"


def test_lines_are_values_or_keys_and_values() -> None:
    assert text_reader(None, None)(b"a=b").record == Record(value=b"a=b")
    read = text_reader("=", "\\N")
    assert read(b"a=b=c").record == Record(key=b"a", value=b"b=c")
    assert read(b"a=\\N").record == Record(key=b"a", value=None)
    assert read(b"=").record == Record(key=b"", value=b"")
    with pytest.raises(LineError, match="no key separator '='"):
        read(b"ab")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"value": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"vlaue": "x"}', "did you mean value"),
        (b'{"value": 5}', "must be a text, an object, a list or null"),
        (b'{"value": true}', "its value is true"),
        (b'{"key": {"id": 1}}', "must be a text or null"),
        (b'{"headers": {"a": {"b": 1}}}', "its value is .* must be a text or null"),
        (b'{"value": {"a": NaN}}', "not JSON: NaN"),
        (b'{"value": [-Infinity]}', "not JSON: -Infinity"),
        (b'{"value": {"a": 1}, "value_base64": "YQ=="}', "both value and value_base64"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        (b'{"value_base64": "?"}', "not base64"),
        (b'{"value_base64": 5}', "not base64"),
        (b'{"value": "\\ud800"}', "half of a surrogate pair"),
        (b'{"partition": -1}', "its partition is -1"),
        (b'{"partition": true}', "its partition is True"),
        (b'{"timestamp_ms": 1.5}', "its timestamp_ms is 1.5"),
        (b'{"timestamp_ms": 9223372036854775808}', "its timestamp_ms"),
        (b'{"headers": 5}', "neither a list nor an object"),
        (b'{"headers": [["a", "b"]]}', "a header that is not"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_line_that_is_not_a_record_says_why(line: bytes, said: str) -> None:
    with pytest.raises(LineError, match=said):
        read_json(line)


@pytest.mark.parametrize(
    "source",
    [
        '{"order": 17, "amount": 12.10}',
        "{}",
        "[]",
        '{"a":0.12345678901234567890123,"b":1E400,"c":-0}',
        '{"a": 1, "a": 2}',
        '{"name": "Zoë 👋", "escaped": "\\u00e9 \\" } ] : ,"}',
        '{"nested": {"value": {"deep": [1, {"x": null}]}}}',
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        '{{"key": "k", "value": {}}}',
        '{{"value":{}}}',
        ' \t{{ "headers" : {{"value": "h"}} , "value" :\t{} , "partition" : 3 }} \r',
        '{{"value": "first", "value": {}}}',
        '\ufeff{{"value": {}}}',
    ],
)
def test_a_value_may_be_an_object_or_a_list_and_is_written_as_it_stands(
    line: str, source: str
) -> None:
    assert read_json(line.format(source).encode()).record.value == source.encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    ).filter(lambda value: isinstance(value, (dict, list))),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]),
)
def test_any_object_arrives_as_it_was_sent(value: object, separators: tuple[str, str]) -> None:
    sent = json.dumps({"headers": {"a": "b"}, "value": value, "key": "k"}, separators=separators)
    found = read_json(sent.encode()).record
    assert found.value == json.dumps(value, separators=separators).encode()
    assert found.key == b"k"


def test_headers_may_be_an_object() -> None:
    found = read_json(b'{"headers": {"a": "1", "b": null}}')
    assert found.record.headers == (("a", b"1"), ("b", None))
