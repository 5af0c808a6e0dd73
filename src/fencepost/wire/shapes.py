"""Converts messages whose shape changed: raises old ones to the newest shape, lowers new ones.

A form has the fields of all versions, and most versions differ only in absent fields, which read as
defaults. Nine APIs moved a field or changed its meaning. Code beyond the codec, in the broker and
in the client, sees them in the newest shape:

    FindCoordinator     0-3: one key                       4+: coordinator_keys, coordinators
    OffsetFetch         1-7: one group at the top          8+: groups
    LeaveGroup          0-2: one member                    3+: members
    DeleteTopics        1-5: topic_names                   6+: topics, by name or id
    AddPartitionsToTxn  0-3: one transaction at the top    4+: transactions
    Fetch               4-14: replica_id                   15+: replica_state (None for a consumer)
    Metadata            0: no topics means all of them     1+: null means all, none means none
    JoinGroup           0: one timeout                     1+: rebalance_timeout_ms beside it
    ApiVersions         0-3: no feature that begins at 0   4+: all (KAFKA-17011)

Raising modifies the form, which was just read, and leaves the old fields at their defaults.
Lowering creates a new form: the caller may send the same one to another broker at another version.
Topic names and topic ids are not a matter of shape: the version decides which is filled in, and the
metadata has the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.fetch import FetchRequest, ReplicaState
from fencepost.wire.forms.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from fencepost.wire.forms.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from fencepost.wire.schema import constructor

if TYPE_CHECKING:
    from fencepost.wire.forms.api_versions import ApiVersionsResponse
    from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupResponse
    from fencepost.wire.forms.metadata import MetadataRequest

NONE: Final = ErrorCode.NONE
T = TypeVar("T")

Change = Callable[[Any], Any]
Changes = Mapping[ApiKey, tuple[tuple[int, Change], ...]]
"""The changes of each API, each with the first version that no longer needs it; the first that
applies is made."""


def _changed(form: T, **values: Any) -> T:
    """A copy of the form with some fields replaced."""
    fields: tuple[Any, ...] = form.form_fields  # type: ignore[attr-defined]
    return type(form)(**{f.name: getattr(form, f.name) for f in fields} | values)


def _only(items: list[T], what: str) -> T:
    """The single item that an old version has room for."""
    assert len(items) == 1, f"{what} holds {len(items)} where the version has room for one"
    return items[0]


# FindCoordinator


def _raise_find_coordinator_request(form: FindCoordinatorRequest) -> FindCoordinatorRequest:
    form.coordinator_keys, form.key = [form.key], ""
    return form


def _lower_find_coordinator_request(form: FindCoordinatorRequest) -> FindCoordinatorRequest:
    key = _only(form.coordinator_keys, "coordinator_keys")
    return FindCoordinatorRequest(key=key, key_type=form.key_type)


def _raise_find_coordinator_response(form: FindCoordinatorResponse) -> FindCoordinatorResponse:
    """An old response does not repeat the key; the caller has it."""
    found = Coordinator(
        node_id=form.node_id,
        host=form.host,
        port=form.port,
        error_code=form.error_code,
        error_message=form.error_message,
    )
    return FindCoordinatorResponse(throttle_time_ms=form.throttle_time_ms, coordinators=[found])


def _lower_find_coordinator_response(form: FindCoordinatorResponse) -> FindCoordinatorResponse:
    found = _only(form.coordinators, "coordinators")
    return FindCoordinatorResponse(
        throttle_time_ms=form.throttle_time_ms,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


# OffsetFetch


def _raise_offset_fetch_request(form: OffsetFetchRequest) -> OffsetFetchRequest:
    group = OffsetFetchRequestGroup(group_id=form.group_id, topics=None)
    if form.topics is not None:
        group.topics = [_copied(topic, OffsetFetchRequestTopics) for topic in form.topics]
    form.groups = [group]
    form.group_id, form.topics = "", []
    return form


def _lower_offset_fetch_request(form: OffsetFetchRequest) -> OffsetFetchRequest:
    group = _only(form.groups, "groups")
    lowered = OffsetFetchRequest(
        group_id=group.group_id, topics=None, require_stable=form.require_stable
    )
    if group.topics is not None:
        lowered.topics = [_copied(topic, OffsetFetchRequestTopic) for topic in group.topics]
    return lowered


def _raise_offset_fetch_response(form: OffsetFetchResponse) -> OffsetFetchResponse:
    """An old response does not repeat the group; the caller has it."""
    topics = [
        OffsetFetchResponseTopics(
            name=t.name,
            partitions=[_copied(p, OffsetFetchResponsePartitions) for p in t.partitions],
        )
        for t in form.topics
    ]
    form.groups = [OffsetFetchResponseGroup(topics=topics, error_code=form.error_code)]
    form.topics, form.error_code = [], 0
    return form


def _lower_offset_fetch_response(form: OffsetFetchResponse) -> OffsetFetchResponse:
    group = _only(form.groups, "groups")
    topics = [
        OffsetFetchResponseTopic(
            name=t.name, partitions=[_copied(p, OffsetFetchResponsePartition) for p in t.partitions]
        )
        for t in group.topics
    ]
    return OffsetFetchResponse(
        throttle_time_ms=form.throttle_time_ms, topics=topics, error_code=group.error_code
    )


def _lower_offset_fetch_response_to_1(form: OffsetFetchResponse) -> OffsetFetchResponse:
    """Version 1 has no error of the group: every partition in the response gets it.

    So a handler that refuses a group must list the requested partitions.
    """
    lowered = _lower_offset_fetch_response(form)
    if lowered.error_code != NONE:
        for partition in (each for topic in lowered.topics for each in topic.partitions):
            partition.error_code = lowered.error_code
    return lowered


def _copied(form: Any, into: type[T]) -> T:
    """A struct of another name with the fields that both have."""
    fields: tuple[Any, ...] = into.form_fields  # type: ignore[attr-defined]
    return into(**{f.name: getattr(form, f.name) for f in fields if hasattr(form, f.name)})


# LeaveGroup


def _raise_leave_group_request(form: LeaveGroupRequest) -> LeaveGroupRequest:
    form.members, form.member_id = [MemberIdentity(member_id=form.member_id)], ""
    return form


def _lower_leave_group_request(form: LeaveGroupRequest) -> LeaveGroupRequest:
    member = _only(form.members, "members")
    return LeaveGroupRequest(group_id=form.group_id, member_id=member.member_id)


def _lower_leave_group_response(form: LeaveGroupResponse) -> LeaveGroupResponse:
    """The error of an old response is that of the group, or else that of the member."""
    error = form.error_code
    if error == NONE and form.members:
        error = _only(form.members, "members").error_code
    return LeaveGroupResponse(throttle_time_ms=form.throttle_time_ms, error_code=error)


# DeleteTopics


def _raise_delete_topics_request(form: DeleteTopicsRequest) -> DeleteTopicsRequest:
    form.topics = [DeleteTopicState(name=name) for name in form.topic_names]
    form.topic_names = []
    return form


def _lower_delete_topics_request(form: DeleteTopicsRequest) -> DeleteTopicsRequest:
    names = [topic.name for topic in form.topics if topic.name is not None]
    assert len(names) == len(form.topics), "a topic id cannot be sent before version 6"
    return DeleteTopicsRequest(topic_names=names, timeout_ms=form.timeout_ms)


# AddPartitionsToTxn


_transaction_to_add: Final = constructor(AddPartitionsToTxnTransaction)
_partitions_to_add: Final = constructor(AddPartitionsToTxnRequest)
_partitions_added: Final = constructor(AddPartitionsToTxnResponse)


def _raise_add_partitions_request(form: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest:
    transaction = _transaction_to_add(
        transactional_id=form.v3_and_below_transactional_id,
        producer_id=form.v3_and_below_producer_id,
        producer_epoch=form.v3_and_below_producer_epoch,
        topics=form.v3_and_below_topics,
    )
    return _partitions_to_add(transactions=[transaction])


def _lower_add_partitions_request(form: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest:
    transaction = _only(form.transactions, "transactions")
    assert not transaction.verify_only, "verify_only cannot be sent before version 4"
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=transaction.topics,
    )


def _raise_add_partitions_response(form: AddPartitionsToTxnResponse) -> AddPartitionsToTxnResponse:
    """An old response does not repeat the transactional id; the caller has it."""
    result = AddPartitionsToTxnResult(topic_results=form.results_by_topic_v3_and_below)
    form.results_by_transaction, form.results_by_topic_v3_and_below = [result], []
    return form


def _lower_add_partitions_response(form: AddPartitionsToTxnResponse) -> AddPartitionsToTxnResponse:
    """An old response has errors of partitions only, so each must carry that of the request."""
    assert form.error_code == NONE, "there is no error of the whole before version 4"
    result = _only(form.results_by_transaction, "results_by_transaction")
    return _partitions_added(
        throttle_time_ms=form.throttle_time_ms, results_by_topic_v3_and_below=result.topic_results
    )


# Fetch


def _raise_fetch_request(form: FetchRequest) -> FetchRequest:
    if form.replica_id != -1:
        form.replica_state, form.replica_id = ReplicaState(replica_id=form.replica_id), -1
    return form


def _lower_fetch_request(form: FetchRequest) -> FetchRequest:
    if form.replica_state is None:
        return form
    return _changed(form, replica_id=form.replica_state.replica_id, replica_state=None)


# Metadata


def _raise_metadata_request(form: MetadataRequest) -> MetadataRequest:
    form.topics = form.topics or None
    return form


def _lower_metadata_request(form: MetadataRequest) -> MetadataRequest:
    assert form.topics != [], "version 0 cannot ask for no topic"
    return _changed(form, topics=form.topics or [])


# JoinGroup


def _raise_join_group_request(form: JoinGroupRequest) -> JoinGroupRequest:
    form.rebalance_timeout_ms = form.session_timeout_ms
    return form


def _lower_join_group_response(form: JoinGroupResponse) -> JoinGroupResponse:
    """Before version 7 the name of a missing protocol is empty."""
    if form.protocol_name is not None:
        return form
    return _changed(form, protocol_name="")


# ApiVersions


def _lower_api_versions_response(form: ApiVersionsResponse) -> ApiVersionsResponse:
    """Old Java clients fail on a feature whose range begins at 0."""
    if all(feature.min_version for feature in form.supported_features):
        return form
    shown = [feature for feature in form.supported_features if feature.min_version != 0]
    return _changed(form, supported_features=shown)


RAISE_REQUEST: Final[Changes] = {
    ApiKey.FIND_COORDINATOR: ((4, _raise_find_coordinator_request),),
    ApiKey.OFFSET_FETCH: ((8, _raise_offset_fetch_request),),
    ApiKey.LEAVE_GROUP: ((3, _raise_leave_group_request),),
    ApiKey.DELETE_TOPICS: ((6, _raise_delete_topics_request),),
    ApiKey.ADD_PARTITIONS_TO_TXN: ((4, _raise_add_partitions_request),),
    ApiKey.FETCH: ((15, _raise_fetch_request),),
    ApiKey.METADATA: ((1, _raise_metadata_request),),
    ApiKey.JOIN_GROUP: ((1, _raise_join_group_request),),
}
LOWER_REQUEST: Final[Changes] = {
    ApiKey.FIND_COORDINATOR: ((4, _lower_find_coordinator_request),),
    ApiKey.OFFSET_FETCH: ((8, _lower_offset_fetch_request),),
    ApiKey.LEAVE_GROUP: ((3, _lower_leave_group_request),),
    ApiKey.DELETE_TOPICS: ((6, _lower_delete_topics_request),),
    ApiKey.ADD_PARTITIONS_TO_TXN: ((4, _lower_add_partitions_request),),
    ApiKey.FETCH: ((15, _lower_fetch_request),),
    ApiKey.METADATA: ((1, _lower_metadata_request),),
}
RAISE_RESPONSE: Final[Changes] = {
    ApiKey.FIND_COORDINATOR: ((4, _raise_find_coordinator_response),),
    ApiKey.OFFSET_FETCH: ((8, _raise_offset_fetch_response),),
    ApiKey.ADD_PARTITIONS_TO_TXN: ((4, _raise_add_partitions_response),),
}
LOWER_RESPONSE: Final[Changes] = {
    ApiKey.FIND_COORDINATOR: ((4, _lower_find_coordinator_response),),
    ApiKey.OFFSET_FETCH: (
        (2, _lower_offset_fetch_response_to_1),
        (8, _lower_offset_fetch_response),
    ),
    ApiKey.LEAVE_GROUP: ((3, _lower_leave_group_response),),
    ApiKey.ADD_PARTITIONS_TO_TXN: ((4, _lower_add_partitions_response),),
    ApiKey.JOIN_GROUP: ((7, _lower_join_group_response),),
    ApiKey.API_VERSIONS: ((4, _lower_api_versions_response),),
}


def change_of(changes: Changes, api: ApiKey, version: int) -> Change | None:
    """The change of shape that a message of this version needs; None for the newest shape."""
    return next((change for below, change in changes.get(api, ()) if version < below), None)
