"""Goal: untrusted bytes lead to a value or a WireError, and to bounded memory.

Method: valid messages of every API, cut at every length, changed byte by byte and replaced by
noise; and inputs that are known to have crashed other parsers.
"""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.base.failures import WireError
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import read_request_header
from fencepost.wire.compile import encode, reader
from fencepost.wire.forms.describe_configs import DescribeConfigsRequest
from fencepost.wire.forms.fetch import FetchRequest
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.forms.produce import ProduceRequest
from fencepost.wire.plan import plan_of
from fencepost.wire.schema import versions_of
from tests.halves import examples
from tests.wire.samples import SeededValues, fill

FORMS = [
    pytest.param(form, id=form.__name__)
    for api in API.values()
    for form in (api.request, api.response)
]


def read_safely(form: type[Any], version: int, data: bytes) -> None:
    try:
        _, position = reader(form, version)(memoryview(bytearray(data)), 0)
    except WireError:
        return
    assert 0 <= position <= len(data)


def first_and_last(form: type[Any]) -> set[int]:
    versions = versions_of(form)
    return {versions[0], versions[-1]}


@pytest.mark.parametrize("form", FORMS)
def test_a_message_truncated_at_any_length_is_a_wire_error(form: type[Any]) -> None:
    for version in first_and_last(form):
        data = encode(fill(plan_of(form, version), SeededValues(version + 1)), version)
        read = reader(form, version)
        for size in range(min(len(data), 1500)):
            with pytest.raises(WireError):
                read(data[:size], 0)
        if data:
            with pytest.raises(WireError):
                read(data[:-1], 0)


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_byte_is_another_value_or_a_wire_error(form: type[Any]) -> None:
    rng = random.Random(7)
    for version in first_and_last(form):
        data = bytearray(encode(fill(plan_of(form, version), SeededValues(version + 2)), version))
        for position in rng.choices(range(len(data)), k=60) if data else []:
            kept = data[position]
            for value in (0, 0x7F, 0x80, 0xFF, rng.randrange(256)):
                data[position] = value
                read_safely(form, version, bytes(data))
            data[position] = kept


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_bytes_are_a_value_or_a_wire_error(form: type[Any], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(list(versions_of(form))))
    read_safely(form, version, data.draw(st.binary(max_size=200)))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=40), key=st.sampled_from(list(ApiKey)), version=st.integers(-1, 20))
def test_random_bytes_in_a_header_are_a_header_or_a_wire_error(
    data: bytes, key: ApiKey, version: int
) -> None:
    start = int(key).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
    frame = memoryview(start + data)
    try:
        header = read_request_header(frame)
    except WireError:
        return
    assert header.body_offset <= len(frame)


@pytest.mark.parametrize(
    ("form", "version", "data"),
    [
        # Counts that claim billions of items, at the front and within an item.
        (MetadataRequest, 1, "7fffffff"),
        (MetadataRequest, 9, "ffffffff0f 00"),
        (ProduceRequest, 9, "00 0001 00000000 ffffffff07"),
        (ProduceRequest, 9, "00 0001 00000000 02 0274 ffffffff07"),
        (FetchRequest, 4, "ffffffff 00000000 00000000 00000000 00 00000001 0001 74 7fffffff"),
        (DescribeConfigsRequest, 1, "00000001 02 0001 74 7fffffff"),
        # Lengths that claim gigabytes.
        (ProduceRequest, 9, "feffffff0f"),
        (ProduceRequest, 9, "00 0001 00000000 02 0274 02 00000000 ffffffff07"),
        (ProduceRequest, 3, "7fff"),
        # Tags: more than are present, and larger than the remaining bytes.
        (MetadataRequest, 9, "00 01 00 00 ffffffff0f"),
        (MetadataRequest, 9, "00 01 00 00 01 63 ffffffff0f"),
    ],
)
def test_a_count_or_length_beyond_the_received_bytes_allocates_nothing(
    form: type[Any], version: int, data: str
) -> None:
    read = reader(form, version)
    payload = bytes.fromhex(data) + bytes(20)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            read(payload, 0)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_the_number_of_small_items_is_bounded_at_any_depth() -> None:
    # 1,500 topics that each claim 1,000 partitions: 9 MB that would become 1.5 million objects.
    topic = bytes.fromhex("0274") + b"\xe9\x07" + bytes.fromhex("00000000 01 00") * 1000 + b"\0"
    data = bytes.fromhex("00 0001 00000000 dd0b") + topic * 1500 + b"\0"
    with pytest.raises(WireError, match="more items than are allowed"):
        reader(ProduceRequest, 9)(data, 0)


def test_trailing_bytes_after_a_message_are_ignored() -> None:
    data = encode(MetadataRequest(topics=None), 9)
    form, position = reader(MetadataRequest, 9)(data + b"trailing", 0)
    assert form.topics is None
    assert position == len(data)
