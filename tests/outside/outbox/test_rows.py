"""From rows and messages to records, without a database."""

from __future__ import annotations

import pytest

from fencepost.outside.outbox.rows import (
    BYTEA,
    ColumnNames,
    ColumnsMissing,
    TableMapping,
    Unreadable,
    read_message,
)
from fencepost.records.opened import Record

TEXT = 25
DEBEZIUM = [(name, TEXT) for name in ("id", "aggregatetype", "aggregateid", "type", "payload")]


def test_debeziums_columns_are_known() -> None:
    row = TableMapping("outbox", DEBEZIUM).read([b"7", b"orders", b"k", b"created", b"{}"])
    assert row.topic == "orders"
    assert row.record == Record(key=b"k", value=b"{}", headers=(("id", b"7"), ("type", b"created")))


def test_own_names_win_over_debeziums() -> None:
    columns = [*DEBEZIUM, ("topic", TEXT), ("key", TEXT), ("value", TEXT)]
    row = TableMapping("outbox", columns).read([b"7", b"a", b"b", None, b"c", b"t", b"k", b"v"])
    assert (row.topic, row.record.key, row.record.value) == ("t", b"k", b"v")


def test_the_topic_column_may_hold_a_part_of_the_name() -> None:
    mapping = TableMapping("outbox", DEBEZIUM, template="outbox.event.*")
    assert mapping.read([None, b"orders", None, None, None]).topic == "outbox.event.orders"


def test_a_fixed_topic_needs_no_column() -> None:
    row = TableMapping("outbox", [("value", TEXT)], template="orders").read([b"v"])
    assert (row.topic, row.record) == ("orders", Record(value=b"v"))


def test_bytea_is_bytes_and_everything_else_its_text() -> None:
    columns = [("topic", TEXT), ("key", BYTEA), ("value", 3802)]
    row = TableMapping("outbox", columns).read([b"t", b"\\x00ff", b'{"a": 1}'])
    assert (row.record.key, row.record.value) == (b"\x00\xff", b'{"a": 1}')


@pytest.mark.parametrize(
    ("columns", "named", "words"),
    [
        ([("value", TEXT)], ColumnNames(), "'topic' or 'aggregatetype'"),
        ([("topic", TEXT)], ColumnNames(), "'value' or 'payload'"),
        (DEBEZIUM, ColumnNames(key="who"), "'who'"),
        (DEBEZIUM, ColumnNames(topic="where"), "'where'"),
    ],
)
def test_a_missing_column_is_named_with_those_that_are_there(
    columns: list[tuple[str, int]], named: ColumnNames, words: str
) -> None:
    with pytest.raises(ColumnsMissing, match=words) as caught:
        TableMapping("outbox", columns, named)
    assert columns[0][0] in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([None, None, b"v", None], "'topic' is empty"),
        ([b"", None, b"v", None], "'topic' is empty"),
        ([b"t", b"no hex", b"v", None], "'key' is not hexadecimal"),
        ([b"t", None, b"v", b"no JSON"], "not JSON"),
        ([b"t", None, b"v", b"[1]"], "headers are not a JSON object"),
        ([b"t", None, b"v"], "3 columns instead of 4"),
    ],
)
def test_a_row_that_is_no_record_says_why(values: list[bytes | None], words: str) -> None:
    columns = [("topic", TEXT), ("key", BYTEA), ("value", TEXT), ("headers", 3802)]
    with pytest.raises(Unreadable, match=words):
        TableMapping("outbox", columns).read(values)


@pytest.mark.parametrize(
    ("content", "record"),
    [
        (b'{"topic": "t"}', Record()),
        (b'{"topic": "t", "key": "k", "value": "v"}', Record(key=b"k", value=b"v")),
        (b'{"topic": "t", "value": [1, "\xc3\xa9"]}', Record(value=b'[1, "\xc3\xa9"]')),
        (b'{"topic": "t", "key_base64": "AP8=", "value_base64": ""}',
         Record(key=b"\x00\xff", value=b"")),
        (b'{"topic": "t", "headers": {"a": "b", "n": null, "i": 1}}',
         Record(headers=(("a", b"b"), ("n", None), ("i", b"1")))),
        (b'{"topic": "t", "key": 1.50, "headers": {"price": 1.50, "all": {"a": [2.0]}}}',
         Record(key=b"1.50", headers=(("price", b"1.50"), ("all", b'{"a": [2.0]}')))),
        (b'{"topic": "t", "value": {"a": [1.50, -0.0, 1E5, 12345678901234567890, "1.0", null]}}',
         Record(value=b'{"a": [1.50, -0.0, 1E5, 12345678901234567890, "1.0", null]}')),
    ],
)  # fmt: skip
def test_a_message_has_the_record_as_json(content: bytes, record: Record) -> None:
    assert read_message(content) == ("t", record)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[" * 100_000,
        b"3",
        b'{"topic": 3}',
        b'{"topic": 3.0}',
        b'{"topic": "a b"}',
        b'{"topic": "__consumer_offsets"}',
        b'{"topic": "t", "value_base64": "*"}',
        b'{"topic": "t", "value_base64": 3}',
        b'{"topic": "t", "headers": []}',
        b'{"topic": "t", "value": "\\ud800"}',
    ],
)
def test_a_message_that_is_no_record_says_why(content: bytes) -> None:
    with pytest.raises(Unreadable):
        read_message(content)


@pytest.mark.parametrize(
    "topic", ["a b", "a/b", ".", "..", "é", "x" * 250, "__consumer_offsets", "__transaction_state"]
)
def test_a_row_for_a_topic_that_cannot_be_written_to_is_no_record(topic: str) -> None:
    """Nobody can create it, so the relay would never get past the row."""
    mapping = TableMapping("outbox", [("topic", TEXT), ("value", TEXT)])
    with pytest.raises(Unreadable, match="no record can be written to a topic") as caught:
        mapping.read([topic.encode(), b"v"])
    assert len(str(caught.value)) < 300
    with pytest.raises(ColumnsMissing, match="correct --topic"):
        TableMapping("outbox", [("value", TEXT)], template=topic)


def test_a_number_in_the_headers_of_a_row_stays_as_it_was_written() -> None:
    mapping = TableMapping("outbox", [("topic", TEXT), ("value", TEXT), ("headers", TEXT)])
    read = mapping.read([b"t", b"v", b'{"price": 1.50, "n": 3, "deep": {"a": 0.10}}']).record
    assert read.headers == (("price", b"1.50"), ("n", b"3"), ("deep", b'{"a": 0.10}'))


def test_a_topic_in_another_encoding_is_no_record() -> None:
    """A database without an encoding (SQL_ASCII) sends bytes as they are."""
    with pytest.raises(Unreadable):
        TableMapping("outbox", [("topic", TEXT), ("value", TEXT)]).read([b"\xff", b"v"])
