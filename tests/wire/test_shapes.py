"""Goal: handlers see messages in the newest shape, old clients in their own.

Method: a request or response in the newest shape is sent at each version and must come back in the
newest shape; the meaning of old bytes is spelled out where it is not that simple.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from fencepost.wire.compile import decode
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.api_versions import ApiVersionsResponse, SupportedFeatureKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.fetch import FetchRequest, ReplicaState
from fencepost.wire.forms.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupResponse
from fencepost.wire.forms.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

ADD = AddPartitionsToTxnRequest(
    transactions=[
        AddPartitionsToTxnTransaction(
            transactional_id="txn",
            producer_id=4000,
            producer_epoch=2,
            topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
        )
    ]
)
REQUESTS: list[tuple[ApiKey, Any]] = [
    (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=["g"])),
    (
        ApiKey.OFFSET_FETCH,
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id="g",
                    topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[1, 2])],
                )
            ]
        ),
    ),
    (ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])),
    (
        ApiKey.DELETE_TOPICS,
        DeleteTopicsRequest(
            topics=[DeleteTopicState(name="a"), DeleteTopicState(name="b")], timeout_ms=5
        ),
    ),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ADD),
    (ApiKey.FETCH, FetchRequest(max_wait_ms=5, replica_state=ReplicaState(replica_id=3))),
    (ApiKey.FETCH, FetchRequest(max_wait_ms=5)),
    (ApiKey.METADATA, MetadataRequest(topics=None)),
    (ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="t")])),
]


def sent_request(api: ApiKey, version: int, form: Any) -> Any:
    frame = memoryview(bytearray(b"".join(encode_request(api, version, 1, "c", form))))[4:]
    return decode_request(api, version, frame, read_request_header(frame).body_offset)


def sent_response(api: ApiKey, version: int, form: Any) -> Any:
    frame = memoryview(bytearray(b"".join(encode_response(api, version, 1, form))))[4:]
    return decode_response(api, version, frame)[1]


def body_of_response(api: ApiKey, version: int, form: Any) -> Any:
    """The response as an old client reads it, without raising."""
    data = b"".join(encode_response(api, version, 1, form))
    return decode(API[api].response, version, data[8 + API[api].response_header_version(version) :])


@pytest.mark.parametrize(("api", "form"), REQUESTS)
def test_a_request_arrives_in_the_newest_shape_from_every_version(api: ApiKey, form: Any) -> None:
    newest = API[api].max_version
    for version in range(API[api].min_version, newest + 1):
        if api is ApiKey.OFFSET_FETCH and version == newest:
            continue  # Version 10 has topic ids, which no shape can derive.
        assert sent_request(api, version, form) == form, version


def test_lowering_does_not_change_the_callers_form() -> None:
    before = repr(ADD)
    encode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 1, None, ADD)
    assert repr(ADD) == before


def test_null_topics_of_an_old_offset_fetch_mean_all_topics() -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert sent_request(ApiKey.OFFSET_FETCH, 2, request).groups[0].topics is None
    assert sent_request(ApiKey.OFFSET_FETCH, 8, request).groups[0].topics is None
    request.groups[0].topics = []
    assert sent_request(ApiKey.OFFSET_FETCH, 2, request).groups[0].topics == []


def test_an_empty_list_of_topics_means_all_topics_in_metadata_v0_only() -> None:
    nothing = memoryview(bytes(4))
    assert decode_request(ApiKey.METADATA, 0, nothing, 0).topics is None
    assert decode_request(ApiKey.METADATA, 1, nothing, 0).topics == []


def test_join_group_v0_has_one_timeout_for_session_and_rebalance() -> None:
    request = JoinGroupRequest(session_timeout_ms=9000, rebalance_timeout_ms=60000)
    assert sent_request(ApiKey.JOIN_GROUP, 0, request).rebalance_timeout_ms == 9000
    assert sent_request(ApiKey.JOIN_GROUP, 1, request).rebalance_timeout_ms == 60000


@pytest.mark.parametrize(
    ("api", "version", "form"),
    [
        (ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(coordinator_keys=["a", "b"])),
        (ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest()),
        (ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topics=[DeleteTopicState()])),
        (ApiKey.METADATA, 0, MetadataRequest(topics=[])),
    ],
)
def test_a_request_that_its_version_cannot_express_is_never_sent(
    api: ApiKey, version: int, form: Any
) -> None:
    with pytest.raises(AssertionError):
        encode_request(api, version, 1, None, form)


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_found_in_every_version(version: int) -> None:
    found = Coordinator(key="g", node_id=1, host="h", port=9092, error_message="none")
    response = FindCoordinatorResponse(coordinators=[found])
    read = sent_response(ApiKey.FIND_COORDINATOR, version, response).coordinators
    assert [(c.node_id, c.host, c.port, c.error_code) for c in read] == [(1, "h", 9092, 0)]


@pytest.mark.parametrize("version", range(1, 10))
def test_offsets_are_fetched_in_every_version(version: int) -> None:
    partition = OffsetFetchResponsePartitions(partition_index=3, committed_offset=42, metadata="m")
    topic = OffsetFetchResponseTopics(name="t", partitions=[partition])
    response = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])
    (group,) = sent_response(ApiKey.OFFSET_FETCH, version, response).groups
    assert group.topics == [topic]


def test_offset_fetch_v1_gets_the_group_error_in_each_partition() -> None:
    topic = OffsetFetchResponseTopics(name="t", partitions=[OffsetFetchResponsePartitions()])
    group = OffsetFetchResponseGroup(group_id="g", topics=[topic], error_code=16)
    response = OffsetFetchResponse(groups=[group])
    old = body_of_response(ApiKey.OFFSET_FETCH, 1, response)
    assert old.topics[0].partitions[0].error_code == 16
    newer = body_of_response(ApiKey.OFFSET_FETCH, 2, response)
    assert (newer.error_code, newer.topics[0].partitions[0].error_code) == (16, 0)


@pytest.mark.parametrize(("top", "member", "expected"), [(0, 0, 0), (0, 25, 25), (16, 0, 16)])
def test_leave_group_before_v3_has_one_error_for_group_and_member(
    top: int, member: int, expected: int
) -> None:
    response = LeaveGroupResponse(
        error_code=top, members=[MemberResponse(member_id="m", error_code=member)]
    )
    assert body_of_response(ApiKey.LEAVE_GROUP, 2, response).error_code == expected
    assert sent_response(ApiKey.LEAVE_GROUP, 3, response) == response


@pytest.mark.parametrize("version", range(6))
def test_results_of_added_partitions_are_read_in_every_version(version: int) -> None:
    partition = AddPartitionsToTxnPartitionResult(partition_index=1, partition_error_code=51)
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[partition])
    response = AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id="txn", topic_results=[topic])
        ]
    )
    read = sent_response(ApiKey.ADD_PARTITIONS_TO_TXN, version, response)
    assert read.results_by_transaction[0].topic_results == [topic]


def test_a_missing_protocol_is_an_empty_string_for_old_clients() -> None:
    response = JoinGroupResponse(protocol_name=None)
    assert body_of_response(ApiKey.JOIN_GROUP, 6, response).protocol_name == ""
    assert body_of_response(ApiKey.JOIN_GROUP, 7, response).protocol_name is None


def test_features_with_a_minimum_of_zero_are_listed_from_version_4() -> None:
    zero = SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2)
    one = SupportedFeatureKey(name="metadata.version", min_version=1, max_version=30)
    response = ApiVersionsResponse(supported_features=[zero, one])
    assert sent_response(ApiKey.API_VERSIONS, 3, response).supported_features == [one]
    assert sent_response(ApiKey.API_VERSIONS, 4, response).supported_features == [zero, one]
