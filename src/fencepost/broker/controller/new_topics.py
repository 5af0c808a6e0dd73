"""New topics: what a request leaves open comes from the broker's settings.

The internal topics have no open questions. The number of their partitions decides which of them
owns a group or a transactional id, so it is always that of the broker's settings and can never
change. Their replicas depend on the number of brokers: with three or more, each partition has three
and needs two of them alive, if the settings say nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from fencepost.broker.settings.config import BrokerConfig, check_topic_overrides, default_min_insync
from fencepost.broker.settings.tables import INTERNAL_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from fencepost.coordinator.metadata.decide import decide_create_topic, refuse_new_name
from fencepost.coordinator.metadata.events import CreateTopic, Decision, refuse
from fencepost.coordinator.metadata.state import MetadataState

INTERNAL_COUNTS: Final = {
    CONSUMER_OFFSETS_TOPIC: "offsets.topic.num.partitions",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.num.partitions",
}


class NewTopic(NamedTuple):
    """A topic to create; -1 stands for the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    settings: Sequence[tuple[str, str | None]] = ()


def decide_new_topic(
    state: MetadataState, config: BrokerConfig, wanted: NewTopic, topic_id: bytes
) -> Decision:
    """Creates or refuses a topic; `topic_id` is unused."""
    if refused := refuse_new_name(state, wanted.name):
        return refused
    settings = _read_settings(config, wanted)
    if isinstance(settings, Decision):
        return settings
    if wanted.name in INTERNAL_TOPICS:
        return _decide_internal(state, config, wanted, topic_id, settings)
    count = wanted.partition_count
    if count == -1 and not wanted.assignments:
        count = config.num_partitions
    event = CreateTopic(
        wanted.name,
        topic_id,
        count,
        wanted.replication_factor,
        wanted.assignments,
        settings,
        default_factor=min(config.default_replication_factor, config.broker_count),
    )
    return decide_create_topic(state, event)


def _read_settings(config: BrokerConfig, wanted: NewTopic) -> dict[str, str] | Decision:
    absent = sorted(name for name, value in wanted.settings if value is None)
    if absent:
        return refuse(ErrorCode.INVALID_CONFIG, f"Settings need values: {', '.join(absent)}.")
    settings = {name: value for name, value in wanted.settings if value is not None}
    try:
        check_topic_overrides(config, settings)
    except ConfigError as problem:
        return refuse(ErrorCode.INVALID_CONFIG, str(problem))
    return settings


def _decide_internal(
    state: MetadataState,
    config: BrokerConfig,
    wanted: NewTopic,
    topic_id: bytes,
    settings: Mapping[str, str],
) -> Decision:
    count = _internal_count(config, wanted.name)
    if wanted.assignments or wanted.partition_count not in (-1, count):
        return refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"{wanted.name} has {count} partitions, as set by {INTERNAL_COUNTS[wanted.name]}.",
        )
    factor = wanted.replication_factor
    if factor == -1:
        # The brokers of a new cluster register one after the other.
        factor = min(internal_factors(config)[wanted.name], max(1, len(state.brokers)))
    event = CreateTopic(
        wanted.name,
        topic_id,
        count,
        factor,
        settings={**_internal_settings(config, wanted.name), **settings},
    )
    return decide_create_topic(state, event)


def _internal_count(config: BrokerConfig, name: str) -> int:
    if name == CONSUMER_OFFSETS_TOPIC:
        return config.offsets_topic_num_partitions
    return config.transaction_state_log_num_partitions


def _internal_settings(config: BrokerConfig, name: str) -> dict[str, str]:
    if name == CONSUMER_OFFSETS_TOPIC:
        size = config.offsets_topic_segment_bytes
        settings = {"compression.type": "producer"}
    else:
        size = config.transaction_state_log_segment_bytes
        settings = {"compression.type": "uncompressed"}
    size_name = "segment.bytes" if size >= SMALLEST_SEGMENT_BYTES else INTERNAL_SEGMENT_BYTES
    if (least := internal_min_insync(config, name)) is not None:
        settings["min.insync.replicas"] = least
    return {**settings, "cleanup.policy": "compact", size_name: str(size)}


def internal_factors(config: BrokerConfig) -> dict[str, int]:
    """The replication factor of each internal topic, as far as there are that many brokers."""
    return {
        CONSUMER_OFFSETS_TOPIC: min(config.offsets_topic_replication_factor, config.broker_count),
        TRANSACTION_STATE_TOPIC: min(
            config.transaction_state_log_replication_factor, config.broker_count
        ),
    }


def internal_min_insync(config: BrokerConfig, name: str) -> str | None:
    """min.insync.replicas of an internal topic; None if it has that of the broker's settings.

    With one broker there is nothing to choose.
    """
    if config.broker_count == 1:
        return None
    if name == TRANSACTION_STATE_TOPIC:
        return str(min(config.transaction_state_log_min_isr, config.broker_count))
    # Kafka has no setting for it. One that an operator has set for all topics wins.
    if "min.insync.replicas" in config.given_names():
        return None
    return str(default_min_insync(config.broker_count))


def refuse_changed_counts(state: MetadataState, config: BrokerConfig) -> None:
    """Raises ConfigError if an internal topic has not the partition count of the settings."""
    for topic, setting in INTERNAL_COUNTS.items():
        present = state.partition_count(topic)
        wanted = _internal_count(config, topic)
        if present not in (0, wanted):
            raise ConfigError(
                f"{setting} is {wanted}, but {topic} has {present} partitions. Their number "
                f"cannot change. Set {setting}={present}."
            )
