"""The records of the metadata log, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import WireError
from fencepost.records.metadata_log import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)

ID = bytes(range(16))

ONE_OF_EACH: list[MetadataRecord] = [
    RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=ID,
        broker_epoch=12,
        end_points=[BrokerEndpoint(name="PLAINTEXT", host="::1", port=65535)],
        features=[BrokerFeature(name="f", min_supported_version=0, max_supported_version=2)],
        rack="r",
        fenced=False,
        in_controlled_shutdown=True,
        log_dirs=[ID],
    ),
    UnregisterBrokerRecord(broker_id=1, broker_epoch=12),
    TopicRecord(name="orders", topic_id=ID),
    PartitionRecord(
        partition_id=3,
        topic_id=ID,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    ),
    ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=None),
    PartitionChangeRecord(partition_id=3, topic_id=ID, leader=1, isr=[1]),
    RemoveTopicRecord(topic_id=ID),
    FeatureLevelRecord(name="transaction.version", feature_level=2),
    ProducerIdsRecord(broker_id=1, broker_epoch=12, next_producer_id=1000),
    BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, fenced=-1),
    BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, in_controlled_shutdown=1),
    NoOpRecord(),
    UserScramCredentialRecord(
        name="alice",
        mechanism=2,
        salt=b"salt",
        stored_key=b"stored",
        server_key=b"server",
        iterations=8192,
    ),
    RemoveUserScramCredentialRecord(name="alice", mechanism=1),
]


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: type(record).__name__)
def test_a_record_reads_back(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    ("record", "text"),
    [
        # Lengths are one more than the number they stand for; each body ends with its count of
        # tags.
        (TopicRecord(name="t", topic_id=ID), "01 02 00" + "02 74" + ID.hex() + "00"),
        (RemoveTopicRecord(topic_id=ID), "01 09 00" + ID.hex() + "00"),
        (NoOpRecord(), "01 14 00 00"),
        (
            UserScramCredentialRecord(
                name="u",
                mechanism=1,
                salt=b"\x0a\x0b",
                stored_key=b"\x0c",
                server_key=b"\x0d",
                iterations=4096,
            ),
            "01 0b 00 02 75 01 03 0a0b 02 0c 02 0d 00001000 00",
        ),
        (RemoveUserScramCredentialRecord(name="u", mechanism=2), "01 16 00 02 75 02 00"),
        (
            FeatureLevelRecord(name="metadata.version", feature_level=30),
            "01 0c 00 11" + b"metadata.version".hex() + "001e 00",
        ),
        (
            ConfigRecord(resource_type=4, resource_name="", name="a", value=None),
            "01 04 00 04 01 02 61 00 00",
        ),
        (
            ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=1000),
            "01 0f 00 00000001 0000000000000005 00000000000003e8 00",
        ),
        (
            PartitionRecord(
                partition_id=2,
                topic_id=ID,
                replicas=[1],
                isr=[1],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            ),
            "01 03 01 00000002" + ID.hex() + "02 00000001 02 00000001 01 01 00000001"
            "00000000 00000000 01 00",
        ),
        (
            PartitionChangeRecord(partition_id=2, topic_id=ID, leader=1),
            "01 05 00 00000002" + ID.hex() + "01 01 04 00000001",
        ),
        (
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, fenced=-1),
            "01 11 00 00000001 000000000000000c 01 00 01 ff",
        ),
        (
            # Kafka writes version 1 for a controlled shutdown, and version 0 for a fenced broker.
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, in_controlled_shutdown=1),
            "01 11 01 00000001 000000000000000c 01 01 01 01",
        ),
        (
            RegisterBrokerRecord(
                broker_id=1, incarnation_id=ID, broker_epoch=12, in_controlled_shutdown=True
            ),
            "01 00 03 00000001 00" + ID.hex() + "000000000000000c 01 01 00 01 01 00",
        ),
        (
            PartitionChangeRecord(partition_id=2, topic_id=ID, isr=[3], leader=-1, replicas=[2, 3]),
            "01 05 00 00000002" + ID.hex() + "03 00 05 02 00000003 01 04 ffffffff"
            "02 09 03 00000002 00000003",
        ),
    ],
)
def test_the_bytes_match_the_published_schema(record: MetadataRecord, text: str) -> None:
    assert encode_record(record).hex() == bytes.fromhex(text).hex()


@pytest.mark.parametrize(
    "text", ["", "01", "01 02", "02 02 00", "01 63 00 00", "01 02 07 00", "8080"]
)
def test_an_unknown_or_truncated_record_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode_record(bytes.fromhex(text))


@given(st.binary(max_size=80), st.sampled_from([0, 2, 3, 4, 5, 9, 11, 12, 15, 17, 22]))
def test_random_bytes_are_a_record_or_a_wire_error(body: bytes, record_type: int) -> None:
    try:
        record = decode_record(bytes((1, record_type, 0)) + body)
    except WireError:
        return
    assert type(record).__name__.endswith("Record")
