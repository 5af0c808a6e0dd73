"""Our batches against those of kafka-python and aiokafka, read and written."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.batch import SealedBatch, read_header, seal_check
from fencepost.records.builder import build_batch
from fencepost.records.compression import CODECS, Codec
from fencepost.records.opened import Record, open_batch
from fencepost.records.produced import check_produced, read_produced

with warnings.catch_warnings():
    # kafka-python uses a deprecated function of the standard library.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

Builder = type[AioBuilder] | type[KafkaPythonBuilder]

maybe_bytes = st.none() | st.binary(max_size=100)
header_names = st.text("abcäöü€", min_size=1, max_size=5)
some_records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=st.integers(0, 2**42),
        key=maybe_bytes,
        value=maybe_bytes,
        headers=st.lists(st.tuples(header_names, st.binary(max_size=9)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=10,
)
kafka_python_codecs = [Codec.NONE, Codec.GZIP]  # The others need libraries that we do not.


def encoded_by(builder_class: Builder, records: list[Record], codec: int) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=4000,
        producer_epoch=5,
        base_sequence=6,
        batch_size=1 << 20,
    )
    for number, record in enumerate(records):
        appended = builder.append(
            number,
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
        assert appended is not None
    return bytes(builder.build())


def encoded_by_us(records: list[Record], codec: int) -> bytes:
    return bytes(
        build_batch(
            records,
            timestamp_ms=0,
            codec=codec,
            producer_id=4000,
            producer_epoch=5,
            base_sequence=6,
            transactional=True,
            leader_epoch=-1,
        )
    )


@given(some_records, st.sampled_from(sorted(CODECS)))
def test_we_open_what_aiokafka_builds(records: list[Record], codec: int) -> None:
    batch = read_produced(encoded_by(AioBuilder, records, codec))
    assert isinstance(batch, SealedBatch)
    assert check_produced(batch, max_bytes=1 << 20) is None
    assert [record._replace(offset=0) for record in open_batch(batch)] == records
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4000, 5, 6)


@given(some_records, st.sampled_from(kafka_python_codecs))
def test_we_open_what_kafka_python_builds(records: list[Record], codec: int) -> None:
    batch = read_produced(encoded_by(KafkaPythonBuilder, records, codec))
    assert isinstance(batch, SealedBatch)
    assert check_produced(batch, max_bytes=1 << 20) is None
    assert [record._replace(offset=0) for record in open_batch(batch)] == records


@given(some_records)
def test_uncompressed_batches_match_byte_for_byte(records: list[Record]) -> None:
    ours = bytearray(encoded_by_us(records, Codec.NONE))
    theirs = bytearray(encoded_by(AioBuilder, records, Codec.NONE))
    # The broker writes the leader epoch; clients send different values.
    ours[12:16] = theirs[12:16]
    assert ours == theirs


@given(some_records, st.sampled_from(sorted(CODECS)))
def test_aiokafka_opens_what_we_build(records: list[Record], codec: int) -> None:
    batch = AioBatch(encoded_by_us(records, codec))
    assert batch.validate_crc()
    found = [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert found == [(r.timestamp_ms, r.key, r.value, r.headers) for r in records]
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4000, 5, 6)


@given(some_records, st.sampled_from(kafka_python_codecs))
def test_kafka_python_opens_what_we_build(records: list[Record], codec: int) -> None:
    batch = KafkaPythonBatch(encoded_by_us(records, codec))
    assert batch.validate_crc()
    found = [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert found == [(r.timestamp_ms, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_large_batch_round_trips(codec: int) -> None:
    records = [Record(0, 1000 + n, b"key %d" % n, bytes([n % 256]) * 997) for n in range(500)]
    batch = read_header(encoded_by(AioBuilder, records, codec))
    seal_check(batch)
    assert [record._replace(offset=0) for record in open_batch(batch)] == records
    assert [r.value for r in AioBatch(encoded_by_us(records, codec))] == [r.value for r in records]
