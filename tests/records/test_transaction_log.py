"""The bytes of `__transaction_state`: Kafka's samples, and the writer against the declared form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import WireError
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import (
    NO_PARTITIONS,
    PartitionsSchema,
    TransactionLogValue,
    TransactionMetadata,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from fencepost.wire.compile import encode
from tests.coordinator.txn.ledger import transaction

SAMPLE_V0 = bytes.fromhex(
    "0000 0000000000000fa0 0000 0000ea60 01 00000001 000174 00000002 00000000 00000001"
    "0000018bcfe56800 0000018bcfe56800"
)
SAMPLE_V1 = bytes.fromhex(
    "0001 0000000000000fa0 0000 0000ea60 01 02 0274 03 00000000 00000001 00"
    "0000018bcfe56800 0000018bcfe56800 02 0008 0000000000000fa0 0202 0002"
)
NOW_MS = 1_700_000_000_000


def sample(**changes: int) -> TransactionMetadata:
    fields = {"start_ms": NOW_MS, "update_ms": NOW_MS, **changes}
    return transaction(State.ONGOING, partitions={"t": (0, 1)}, **fields)


def test_a_key_has_kafkas_bytes() -> None:
    assert encode_key("txn-1") == bytes.fromhex("0000 0005 74786e2d31")
    assert decode_key(encode_key("txn-1")) == "txn-1"


def test_a_value_of_version_1_has_kafkas_bytes() -> None:
    assert len(SAMPLE_V1) == 61
    assert encode_value(sample(version=2)) == SAMPLE_V1
    assert decode_value(SAMPLE_V1) == sample(version=2)


def test_a_value_of_version_0_is_read() -> None:
    assert len(SAMPLE_V0) == 52
    assert decode_value(SAMPLE_V0) == sample(previous=-1)


def test_an_empty_transaction_has_null_partitions_and_a_complete_one_an_empty_list() -> None:
    empty = encode_value(transaction(State.EMPTY))
    complete = encode_value(transaction(State.COMPLETE_COMMIT))
    assert empty[16:18] == b"\x00\x00"
    assert complete[16:18] == b"\x04\x01"


def test_an_empty_transaction_with_partitions_is_never_written() -> None:
    with pytest.raises(AssertionError):
        encode_value(transaction(State.EMPTY, partitions={"t": (0,)}))


@pytest.mark.parametrize("state", [State.DEAD, State.PREPARE_EPOCH_FENCE])
def test_states_that_exist_only_in_memory_are_never_written(state: State) -> None:
    with pytest.raises(AssertionError):
        encode_value(transaction(state))


def test_the_last_producer_epoch_is_in_a_tag_that_kafka_skips() -> None:
    value = encode_value(transaction(State.EMPTY, epoch=8, last_epoch=7))
    assert value.endswith(bytes.fromhex("904e 02 0007"))
    decoded = decode_value(value)
    assert decoded is not None
    assert decoded.last_producer_epoch == 7


def test_a_tag_of_a_later_kafka_is_skipped() -> None:
    # Two tags: the previous producer id, and 3 (nextProducerEpoch of KIP-939), which no Kafka
    # writes yet.
    value = SAMPLE_V1[:46] + bytes.fromhex("02 0008 0000000000000fa0 0302 0001")
    decoded = decode_value(value)
    assert decoded is not None
    assert decoded == sample()


def test_a_key_or_value_of_a_later_kafka_is_skipped() -> None:
    assert decode_key(b"\x00\x01" + encode_key("x")[2:]) is None
    assert decode_value(b"\x00\x02" + SAMPLE_V1[2:]) is None


@pytest.mark.parametrize("length", range(len(SAMPLE_V1) - 1))
def test_a_truncated_value_is_a_wire_error(length: int) -> None:
    with pytest.raises(WireError):
        decode_value(SAMPLE_V1[:length])


def test_an_invalid_status_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        decode_value(SAMPLE_V1[:16] + b"\x06" + SAMPLE_V1[17:])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_wire_error(data: bytes) -> None:
    for prefix in (b"", b"\0\0", b"\0\1"):
        try:
            decode_value(prefix + data)
            decode_key(prefix + data)
        except WireError:
            pass


ids = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 2**15 - 1)
times = st.integers(-1, 2**63 - 1)
indexes = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=200).map(sorted).map(tuple)
partition_sets = st.dictionaries(st.text(min_size=1, max_size=200), indexes, max_size=5)


@st.composite
def metadatas(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(list(State)[:6]))
    return TransactionMetadata(
        draw(ids),
        draw(ids),
        draw(ids),
        draw(epochs),
        draw(epochs),
        draw(st.integers(-(2**31), 2**31 - 1)),
        state,
        NO_PARTITIONS if state is State.EMPTY else draw(partition_sets),
        draw(times),
        draw(times),
        draw(st.integers(0, 2)),
        draw(st.one_of(st.just(""), st.text(max_size=400))),
    )


@given(metadatas())
def test_the_hand_written_writer_agrees_with_the_declared_form(
    metadata: TransactionMetadata,
) -> None:
    partitions = [
        PartitionsSchema(topic=topic, partition_ids=list(found))
        for topic, found in metadata.partitions.items()
    ]
    form = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state == State.EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        client_transaction_version=metadata.client_transaction_version,
        last_producer_epoch=metadata.last_producer_epoch,
        administrator=metadata.administrator,
    )
    assert encode_value(metadata) == b"\x00\x01" + encode(form, 1)


@given(metadatas())
def test_a_value_reads_back(metadata: TransactionMetadata) -> None:
    assert decode_value(encode_value(metadata)) == metadata


@given(st.text(max_size=100))
def test_a_key_reads_back(transactional_id: str) -> None:
    assert decode_key(encode_key(transactional_id)) == transactional_id
