"""Goal: the layout of small forms, byte by byte, as the generated readers and writers handle it."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

from fencepost.base.failures import WireError
from fencepost.base.limits import MAX_ARRAY_ITEMS, MAX_STRING_BYTES
from fencepost.wire.compile import decode, encode, reader, writer
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.schema import Records, constructor, field, message, struct, version_range

if TYPE_CHECKING:
    from fencepost.base.seams import Buffer


@struct
class Item:
    index: int = field("int32")
    name: str | None = field("string", nullable="1+")


@struct
class Leader:
    node_id: int = field("int32", default=-1)
    epoch: int = field("int32", default=-1)


@message(versions="0-3", flexible="2+")
class Sample:
    key: str = field("string")
    flag: bool = field("bool", versions="1+")
    count: int = field("int16", default=-1)
    topic_id: bytes = field("uuid", versions="2+")
    numbers: list[int] | None = field("[]int32", nullable="1+")
    words: list[str] = field("[]string")
    items: list[Item] = field("[]Item")
    cursor: Leader | None = field("Leader", versions="3+", nullable="3+", default=None)
    leader: Leader | None = field("Leader", versions="2+", tag=0)
    note: str = field("string", versions="2+", tag=1)
    ratio: float = field("float64", versions="2+", tag=5, default=1.5)


@message(versions="0-1", flexible="1+")
class Carrier:
    before: str = field("string")
    records: Records | None = field("records", nullable="0+")
    after: bytes = field("bytes")


FULL = Sample(
    key="k",
    flag=True,
    count=7,
    topic_id=bytes(range(16)),
    numbers=[1, -2],
    words=["a", "é"],
    items=[Item(index=1, name="x"), Item(index=2, name="")],
    cursor=Leader(node_id=4, epoch=5),
    leader=Leader(node_id=1, epoch=2),
    note="hi",
    ratio=2.0,
)


def test_an_old_version_has_fixed_lengths_and_only_its_fields() -> None:
    assert encode(FULL, 0) == bytes.fromhex(
        "00016b 0007 00000002 00000001 fffffffe 00000002 000161 0002c3a9"
        "00000002 00000001 000178 00000002 0000"
    )


def test_a_flexible_version_has_compact_lengths_and_tags_in_order() -> None:
    assert encode(FULL, 3) == bytes.fromhex(
        "026b 01 0007 000102030405060708090a0b0c0d0e0f 03 00000001 fffffffe 03 0261 03c3a9"
        "03 00000001 0278 00 00000002 01 00 01 00000004 00000005 00"
        "03 00 09 00000001 00000002 00 01 03 036869 05 08 4000000000000000"
    )


def test_fields_missing_from_a_version_read_as_their_defaults() -> None:
    form = decode(Sample, 0, encode(FULL, 0))
    assert (form.flag, form.topic_id, form.leader, form.ratio) == (False, bytes(16), None, 1.5)


def test_every_field_has_a_default_and_lists_are_not_shared() -> None:
    first, second = Sample(), Sample()
    first.words.append("mine")
    assert second.words == []
    assert second.count == -1
    assert first != second


def test_a_constructor_makes_what_a_call_of_the_class_makes() -> None:
    make = constructor(Sample)

    assert make() == Sample()
    assert make(key="k", numbers=None) == Sample(key="k", numbers=None)
    assert make().words is not make().words
    with pytest.raises(TypeError):
        make(kee="k")  # type: ignore[call-arg]


def test_a_form_prints_what_differs_from_its_defaults() -> None:
    assert repr(Sample(key="k", words=["w"])) == "Sample(key='k', words=['w'])"


def test_a_form_survives_copying_and_pickling() -> None:
    assert copy.deepcopy(FULL) == FULL
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(TypeError):
        Sample(kee="k")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Sample().kee = "k"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(kind: type[Buffer]) -> None:
    assert decode(Sample, 3, kind(encode(FULL, 3))) == FULL


def test_records_are_a_writable_view_of_the_frame() -> None:
    frame = bytearray(encode(Carrier(records=b"12345", after=b"!"), 1))
    form = decode(Carrier, 1, memoryview(frame))
    assert isinstance(form.records, memoryview)
    form.records[0] = ord("9")
    assert b"92345" in frame
    assert form.after == b"!"


def test_large_records_become_separate_chunks_without_a_copy() -> None:
    big = bytes(10_000)
    chunks: list[Buffer] = []
    tail = writer(Carrier, 0)(
        Carrier(before="b", records=[big, big], after=b"a"), bytearray(), chunks
    )
    assert chunks[1] is big
    assert chunks[2] is big
    whole = b"".join([*chunks, tail])
    assert decode(Carrier, 0, whole).records == big + big


def test_small_records_stay_in_the_same_buffer() -> None:
    chunks: list[Buffer] = []
    tail = writer(Carrier, 1)(Carrier(records=[b"ab", b"c"]), bytearray(), chunks)
    assert chunks == []
    assert decode(Carrier, 1, tail).records == b"abc"


def test_unknown_tags_are_skipped() -> None:
    data = encode(Sample(), 2)
    assert data.endswith(b"\0")
    strange = data[:-1] + bytes.fromhex("02 01 03 036869 8f01 02 abcd")
    form, position = reader(Sample, 2)(strange, 0)
    assert form.note == "hi"
    assert position == len(strange)


def test_a_tag_whose_size_is_wrong_is_refused() -> None:
    with pytest.raises(WireError, match="another size"):
        decode(Sample, 2, encode(Sample(), 2)[:-1] + bytes.fromhex("01 01 04 036869 00"))


def test_the_total_number_of_array_items_is_bounded() -> None:
    half = [""] * (MAX_ARRAY_ITEMS // 2 + 1)
    data = encode(Sample(words=half, items=[Item()] * len(half)), 2)
    with pytest.raises(WireError, match="items has more items than are allowed"):
        decode(Sample, 2, data)


@pytest.mark.parametrize(
    ("version", "data"),
    [(0, "ffff"), (2, "00"), (0, "0000 0000 ffffffff"), (0, "0000 0000 00000000 00000001 ffff")],
)
def test_null_in_a_field_that_is_not_nullable_is_refused(version: int, data: str) -> None:
    with pytest.raises(WireError, match="null"):
        decode(Sample, version, bytes.fromhex(data) + bytes(50))


def test_a_string_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(WireError, match="UTF-8"):
        decode(Sample, 0, b"\0\1\xff" + bytes(50))


def test_an_endless_varint_is_refused() -> None:
    with pytest.raises(WireError, match="five bytes"):
        decode(Sample, 2, b"\xff" * 50)


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(WireError, match="no version 4"):
        decode(Sample, 4, b"")


@pytest.mark.parametrize(
    "form",
    [
        Sample(key=None),  # type: ignore[arg-type]
        Sample(count=40_000),
        Sample(words=[1]),  # type: ignore[list-item]
        Sample(key="\ud800"),
    ],
)
def test_a_value_out_of_range_for_its_field_fails_an_assertion(form: Sample) -> None:
    with pytest.raises(AssertionError, match="Sample v0 cannot be written"):
        encode(form, 0)


def test_an_id_of_the_wrong_length_fails_an_assertion() -> None:
    with pytest.raises(AssertionError, match="16 bytes, not 3"):
        encode(Sample(topic_id=b"abc"), 2)


def test_version_ranges_are_parsed_as_in_kafka() -> None:
    assert list(version_range("3-5")) == [3, 4, 5]
    assert list(version_range("3")) == [3]
    assert 32767 in version_range("3+")
    assert 0 not in version_range("none")


def test_a_compact_string_longer_than_a_plain_one_could_be_is_refused() -> None:
    form = EndTxnRequest(transactional_id="x" * (MAX_STRING_BYTES + 1))
    with pytest.raises(WireError, match="longer than a string may be"):
        decode(EndTxnRequest, 4, encode(form, 4))
