"""Keys from records, and their hashes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.failures import ConfigError
from fencepost.spark.auditing.keys import KeyExpression, hashes_of, keys_of, parse_key, shown_key


def keys(expression: str, *documents: bytes | None) -> list[bytes | None]:
    parsed = parse_key(expression)
    rows = pa.RecordBatch.from_pydict({parsed.column: pa.array(documents, pa.binary())})
    found: list[bytes | None] = keys_of(parsed, rows).to_pylist()
    return found


def test_a_column_is_a_key_as_it_is() -> None:
    assert keys("key", b"a", None, b"") == [b"a", None, b""]
    assert keys("value", b"\xff") == [b"\xff"]


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (b'{"order": {"id": 17}}', b"17"),
        (b'{"order": {"id": "17"}}', b"17"),
        (b'{ "x": [1, {"id": 2}], "order" :{"y": "\\"}", "id" : "a\\u00e9\\n"} }', b"a\xc3\xa9\n"),
        (b'{"order": {"id": 12345678901234567890.10}}', b"12345678901234567890.10"),
        (b'{"order": {"id": true}}', b"true"),
        (b'{"order": {"id": {"b": 1, "a": [2]}}}', b'{"a":["2"],"b":"1"}'),
        (b'{"order": {"id": 1}, "order": {"id": 2}}', b"2"),
        (b'{"order": {"id": null}}', None),
        (b'{"order": {"ident": 1}}', None),
        (b'{"order": 1}', None),
        (b'{"order": {"id": 1}', None),
        (b'[{"order": {"id": 1}}]', None),
        (b"\x00\xff\xfe", None),
        (b"", None),
        (None, None),
    ],
)
def test_a_field_of_json_is_compared_by_its_text(document: bytes | None, key: bytes | None) -> None:
    assert keys("value:order.id", document) == [key]
    assert keys("value:$.order.id", document) == [key]


def test_the_last_header_of_a_name_is_the_key() -> None:
    expression = parse_key("header:id")
    headers = [
        [{"key": "id", "value": b"1"}, {"key": "x", "value": b"3"}, {"key": "id", "value": b"2"}],
        [{"key": "x", "value": b"1"}],
        None,
        [{"key": "id", "value": None}],
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.RecordBatch.from_pydict({"headers": pa.array(headers, kind)})
    assert keys_of(expression, rows).to_pylist() == [b"2", None, None, None]


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.text(max_size=5),
)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "ab", "é", ""]), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(
    st.lists(
        st.tuples(
            _DOCUMENTS,
            st.booleans(),
            st.integers(0, 400),
            st.sampled_from(b'{}[]",:\\ 0.-e\xff\0a'),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([("a",), ("a", "b"), ("ab", "a", "b"), ("é",)]),
)
@settings(max_examples=400, deadline=None)
def test_documents_that_are_parsed_together_have_the_keys_that_each_has_alone(
    drawn: list[tuple[Any, bool, int, int]], path: tuple[str, ...]
) -> None:
    """Whole documents, and documents of which one byte was changed."""
    documents: list[bytes | None] = []
    for document, is_plain, place, byte in drawn:
        text = bytearray(
            json.dumps(document, ensure_ascii=is_plain, indent=place % 3 or None).encode()
        )
        if place < len(text):
            text[place] = byte
        documents.append(bytes(text))
    expression = str(KeyExpression("value", path))
    alone = [keys(expression, document)[0] for document in documents]
    assert keys(expression, None, *documents, b"") == [None, *alone, None]
    assert keys(expression, *documents * 100) == alone * 100


def test_documents_that_are_json_only_together_have_no_key() -> None:
    one, two, half, rest = b'{"a": 1}', b'{"a": 2}, {"a": 3}', b'{"a": [4', b"5]}"
    assert keys("value:a", two, half, rest) == [None, None, None]
    assert keys("value:a", one, half, rest, two, one) == [b"1", None, None, None, b"1"]


def test_documents_may_have_another_encoding_of_unicode() -> None:
    text = '{"a": "\u20ac"}'
    documents = [text.encode(name) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32-be")]
    assert keys("value:a", *documents) == ["\u20ac".encode()] * 4


@pytest.mark.parametrize("text", ["", "id", "value:", "header:", "value:a..b", "offset", "headers"])
def test_what_is_not_a_key_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="header:NAME"):
        parse_key(text)


def test_keys_are_shown_as_text_or_in_hexadecimal() -> None:
    assert [shown_key(key) for key in (b"a b", b"\xff\x00", b"\n", None)] == [
        "a b",
        "0xff00",
        "0x0a",
        None,
    ]


def test_hashes_are_equal_for_equal_keys_only() -> None:
    texts = [
        b"",
        b"\0",
        b"\0\0",
        *(b"k%d" % n for n in range(2_000)),
        *(b"x" * n for n in range(99)),
    ]
    found = hashes_of(pa.array(texts, pa.binary()), 17)
    assert found.shape == (len(texts), 2)
    for words in (found[:, 0], found[:, 1]):
        assert len(set(words.tolist())) == len(texts) - 1, "b'' and x * 0 are equal"
    assert not (found[:, 0] == found[:, 1]).any(), "the two words are two hashes"
    # A slice has another first offset in the same buffer.
    part = pa.array([None, *texts], pa.binary())[1:]
    assert hashes_of(part, 17).tolist() == found.tolist()
    other = hashes_of(pa.array(texts, pa.binary()), 18)
    assert not (other == found).any()


@pytest.mark.parametrize("keys", [[], [None], [None, b"a"]])
def test_every_row_has_hashes(keys: list[bytes | None]) -> None:
    assert hashes_of(pa.array(keys, pa.binary()), 0).shape == (len(keys), 2)
