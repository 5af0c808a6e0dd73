"""Administrative requests: describe the cluster, create and delete topics.

Results are small view classes, so callers do not depend on message formats. Topic ids are 16 raw
bytes (`base.ids.topic_id_text` formats them as Kafka's tools do), times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.calls import (
    UNKNOWN,
    AnyBroker,
    Attempt,
    Controller,
    Core,
    Outcome,
    call_all_brokers,
    call_leaders,
    call_one,
    error_code,
    group_by_topic,
    only,
    refresh_metadata,
)
from fencepost.client.options import Endpoint
from fencepost.client.reactions import Reaction
from fencepost.client.steps import Reply, Steps
from fencepost.client.transactions import coordinator_of
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencepost.wire.forms.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicState,
)
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from fencepost.wire.forms.describe_log_dirs import DescribeLogDirsRequest
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from fencepost.wire.forms.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from fencepost.wire.forms.metadata import MetadataResponseTopic
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

DEFAULT: Final = -1
"""The broker's default number of partitions or replicas (KIP-464)."""


class ResourceType(IntEnum):
    """The kind of resource that a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition of a topic. A leader of -1 means that it has no leader."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionView, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Brokers and, if requested, topics."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Endpoint]
    topics: Mapping[str, TopicView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A partition's state of one producer. A start offset of -1 means no open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One entry of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionView:
    """The coordinator's description of one transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]
    client_id: str | None = None
    """Of the client that last spoke for the id; None if unknown. Only fencepost has it."""
    client_host: str | None = None
    client_connection: str | None = None
    """Whether that client's connection to the coordinator is "connected", "gone" or "unknown"; None
    from a broker that does not tell, which are all but fencepost's."""
    client_gone_at_ms: int | None = None
    """When that connection was closed, if it was."""
    administrator: str | None = None
    """Who ended its last transaction, or fenced it, with `fencepost txn`; None if nobody did, and
    from a broker that does not tell."""


# The cluster.


def describe_cluster(core: Core) -> Steps[ClusterView]:
    """Returns the brokers of the cluster."""
    request = DescribeClusterRequest()
    reply = yield from call_one(core, AnyBroker(), ApiKey.DESCRIBE_CLUSTER, request, error_code)
    form: DescribeClusterResponse = reply.form
    brokers = {broker.broker_id: Endpoint(broker.host, broker.port) for broker in form.brokers}
    return ClusterView(form.cluster_id, form.controller_id, brokers)


def metadata(
    core: Core,
    topics: Collection[str] | None = None,
    *,
    missing_ok: bool = False,
    known_missing: Collection[str] = (),
) -> Steps[ClusterView]:
    """Returns brokers and topics; None means all topics.

    A topic that stays unknown for UNKNOWN_TOPIC_PATIENCE_MS is an error. With `missing_ok` it is
    left out instead, and a topic in `known_missing` is left out at once.
    """
    attempt = Attempt(core, ApiKey.METADATA, "")
    while True:
        form = yield from refresh_metadata(core, topics, attempt)
        found = form.topics
        if missing_ok:
            found = [
                topic
                for topic in form.topics
                if topic.error_code not in UNKNOWN
                or not (
                    topic.name in known_missing or attempt.is_missing_for_long(topic.error_code)
                )
            ]
        verdicts = [
            attempt.judge(ApiKey.METADATA, topic.error_code, about=f"topic {topic.name!r}")
            for topic in found
            if topics is not None
        ]
        if all(verdict is Reaction.SUCCEED for verdict in verdicts):
            break
        yield from attempt.pause()
    views = {view.name: view for view in map(_topic_view, found)}
    brokers = {broker.node_id: Endpoint(broker.host, broker.port) for broker in form.brokers}
    return ClusterView(form.cluster_id, form.controller_id, brokers, views)


def find_topic(core: Core, name: str) -> Steps[TopicView | None]:
    """Returns a topic as one broker describes it, or None; for callers that then create it."""
    attempt = Attempt(core, ApiKey.METADATA, f"topic {name!r}")
    while True:
        form = yield from refresh_metadata(core, [name], attempt)
        (topic,) = form.topics
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if attempt.judge(ApiKey.METADATA, topic.error_code) is Reaction.SUCCEED:
            return _topic_view(topic)
        yield from attempt.pause()


def _topic_view(topic: MetadataResponseTopic) -> TopicView:
    partitions = (
        PartitionView(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
        )
        for p in topic.partitions
    )
    ordered = tuple(sorted(partitions, key=lambda p: p.index))
    return TopicView(topic.name or "", topic.topic_id, topic.is_internal, ordered)


# Topics.


def create_topics(
    core: Core, topics: Collection[NewTopic], *, exist_ok: bool = False
) -> Steps[None]:
    """Creates topics and waits until Metadata shows a leader for every partition."""
    pending = {topic.name: topic for topic in topics}
    attempt = Attempt(core, ApiKey.CREATE_TOPICS, "")
    accepted = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS} if exist_ok else {ErrorCode.NONE}

    def code_of(form: CreateTopicsResponse) -> tuple[int, str | None]:
        done = [result.name for result in form.topics if result.error_code in accepted]
        for name in done:
            pending.pop(name, None)
        for result in form.topics:
            if result.error_code not in accepted:
                attempt.about = f"topic {result.name!r}"
                return result.error_code, result.error_message
        return 0, None

    names = list(pending)
    while pending:
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in pending.values()],
            timeout_ms=core.options.request_timeout_ms,
        )
        yield from call_one(
            core, Controller(), ApiKey.CREATE_TOPICS, request, code_of, attempt=attempt
        )
    yield from _await_leaders(core, names, attempt)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _await_leaders(core: Core, names: Collection[str], attempt: Attempt) -> Steps[None]:
    while True:
        form = yield from refresh_metadata(core, names, attempt)
        waiting = [
            topic.name
            for topic in form.topics
            if topic.error_code or any(p.leader_id < 0 for p in topic.partitions)
        ]
        if not waiting:
            return
        attempt.last = f"no leader yet for topic {waiting[0]!r}"
        yield from attempt.pause()


def delete_topics(core: Core, names: Collection[str]) -> Steps[None]:
    """Deletes topics; the brokers remove the data later."""
    attempt = Attempt(core, ApiKey.DELETE_TOPICS, "")
    for name in names:
        attempt.about = f"topic {name!r}"
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)],
            timeout_ms=core.options.request_timeout_ms,
        )
        yield from call_one(
            core,
            Controller(),
            ApiKey.DELETE_TOPICS,
            request,
            only("responses"),
            attempt=attempt,
        )
    core.routes.forget_topics(names)


# Directories.


def log_dirs(core: Core) -> Steps[list[str]]:
    """Returns the data directories of a broker that answers."""
    request = DescribeLogDirsRequest(topics=[])
    reply = yield from call_one(core, AnyBroker(), ApiKey.DESCRIBE_LOG_DIRS, request, error_code)
    return [result.log_dir for result in reply.form.results]


# Transactions.


def describe_producers(
    core: Core, partitions: Collection[TopicPartition]
) -> Steps[dict[TopicPartition, list[ActiveProducer]]]:
    """Returns the producers of each partition, with or without an open transaction."""
    wanted = dict.fromkeys(partitions)
    api = ApiKey.DESCRIBE_PRODUCERS
    return (yield from call_leaders(core, api, wanted, producers_request, read_producers))


def producers_request(wanted: Mapping[TopicPartition, None]) -> DescribeProducersRequest:
    """Returns the request for the producers of these partitions."""
    return DescribeProducersRequest(
        topics=[
            TopicRequest(name=topic, partition_indexes=indexes)
            for topic, indexes in group_by_topic(wanted).items()
        ]
    )


def read_producers(reply: Reply) -> Iterable[Outcome[list[ActiveProducer]]]:
    """Reads the reply of one leader."""
    for topic in reply.form.topics:
        for p in topic.partitions:
            producers = [
                ActiveProducer(
                    state.producer_id,
                    state.producer_epoch,
                    state.last_sequence,
                    state.last_timestamp,
                    state.coordinator_epoch,
                    state.current_txn_start_offset,
                )
                for state in p.active_producers
            ]
            partition = TopicPartition(topic.name, p.partition_index)
            yield Outcome(partition, p.error_code, producers, p.error_message)


def list_transactions(
    core: Core,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> Steps[list[ListedTransaction]]:
    """Lists the transactional ids of all coordinators that match the filters."""
    request = transactions_request(states, producer_ids, longer_than_ms, pattern)
    replies = yield from call_all_brokers(core, ApiKey.LIST_TRANSACTIONS, request, error_code)
    return read_transactions(replies)


def transactions_request(
    states: Collection[str], producer_ids: Collection[int], longer_than_ms: int, pattern: str | None
) -> ListTransactionsRequest:
    """Returns the request for the transactional ids that match all filters."""
    return ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern,
    )


def read_transactions(
    replies: Mapping[int, ListTransactionsResponse],
) -> list[ListedTransaction]:
    """Reads the replies of brokers, by their ids."""
    return [
        ListedTransaction(t.transactional_id, t.producer_id, t.transaction_state, node_id)
        for node_id, form in replies.items()
        for t in form.transaction_states
    ]


def describe_transactions(
    core: Core, transactional_ids: Collection[str]
) -> Steps[dict[str, TransactionView | None]]:
    """Describes each id; None for an id that was never used or has expired."""
    found: dict[str, TransactionView | None] = {}
    for transactional_id in transactional_ids:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        reply = yield from call_one(
            core,
            coordinator_of(transactional_id),
            ApiKey.DESCRIBE_TRANSACTIONS,
            request,
            _code_of_transaction,
            about=f"{transactional_id!r}",
        )
        found[transactional_id] = transaction_view(reply.form.transaction_states[0])
    return found


def _code_of_transaction(form: DescribeTransactionsResponse) -> tuple[int, str | None]:
    code = form.transaction_states[0].error_code
    # A missing id is a valid answer here, not an error.
    return (0 if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else code), None


def transaction_view(state: TransactionState) -> TransactionView | None:
    """Reads one entry of a reply; None if it is an error."""
    if state.error_code:
        return None
    return TransactionView(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        start_ms=state.transaction_start_time_ms,
        partitions=tuple(
            TopicPartition(topic.topic, index)
            for topic in state.topics
            for index in sorted(topic.partitions)
        ),
        client_id=state.client_id,
        client_host=state.client_host,
        client_connection=state.client_connection,
        client_gone_at_ms=state.client_gone_at_ms if state.client_gone_at_ms >= 0 else None,
        administrator=state.administrator,
    )


def write_abort_marker(
    core: Core,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> Steps[None]:
    """Ends a transaction on one partition with WriteTxnMarkers, without its coordinator.

    The marker has the epochs that the partition knows, as that of kafka-transactions.sh; a
    partition without a marker of this producer has no coordinator epoch, and gets 0.
    """

    def build(wanted: Mapping[TopicPartition, None]) -> WriteTxnMarkersRequest:
        topics = [
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in group_by_topic(wanted).items()
        ]
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=topics,
            coordinator_epoch=max(0, coordinator_epoch),
        )
        return WriteTxnMarkersRequest(markers=[marker])

    yield from call_leaders(
        core, ApiKey.WRITE_TXN_MARKERS, {partition: None}, build, _read_marker_codes
    )


def _read_marker_codes(reply: Reply) -> Iterable[Outcome[None]]:
    for marker in reply.form.markers:
        for topic in marker.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                yield Outcome(partition, p.error_code, None)
