"""ApiVersions: how a client and a broker agree on versions."""

from __future__ import annotations

import struct

import pytest
from kio.static.constants import EntityType

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.schema import OUR_CLIENT
from tests.broker.conftest import Complaints
from tests.broker.raw import RawClient
from tests.broker.requests import create_topic
from tests.transactions.wire import WireProducer
from tests.wire.kio_oracle import kio_class, kio_read

REPLY_HEADER_BYTES = 5
"""The correlation id, and no tagged fields."""

KNOWN = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_an_unknown_version_gets_a_reply_in_version_0(
    client: RawClient, complaints: Complaints, version: int
) -> None:
    client.send_frame(
        struct.pack(">hhih", ApiKey.API_VERSIONS, version, 7, -1) + b"from the future"
    )
    reply = client.read_frame()
    correlation_id, error, count, key, lowest, highest = struct.unpack(">ihihhh", reply)
    assert (correlation_id, error) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert (count, key, lowest, highest) == (1, ApiKey.API_VERSIONS, 0, 5)
    assert client.call(ApiKey.API_VERSIONS, 4, KNOWN).error_code == ErrorCode.NONE
    assert complaints() == []


def test_a_frame_that_ends_before_its_correlation_id_closes_the_connection(
    client: RawClient, complaints: Complaints
) -> None:
    client.send_frame(struct.pack(">hhh", ApiKey.API_VERSIONS, 99, 0))
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1.0"), ("raw", ""), ("ra w", "1.0"), ("-raw", "1.0"), ("raw", "1\n")],
)
def test_an_invalid_client_software_name_is_an_invalid_request(
    client: RawClient, name: str, version: str
) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    assert client.call(ApiKey.API_VERSIONS, 3, request).error_code == ErrorCode.INVALID_REQUEST
    assert client.call(ApiKey.API_VERSIONS, 2, request).error_code == ErrorCode.NONE


def address_of(client: RawClient) -> tuple[str, int]:
    """The cluster and the only broker."""
    reply = client.call(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
    return reply.cluster_id, reply.brokers[0].node_id


def wanting(cluster_id: str | None, node_id: int) -> ApiVersionsRequest:
    return ApiVersionsRequest(
        client_software_name="raw",
        client_software_version="1.0",
        cluster_id=cluster_id,
        node_id=node_id,
    )


def test_a_client_that_reached_another_broker_or_cluster_bootstraps_again(
    client: RawClient,
) -> None:
    """KIP-1242: its address belongs to someone else by now."""
    cluster, node = address_of(client)
    for request in (wanting("another", node), wanting(cluster, node + 1)):
        reply = client.call(ApiKey.API_VERSIONS, 5, request)
        assert (reply.error_code, reply.api_keys) == (ErrorCode.REBOOTSTRAP_REQUIRED, [])
        assert client.call(ApiKey.API_VERSIONS, 4, request).error_code == ErrorCode.NONE
    for request in (wanting(cluster, node), wanting(None, -1)):
        reply = client.call(ApiKey.API_VERSIONS, 5, request)
        assert reply.error_code == ErrorCode.NONE
        assert reply.api_keys


def test_a_cluster_without_a_broker_is_an_invalid_request(client: RawClient) -> None:
    cluster, node = address_of(client)
    for request in (wanting(cluster, -1), wanting(None, node)):
        reply = client.call(ApiKey.API_VERSIONS, 5, request)
        assert reply.error_code == ErrorCode.INVALID_REQUEST


def test_transaction_version_2_is_advertised(client: RawClient) -> None:
    for version in (3, 4):
        reply = client.call(ApiKey.API_VERSIONS, version, KNOWN)
        features = {row.name: row.max_version_level for row in reply.finalized_features}
        assert features["transaction.version"] == 2
        assert reply.finalized_features_epoch >= 0


def test_a_feature_with_a_minimum_of_zero_is_hidden_from_clients_that_reject_it(
    client: RawClient,
) -> None:
    shown = {
        version: {
            row.name for row in client.call(ApiKey.API_VERSIONS, version, KNOWN).supported_features
        }
        for version in (3, 4)
    }
    assert "transaction.version" not in shown[3]
    assert "transaction.version" in shown[4]


def test_only_our_own_client_gets_tagged_fields_that_kafka_does_not_have(client: RawClient) -> None:
    create_topic(client, "tagged")
    # Open, because kio also refuses the time of a transaction that has not begun.
    WireProducer(client, "tags").initialise().send("tagged", b"x")
    request = DescribeTransactionsRequest(transactional_ids=["tags"])
    assert client.call(ApiKey.API_VERSIONS, 4, KNOWN).error_code == ErrorCode.NONE
    client.send(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    # kio stands for the clients that refuse tags which they do not know.
    strict = kio_class("describe_transactions", 0, EntityType.response)
    kio_read(strict, client.read_frame()[REPLY_HEADER_BYTES:])
    ours = ApiVersionsRequest(client_software_name=OUR_CLIENT, client_software_version="1.0")
    assert client.call(ApiKey.API_VERSIONS, 4, ours).error_code == ErrorCode.NONE
    (state,) = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
    assert (state.client_id, state.client_host) == ("raw", "127.0.0.1")
