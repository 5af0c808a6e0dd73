"""The ledger's home: a compacted topic, one record per transactional id.

`cleanup.policy` must be `compact` and nothing else, or the record of a query that pauses would be
deleted. Segments must be small, because the last one of a partition is never compacted and every
start of a query reads it. Both are checked at every start. Many queries share a topic; a team that
wants one of its own names it (`ledger_topic=`).

The sink makes the topic where it may. It never comes into being by itself: this client does not let
brokers create topics on a request for metadata, which would give it their default settings.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.client.admin import DEFAULT, NewTopic, ResourceType
from fencepost.client.failures import Refused, UnknownTopicOrPartition
from fencepost.client.partitioner import partition_for_key
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from fencepost.client.admin import ConfigValue, TopicView
    from fencepost.client.blocking import Cluster

log = logging.getLogger(__name__)

LEDGER_TOPIC: Final = "fencepost-ledger"

PARTITIONS: Final = 16
"""Enough that a query's open transaction rarely keeps another's old records from being
compacted."""

SEGMENT_BYTES: Final = 1024 * 1024
"""The least that Apache Kafka takes: about 2,500 batches of one query."""

MAX_SEGMENT_BYTES: Final = 16 * SEGMENT_BYTES
"""With 16 partitions a start reads up to 256 MB then, which takes seconds."""

NEWS_SECONDS: Final = 5.0
"""How long a broker may take to hear of a new topic."""

_POLICY: Final = "cleanup.policy"
_SEGMENT: Final = "segment.bytes"

_NOT_ALLOWED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


def key_of(transactional_id: str) -> bytes:
    """The key of an id's record."""
    return transactional_id.encode("utf-8")


def partition_of(transactional_id: str, partition_count: int) -> int:
    """Where the first record of an id goes.

    Later ones follow it, so that added partitions change nothing.
    """
    return partition_for_key(key_of(transactional_id), partition_count)


def ensure_topic(cluster: Cluster, topic: str) -> TopicView:
    """The topic, made if it is not there and checked if it is; SinkRefused says what to do."""
    view = _find(cluster, topic)
    if view is None:
        view = _create(cluster, topic)
    check_settings(cluster, topic)
    return view


def create_topic(
    cluster: Cluster,
    topic: str = LEDGER_TOPIC,
    *,
    partitions: int = PARTITIONS,
    replication_factor: int = DEFAULT,
    segment_bytes: int = SEGMENT_BYTES,
    exist_ok: bool = False,
) -> None:
    """Makes a topic that can hold a ledger."""
    configs = {_POLICY: "compact", _SEGMENT: str(segment_bytes)}
    wanted = NewTopic(topic, partitions, replication_factor, configs)
    cluster.create_topics([wanted], exist_ok=exist_ok)


def _create(cluster: Cluster, topic: str) -> TopicView:
    try:
        create_topic(cluster, topic, exist_ok=True)
        log.info("created topic %r for the ledger", topic)
        return cluster.metadata([topic]).topics[topic]
    except Refused as problem:
        # Somebody else may have made it meanwhile, and the news was slow.
        view = _find(cluster, topic)
        if view is not None:
            return view
        raise SinkRefused(
            f"the ledger needs the topic {topic!r}, and the brokers did not let this user "
            f"create it ({problem}): let "
            f"somebody who may create topics run `fencepost ledger create --topic {topic}`, or "
            "name an existing one "
            "with ledger_topic=. Nothing was written"
        ) from problem


def _find(cluster: Cluster, topic: str) -> TopicView | None:
    try:
        return cluster.find_topic(topic)
    except Refused as problem:
        raise refusal_of(topic, problem) from problem


def check_settings(cluster: Cluster, topic: str) -> None:
    """SinkRefused where a record of the ledger would not stay, or be found quickly."""
    try:
        found = _settings_of(cluster, topic)
    except Refused as problem:
        if problem.code not in _NOT_ALLOWED:
            raise
        log.warning(
            "the settings of topic %r cannot be checked: grant this user DESCRIBE_CONFIGS on "
            "it. It must have "
            "cleanup.policy=compact, or the ledger is lost",
            topic,
        )
        return
    policy = found[_POLICY].value or ""
    if policy.replace(" ", "") != "compact":
        raise SinkRefused(
            f"topic {topic!r} has cleanup.policy={policy}, so the brokers would delete the "
            "ledger in it: it must be compact "
            "and nothing else. Leave ledger_topic= out, name a topic that `fencepost ledger "
            "create --topic` has made, or "
            "change the setting. Nothing was written"
        )
    segment_bytes = int(found[_SEGMENT].value or 0)
    if segment_bytes > MAX_SEGMENT_BYTES:
        raise SinkRefused(
            f"topic {topic!r} has segment.bytes={segment_bytes}, and every start of a query "
            "would read that much of "
            f"each partition: set it to {SEGMENT_BYTES}, or name a topic that `fencepost ledger "
            "create --topic` has made. "
            "Nothing was written"
        )


def _settings_of(cluster: Cluster, topic: str) -> dict[str, ConfigValue]:
    """Any broker answers, and the one that does may not have heard of a topic that was created just now."""
    deadline = time.monotonic() + NEWS_SECONDS
    while True:
        try:
            return cluster.describe_configs(ResourceType.TOPIC, topic, [_POLICY, _SEGMENT])
        except UnknownTopicOrPartition:
            if time.monotonic() >= deadline:
                raise
            time.sleep(NEWS_SECONDS / 50)


def refusal_of(topic: str, problem: Refused) -> Exception:
    """What to grant, where a broker does not let us at the topic; any other problem as it is."""
    if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return problem
    return SinkRefused(
        f"this user may not use the ledger's topic {topic!r}: grant READ, WRITE and DESCRIBE on "
        "it; where it does not "
        f"exist, let somebody run `fencepost ledger create --topic {topic}`. Nothing of the "
        "batch is visible"
    )
