"""Metadata (3): v0-13

Behaviour: the brokers, the controller and topics with their partitions and leaders. All topics for
           null (v0: for an empty list), none for an empty list, else those that are named. A topic
           that does not exist is created if the client and auto.create.topics.enable allow it, and
           is in the reply; in Kafka the client has to retry.
Versions:  v4 the client may forbid creation; v5 offline replicas; v7 leader epochs; v8 authorized
           operations (of the cluster up to v10); v9 flexible; v10 topic ids; v12 topics by id;
           v13 an error for the whole reply.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION,
           TOPIC_AUTHORIZATION_FAILED, LEADER_NOT_AVAILABLE (a partition that is not open yet, or
           could not be opened), INVALID_REQUEST (an id before v12), KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import INTERNAL_TOPICS, NO_NODE, ZERO_TOPIC_ID
from fencepost.base.topic_names import refuse_name
from fencepost.broker.authorization import (
    NOT_REQUESTED,
    TOPIC,
    authorized_operations,
    cluster_operations,
    may_create_topic,
)
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.broker.context import Context, Services
    from fencepost.broker.controller.controller import Outcome
    from fencepost.coordinator.metadata.state import MetadataState, PartitionState, Topic

FIRST_VERSION_WITH_IDS: Final = 12
DESCRIBED_AT_ONCE: Final = 1_000
"""Partitions that are described in one turn of the loop, at up to 10 microseconds each."""


def handle(request: MetadataRequest, context: Context) -> MetadataResponse | Parked:
    """Serves one request; see above."""
    if refused := _refuse_early_ids(request, context):
        return refused
    missing = _topics_to_create(request, context)
    if not missing:
        return _answer_in_turns(request, context, {})
    failed: dict[str, ErrorCode] = {
        name: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name in missing
        if not may_create_topic(context, name)
    }
    missing = [name for name in missing if name not in failed]
    if not missing:
        return _answer_in_turns(request, context, failed)
    parked = Parked()

    def created(outcomes: Sequence[Outcome]) -> None:
        failed.update((outcome.name, outcome.error) for outcome in outcomes if outcome.error)
        parked.answer(_answer(request, context, failed))

    context.services.controller_port.auto_create(missing, created)
    return parked


def _refuse_early_ids(request: MetadataRequest, context: Context) -> MetadataResponse | None:
    """Refuses ids before v12: v10 and v11 have a field for them that clients must leave empty."""
    if context.api_version >= FIRST_VERSION_WITH_IDS or not request.topics:
        return None
    if all(t.topic_id == ZERO_TOPIC_ID and t.name is not None for t in request.topics):
        return None
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                name=t.name or "", topic_id=t.topic_id, error_code=ErrorCode.INVALID_REQUEST
            )
            for t in request.topics
        ]
    )


def _answer_in_turns(
    request: MetadataRequest, context: Context, failed: dict[str, ErrorCode]
) -> MetadataResponse | Parked:
    """Describes many uncached topics over several turns of the loop, then replies in one.

    Those that the client may not describe are not looked at: the time would tell that they exist.
    """
    state, shown = context.services.metadata, context.services.follower.shown
    wanted = request.topics
    names = state.topics if wanted is None else [_name_of(topic, state) for topic in wanted]
    unseen = [name for name in names if name not in shown and context.may("DESCRIBE", TOPIC, name)]
    if sum(map(state.partition_count, unseen)) <= DESCRIBED_AT_ONCE:
        return _answer(request, context, failed)
    parked = Parked()

    def turn() -> None:
        left = DESCRIBED_AT_ONCE
        while unseen and left > 0:
            # A topic may have been deleted, or recreated, since.
            topic = state.topics.get(unseen.pop())
            if topic is not None:
                _describe_topic(context.services, topic)
                left -= len(topic.partitions)
        if unseen:
            context.services.runtime.call_later(0, turn)
        else:
            parked.answer(_answer(request, context, failed))

    turn()
    return parked


def _name_of(topic: MetadataRequestTopic, state: MetadataState) -> str:
    """The name of a topic that is requested by name or by id; empty for an unknown id."""
    return topic.name or state.topic_name(topic.topic_id) or ""


# -- which topics
# ----------------------------------------------------------------------------------------


def _topics_to_create(request: MetadataRequest, context: Context) -> list[str]:
    """The requested topics that do not exist, and that the broker may create for this client."""
    services = context.services
    if request.topics is None or not request.allow_auto_topic_creation or _by_ids(request.topics):
        return []
    state = services.metadata
    missing = dict.fromkeys(
        topic.name
        for topic in request.topics
        if topic.name is not None and topic.name not in state.topics
    )
    return [
        name
        for name in missing
        if (services.config.auto_create_topics_enable or name in INTERNAL_TOPICS)
        and refuse_name(name) is None
        and context.may("DESCRIBE", TOPIC, name)
    ]


# -- the reply
# ------------------------------------------------------------------------------------------


def _answer(
    request: MetadataRequest, context: Context, failed: dict[str, ErrorCode]
) -> MetadataResponse:
    services = context.services
    topics = (
        _all_topics(context)
        if request.topics is None
        else _named_topics(request.topics, context, failed)
    )
    if request.include_topic_authorized_operations:
        topics = [_with_operations(topic, context) for topic in topics]
    operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(context)
    return MetadataResponse(
        brokers=_describe_brokers(services.metadata, context.listener),
        cluster_id=services.follower.cluster_id,
        controller_id=services.follower.controller_id,
        topics=topics,
        cluster_authorized_operations=operations,
    )


def brokers_and_topic_names(context: Context) -> MetadataResponse:
    """What a reply with the error of a test's fault has of a healthy one."""
    services = context.services
    return MetadataResponse(
        brokers=_describe_brokers(services.metadata, context.listener),
        cluster_id=services.follower.cluster_id,
        controller_id=services.follower.controller_id,
        topics=[
            MetadataResponseTopic(name=name, topic_id=topic.topic_id)
            for name, topic in services.metadata.topics.items()
            if context.may("DESCRIBE", TOPIC, name)
        ],
    )


def _describe_brokers(metadata: MetadataState, listener: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(
            node_id=broker.node_id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
        )
        for broker in metadata.live_brokers()
        if (endpoint := broker.endpoint(listener)) is not None
    ]


def _all_topics(context: Context) -> list[MetadataResponseTopic]:
    """All topics that this client may describe; the others are left out."""
    services = context.services
    return [
        _describe_topic(services, topic)
        for name, topic in services.metadata.topics.items()
        if context.may("DESCRIBE", TOPIC, name)
    ]


def _named_topics(
    wanted: Sequence[MetadataRequestTopic], context: Context, failed: dict[str, ErrorCode]
) -> list[MetadataResponseTopic]:
    """One entry per distinct id, or per distinct name if the request has no ids."""
    found: dict[object, MetadataResponseTopic] = {}
    only_ids = _by_ids(wanted)
    for topic in wanted:
        if only_ids and topic.topic_id == ZERO_TOPIC_ID:
            continue
        if only_ids or topic.name is None:
            found.setdefault(topic.topic_id, _by_id(topic.topic_id, context))
        else:
            found.setdefault(topic.name, _by_name(topic.name, context, failed))
    return list(found.values())


def _by_ids(wanted: Sequence[MetadataRequestTopic]) -> bool:
    return any(topic.topic_id != ZERO_TOPIC_ID for topic in wanted)


def _by_name(name: str, context: Context, failed: dict[str, ErrorCode]) -> MetadataResponseTopic:
    if not context.authorize("DESCRIBE", TOPIC, name):
        return MetadataResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = context.services.metadata.topics.get(name)
    if topic is not None:
        return _describe_topic(context.services, topic)
    if refuse_name(name) is not None:
        return _not_found(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return _not_found(name, failed.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


def _not_found(name: str, error: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=name, error_code=error, is_internal=name in INTERNAL_TOPICS)


def _by_id(topic_id: bytes, context: Context) -> MetadataResponseTopic:
    topic = context.services.metadata.topics_by_id.get(topic_id)
    if topic is None:
        return MetadataResponseTopic(
            name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
        )
    if not context.authorize("DESCRIBE", TOPIC, topic.name):
        # Clients that may not describe the topic do not get its name.
        return MetadataResponseTopic(
            name=None, topic_id=topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    return _describe_topic(context.services, topic)


def _describe_topic(services: Services, topic: Topic) -> MetadataResponseTopic:
    """Describes a topic; cached until it changes, as clients request the same topics repeatedly."""
    shown = services.follower.shown
    found = shown.get(topic.name)
    if found is None:
        found = shown[topic.name] = MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=[
                _describe_partition(services, topic.name, index, partition)
                for index, partition in enumerate(topic.partitions)
            ],
        )
    return found


def _describe_partition(
    services: Services, topic: str, index: int, partition: PartitionState
) -> MetadataResponsePartition:
    replicas = list(partition.replicas)
    available = is_available(services, topic, index, partition)
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if available else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if available else NO_NODE,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=list(partition.isr),
        offline_replicas=offline_replicas(services, partition, available=available),
    )


def offline_replicas(
    services: Services, partition: PartitionState, *, available: bool
) -> list[int]:
    """The replicas on dead brokers, and this broker if it leads a partition that is not open."""
    unopened = services.config.node_id if not available else NO_NODE
    return [
        replica
        for replica in partition.replicas
        if not services.metadata.has_address(replica) or replica == unopened == partition.leader
    ]


def is_available(services: Services, topic: str, index: int, partition: PartitionState) -> bool:
    """Whether a partition has a leader: it is open here, or its broker is alive."""
    if partition.leader == services.config.node_id:
        return services.partitions.get(topic, index) is not None
    return services.metadata.has_address(partition.leader)


def _with_operations(topic: MetadataResponseTopic, context: Context) -> MetadataResponseTopic:
    """Copies the described topic, which other replies share."""
    if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED or topic.name is None:
        return topic
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=authorized_operations(context, TOPIC, topic.name),
    )
