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
from fencepost.broker.turns import Steps, fill, in_turns, run_in_turns, then
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
    from collections.abc import Mapping, Sequence

    from fencepost.broker.context import Context, Services
    from fencepost.broker.controller.controller import Outcome
    from fencepost.coordinator.metadata.state import MetadataState, PartitionState, Topic

FIRST_VERSION_WITH_IDS: Final = 12


def handle(request: MetadataRequest, context: Context) -> object:
    """Serves one request; see above."""
    if _has_early_ids(request, context):
        return _refuse_early_ids(request, context)
    answer = _Answer(request, context)
    return then(context.services.runtime, answer.steps(), answer.create_missing)


def _has_early_ids(request: MetadataRequest, context: Context) -> bool:
    """Whether there are ids before v12: v10 and v11 have a field that clients must leave empty."""
    if context.api_version >= FIRST_VERSION_WITH_IDS or not request.topics:
        return False
    return any(t.topic_id != ZERO_TOPIC_ID or t.name is None for t in request.topics)


def _refuse_early_ids(request: MetadataRequest, context: Context) -> MetadataResponse | Parked:
    def refuse(topic: MetadataRequestTopic) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name or "", topic_id=topic.topic_id, error_code=ErrorCode.INVALID_REQUEST
        )

    response = MetadataResponse()
    steps = fill(response.topics, request.topics or (), refuse)
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


class _Answer:
    """The reply to one request: each topic is looked up in its turn, and missing ones created."""

    def __init__(self, request: MetadataRequest, context: Context) -> None:
        self._request: Final = request
        self._context: Final = context
        self._topics: Final[dict[object, MetadataResponseTopic]] = {}
        """One entry per distinct id, or per distinct name if the request has no ids."""
        self._described = 0
        """Partitions of the last topic, if it was not described before."""
        self._missing: Final[list[str]] = []
        """The topics that do not exist, and that the broker may create for this client."""

    def steps(self) -> Steps:
        wanted = self._request.topics
        if wanted is None:
            yield from self._add_all()
            return
        only_ids = _by_ids(wanted)
        may_create = self._request.allow_auto_topic_creation and not only_ids
        for topic in wanted:
            key = topic.topic_id if only_ids or topic.name is None else topic.name
            if key not in self._topics and not (only_ids and key == ZERO_TOPIC_ID):
                self._topics[key] = (
                    self._by_name(key, may_create=may_create)
                    if isinstance(key, str)
                    else self._by_id(key)
                )
            yield self._elements()

    def _add_all(self) -> Steps:
        """All topics that this client may describe; the others are left out."""
        topics = self._context.services.metadata.topics
        for name in list(topics):
            if name in topics and self._context.may("DESCRIBE", TOPIC, name):
                self._topics[name] = self._describe(topics[name])
            yield self._elements()

    def _by_name(self, name: str, *, may_create: bool) -> MetadataResponseTopic:
        context = self._context
        if not context.authorize("DESCRIBE", TOPIC, name):
            return MetadataResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = context.services.metadata.topics.get(name)
        if topic is not None:
            return self._describe(topic)
        if refuse_name(name) is not None:
            return self._not_found(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        config = context.services.config
        if may_create and (config.auto_create_topics_enable or name in INTERNAL_TOPICS):
            if not may_create_topic(context, name):
                return self._not_found(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            self._missing.append(name)
        return self._not_found(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _by_id(self, topic_id: bytes) -> MetadataResponseTopic:
        topic = self._context.services.metadata.topics_by_id.get(topic_id)
        if topic is None:
            return MetadataResponseTopic(
                name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
        if not self._context.authorize("DESCRIBE", TOPIC, topic.name):
            # Clients that may not describe the topic do not get its name.
            return MetadataResponseTopic(
                name=None, topic_id=topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
        return self._describe(topic)

    def _elements(self) -> int:
        """The partitions of a topic that was not described before count, too."""
        count, self._described = self._described, 0
        return 1 + count

    def _describe(self, topic: Topic) -> MetadataResponseTopic:
        if topic.name not in self._context.services.follower.shown:
            self._described += len(topic.partitions)
        return self._with_operations(_describe_topic(self._context.services, topic))

    def _not_found(self, name: str, error: ErrorCode) -> MetadataResponseTopic:
        is_internal = name in INTERNAL_TOPICS
        return self._with_operations(
            MetadataResponseTopic(name=name, error_code=error, is_internal=is_internal)
        )

    def _with_operations(self, topic: MetadataResponseTopic) -> MetadataResponseTopic:
        """Copies the described topic, which other replies share."""
        if (
            not self._request.include_topic_authorized_operations
            or topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            or topic.name is None
        ):
            return topic
        return MetadataResponseTopic(
            error_code=topic.error_code,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=topic.partitions,
            topic_authorized_operations=authorized_operations(self._context, TOPIC, topic.name),
        )

    # -- the end ----------------------------------------------------------------------------------

    def create_missing(self) -> object:
        """Replies, or creates the missing topics first."""
        if not self._missing:
            return self._response()
        parked = Parked()
        services = self._context.services

        def created(outcomes: Sequence[Outcome]) -> None:
            steps = self._look_again({each.name: each.error for each in outcomes})
            run_in_turns(services.runtime, steps, lambda: parked.answer(self._response()))

        services.controller_port.auto_create(self._missing, created)
        return parked

    def _look_again(self, outcomes: Mapping[str, ErrorCode]) -> Steps:
        for name in self._missing:
            topic = self._context.services.metadata.topics.get(name)
            error = outcomes.get(name, ErrorCode.NONE)
            if topic is not None:
                self._topics[name] = self._describe(topic)
            elif error is not ErrorCode.NONE:
                self._topics[name] = self._not_found(name, error)
            yield self._elements()

    def _response(self) -> MetadataResponse:
        services = self._context.services
        operations = NOT_REQUESTED
        if self._request.include_cluster_authorized_operations:
            operations = cluster_operations(self._context)
        return MetadataResponse(
            brokers=_describe_brokers(services.metadata, self._context.listener),
            cluster_id=services.follower.cluster_id,
            controller_id=services.follower.controller_id,
            topics=list(self._topics.values()),
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


def _by_ids(wanted: Sequence[MetadataRequestTopic]) -> bool:
    return any(topic.topic_id != ZERO_TOPIC_ID for topic in wanted)


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
