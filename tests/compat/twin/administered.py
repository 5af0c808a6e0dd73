"""Requests about topics and settings, in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_configs import AlterableConfig as LegacyConfig
from fencepost.wire.forms.alter_configs import AlterConfigsRequest
from fencepost.wire.forms.alter_configs import AlterConfigsResource as LegacyResource
from fencepost.wire.forms.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from fencepost.wire.forms.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.compat.twin.talk import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
UNKNOWN_ID: Final = bytes(15) + b"\x77"


def new_topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    *,
    settings: Mapping[str, str | None] | None = None,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in (settings or {}).items()],
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in assignments
        ],
    )


def create(*topics: CreatableTopic, validate_only: bool = False) -> Ask:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=10_000, validate_only=validate_only
    )
    return Ask(ApiKey.CREATE_TOPICS, request)


Named = str | bytes | tuple[str | None, bytes] | None
"""A topic by its name, by its id, by both or by neither."""


def name_and_id(topic: Named) -> tuple[str | None, bytes]:
    if isinstance(topic, tuple):
        return topic
    return (None, topic) if isinstance(topic, bytes) else (topic, bytes(16))


def delete(*topics: Named) -> Ask:
    named = [name_and_id(topic) for topic in topics]
    states = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in named]
    return Ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=states, timeout_ms=10_000))


def grow(
    *topics: tuple[str, int], assignments: Sequence[Sequence[int]] | None = None, **more: Any
) -> Ask:
    wanted = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else [CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments],
        )
        for name, count in topics
    ]
    request = CreatePartitionsRequest(topics=wanted, timeout_ms=10_000, **more)
    return Ask(ApiKey.CREATE_PARTITIONS, request)


def alter(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> Ask:
    """IncrementalAlterConfigs; each change is (setting, operation, value)."""
    configs = [AlterableConfig(name=k, config_operation=op, value=v) for k, op, v in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return Ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)


def replace(kind: int, name: str, settings: Mapping[str, str | None]) -> Ask:
    """AlterConfigs, which forgets what it does not name."""
    configs = [LegacyConfig(name=k, value=v) for k, v in settings.items()]
    resource = LegacyResource(resource_type=kind, resource_name=name, configs=configs)
    return Ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest(resources=[resource]))


def settings_of(
    kind: int, name: str, keys: Sequence[str] | None = None, *, synonyms: bool = False
) -> Ask:
    wanted = DescribeConfigsResource(
        resource_type=kind,
        resource_name=name,
        configuration_keys=None if keys is None else list(keys),
    )
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=synonyms)
    return Ask(ApiKey.DESCRIBE_CONFIGS, request)


def metadata(
    *topics: Named, everything: bool = False, create_missing: bool = False, **more: Any
) -> Ask:
    named = [name_and_id(topic) for topic in topics]
    wanted = [MetadataRequestTopic(name=name, topic_id=topic_id) for name, topic_id in named]
    request = MetadataRequest(
        topics=None if everything else wanted, allow_auto_topic_creation=create_missing, **more
    )
    return Ask(ApiKey.METADATA, request)
