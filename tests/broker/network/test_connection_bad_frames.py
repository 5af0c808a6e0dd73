"""Bytes outside the protocol close their own connection only, with one log line."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fencepost
from fencepost.base.limits import MAX_REQUEST_BYTES
from fencepost.broker.node import Node
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import encode_request
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.conftest import Complaints, NewTopic
from tests.broker.raw import ClosedError, RawClient, frame_of
from tests.broker.requests import PRODUCE_VERSION, batch_of, produce, produce_request, read_topic

METADATA = MetadataRequest(topics=[])
HEADER = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1)


@pytest.fixture(autouse=True)
def served_on(other: RawClient) -> Iterator[None]:
    """Checks that a second client is still served after each test."""
    assert other.call(ApiKey.METADATA, 9, METADATA).brokers
    yield
    assert other.call(ApiKey.METADATA, 9, METADATA).brokers


# -- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_REQUEST_BYTES + 1, 2**31 - 1])
def test_a_frame_of_an_impossible_size_closes_the_connection(
    client: RawClient, complaints: Complaints, size: int
) -> None:
    client.send_bytes(struct.pack(">i", size))
    assert client.is_closed_by_broker()
    (line,) = complaints()
    assert str(size) in line


def test_the_maximum_frame_size_is_a_setting(complaints: Complaints) -> None:
    with (
        fencepost.Broker(config={"socket.request.max.bytes": 1000}) as strict,
        RawClient(strict.bootstrap_servers) as client,
    ):
        assert client.call(ApiKey.METADATA, 9, METADATA).brokers
        client.send_bytes(struct.pack(">i", 1001))
        assert client.is_closed_by_broker()
    assert len(complaints()) == 1


def test_the_requests_before_a_bad_frame_take_effect(
    client: RawClient, other: RawClient, new_topic: NewTopic, complaints: Complaints
) -> None:
    topic = new_topic()
    good = frame_of(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"good")))
    client.send_bytes(good + struct.pack(">i", -5))
    with pytest.raises(ClosedError):
        while True:
            client.read_frame()
    assert len(complaints()) == 1
    assert read_topic(other, topic) == [b"good"]


def test_a_bad_request_followed_by_a_bad_frame_is_logged_once(
    client: RawClient, complaints: Complaints
) -> None:
    unknown = struct.pack(">hhih", 999, 0, 1, -1)
    client.send_bytes(struct.pack(">i", len(unknown)) + unknown + struct.pack(">i", -5))
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1


@pytest.mark.parametrize("count", range(10))
def test_a_frame_that_is_too_short_for_a_header_closes_the_connection(
    client: RawClient, complaints: Complaints, count: int
) -> None:
    client.send_frame(HEADER[:count])
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1


def test_an_incomplete_frame_does_not_affect_other_clients(
    client: RawClient, other: RawClient, new_topic: NewTopic, complaints: Complaints
) -> None:
    topic = new_topic()
    frame = frame_of(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"late")))
    client.send_bytes(frame[: len(frame) // 2])
    assert produce(other, topic, batch_of(b"meanwhile")).error_code == 0
    client.send_bytes(frame[len(frame) // 2 :])
    assert client.reply(ApiKey.PRODUCE, PRODUCE_VERSION).responses
    assert read_topic(other, topic) == [b"meanwhile", b"late"]
    assert complaints() == []


def test_a_client_that_disconnects_in_the_middle_of_a_frame_is_not_logged(
    broker: fencepost.Broker, complaints: Complaints
) -> None:
    def count_connections(node: Node) -> int:
        assert node._server is not None
        return node._server.connection_count

    before = broker.call(count_connections)
    with RawClient(broker.bootstrap_servers) as leaving:
        leaving.send_bytes(struct.pack(">i", 1_000) + b"only this")
    while broker.call(count_connections) > before:
        pass
    assert complaints() == []


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [-1, 4, 7, 999, 32767, -32768])
def test_an_unknown_api_closes_the_connection(
    client: RawClient, complaints: Complaints, key: int
) -> None:
    client.send_frame(struct.pack(">hhih", key, 0, 1, -1))
    assert client.is_closed_by_broker()
    (line,) = complaints()
    assert str(key) in line


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.END_TXN])
def test_an_unsupported_version_closes_the_connection(
    client: RawClient, other: RawClient, complaints: Complaints, api: ApiKey
) -> None:
    client.send_frame(struct.pack(">hhih", api, API[api].max_version + 1, 1, -1))
    assert client.is_closed_by_broker()
    (line,) = complaints()
    assert API[api].name in line


def test_a_produce_version_that_is_only_advertised_closes_the_connection(
    client: RawClient, complaints: Complaints
) -> None:
    client.send_frame(struct.pack(">hhih", ApiKey.PRODUCE, 2, 1, -1))
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1


@pytest.mark.parametrize("client_id", [struct.pack(">h", 500) + b"short", b"\x00\x02\xff\xfe"])
def test_an_unreadable_client_id_closes_the_connection(
    client: RawClient, complaints: Complaints, client_id: bytes
) -> None:
    client.send_frame(struct.pack(">hhi", ApiKey.METADATA, 1, 1) + client_id)
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1


def test_a_client_without_a_client_id_is_served(client: RawClient) -> None:
    client.send_bytes(b"".join(encode_request(ApiKey.METADATA, 9, 5, None, METADATA)))
    assert client.reply(ApiKey.METADATA, 9, 5).brokers


# -- bodies ----------------------------------------------------------------------------------------


def test_every_truncation_of_a_request_closes_the_connection(
    broker: fencepost.Broker, complaints: Complaints
) -> None:
    topics = [MetadataRequestTopic(name="some-topic")]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    body = frame_of(ApiKey.METADATA, 9, request)[4:]
    for count in range(len(body)):
        with RawClient(broker.bootstrap_servers) as cut:
            cut.send_frame(body[:count])
            assert cut.is_closed_by_broker(), f"{count} of {len(body)} bytes got a reply"
    assert len(complaints()) == len(body)


def test_unknown_tagged_fields_are_skipped(client: RawClient) -> None:
    tags = b"\x02" + b"\x63\x03abc" + b"\x64\x00"
    in_header = HEADER + tags
    in_body = b"\x02" + b"\x0bsome-topic" + tags + b"\x00\x00" + b"\x00" + tags
    client.send_frame(in_header + in_body)
    reply = client.reply(ApiKey.METADATA, 9, 1)
    assert reply.topics[0].name == "some-topic"


# -- random bytes ----------------------------------------------------------------------------------

_any_broker = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_any_broker
@given(body=st.binary(max_size=200))
def test_random_bytes_in_a_frame_never_disturb_the_broker(
    broker: fencepost.Broker, other: RawClient, body: bytes
) -> None:
    with RawClient(broker.bootstrap_servers) as random_client:
        random_client.send_frame(body)
        assert other.call(ApiKey.METADATA, 9, METADATA).brokers


@_any_broker
@given(key=st.sampled_from(sorted(API)), offset=st.integers(0, 6), body=st.binary(max_size=100))
def test_a_valid_header_followed_by_random_bytes_never_disturbs_the_broker(
    broker: fencepost.Broker, other: RawClient, key: ApiKey, offset: int, body: bytes
) -> None:
    version = min(API[key].min_version + offset, API[key].max_version)
    tags = b"\x00" if API[key].is_flexible(version) else b""
    with RawClient(broker.bootstrap_servers) as random_client:
        random_client.send_frame(struct.pack(">hhih", key, version, 1, -1) + tags + body)
        assert other.call(ApiKey.METADATA, 9, METADATA).brokers


@_any_broker
@given(data=st.data())
def test_a_valid_request_with_one_byte_changed_never_disturbs_the_broker(
    broker: fencepost.Broker, other: RawClient, data: st.DataObject
) -> None:
    frame = bytearray(
        frame_of(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("changed", batch_of(b"value")))
    )
    place = data.draw(st.integers(4, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    with RawClient(broker.bootstrap_servers) as random_client:
        random_client.send_bytes(bytes(frame))
        assert other.call(ApiKey.METADATA, 9, METADATA).brokers


def test_bytes_of_another_protocol_close_the_connection(
    client: RawClient, complaints: Complaints
) -> None:
    client.send_bytes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1
