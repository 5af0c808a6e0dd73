"""Kafka's partitioner, compared with the Java client and an independent implementation."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as their_murmur2
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, value: int) -> None:
    assert murmur2(key) == value


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_keys_map_to_the_same_partitions_as_in_another_client(
    key: bytes, partition_count: int
) -> None:
    theirs = their_murmur2(key) & 0x7FFFFFFF
    assert partition_for_key(key, partition_count) == theirs % partition_count


def test_any_buffer_can_be_a_key() -> None:
    assert murmur2(memoryview(bytearray(b"foobar"))) == murmur2(b"foobar")
