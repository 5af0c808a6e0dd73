"""The ledger topic, compacted, with one record per transactional id; and how to write a record.

`cleanup.policy` must be exactly `compact`, or the record of a paused query would be deleted.
Segments must be small, because the last one of a partition is never compacted and every start of a
query reads it. Both are checked at every start. Many queries share a topic; `ledger_topic=` names
another.

The sink creates the topic if it has the permission. Brokers never create it automatically, with
their default settings, because this client's metadata requests do not allow it.
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
from fencepost.spark.ledger.entry import key_of

if TYPE_CHECKING:
    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster
    from fencepost.client.configs import Setting

log = logging.getLogger(__name__)

LEDGER_TOPIC: Final = "fencepost-ledger"

PARTITIONS: Final = 16
"""Enough that an open transaction of one query rarely delays the compaction of another's
records."""

SEGMENT_BYTES: Final = 1024 * 1024
"""The minimum of Apache Kafka: about 2,500 batches of one query."""

MAX_SEGMENT_BYTES: Final = 16 * SEGMENT_BYTES
"""With 16 partitions a start then reads up to 256 MB, which takes seconds."""

PROPAGATION_SECONDS: Final = 5.0
"""How long a broker may take to learn of a new topic."""

_POLICY: Final = "cleanup.policy"
_SEGMENT: Final = "segment.bytes"

_NOT_ALLOWED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


def partition_of(transactional_id: str, partition_count: int) -> int:
    """The partition of an id's first record. Later ones follow it, even if partitions are added."""
    return partition_for_key(key_of(transactional_id), partition_count)


def ensure_topic(cluster: Cluster, topic: str) -> TopicView:
    """Creates the topic if it is missing, and checks its settings; SinkRefused says what to do."""
    view = find_topic(cluster, topic)
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
    """Creates a topic with the settings of a ledger."""
    configs = {_POLICY: "compact", _SEGMENT: str(segment_bytes)}
    wanted = NewTopic(topic, partitions, replication_factor, configs)
    cluster.create_topics([wanted], exist_ok=exist_ok)


def _create(cluster: Cluster, topic: str) -> TopicView:
    try:
        create_topic(cluster, topic, exist_ok=True)
        log.info("created topic %r for the ledger", topic)
        return cluster.metadata([topic]).topics[topic]
    except Refused as problem:
        # Another client may have created it in between.
        view = find_topic(cluster, topic)
        if view is not None:
            return view
        raise SinkRefused(
            f"the ledger needs the topic {topic!r}, and the brokers did not let this user create "
            f"it ({problem}): have an administrator run `fencepost ledger create --topic {topic}`, "
            "or name an existing one with ledger_topic=. Nothing was written"
        ) from problem


def find_topic(cluster: Cluster, topic: str) -> TopicView | None:
    """The topic, or None; SinkRefused names the missing ACLs."""
    try:
        return cluster.find_topic(topic)
    except Refused as problem:
        raise refusal_of(topic, problem) from problem


def check_settings(cluster: Cluster, topic: str) -> None:
    """Raises SinkRefused if the topic would delete records, or be slow to read."""
    try:
        found = _settings_of(cluster, topic)
    except Refused as problem:
        if problem.code not in _NOT_ALLOWED:
            raise
        log.warning(
            "the settings of topic %r cannot be checked: grant this user DESCRIBE_CONFIGS on it. "
            "It must have cleanup.policy=compact, or the ledger is lost",
            topic,
        )
        return
    policy = found[_POLICY].value or ""
    if policy.replace(" ", "") != "compact":
        raise SinkRefused(
            f"topic {topic!r} has cleanup.policy={policy}, so the brokers would delete the ledger "
            "in it: it must be exactly compact. Change the setting; or, for a query that has no "
            "ledger yet, leave ledger_topic= out, or name a topic created by `fencepost ledger "
            "create --topic`. Nothing was written"
        )
    segment_bytes = int(found[_SEGMENT].value or 0)
    if segment_bytes > MAX_SEGMENT_BYTES:
        raise SinkRefused(
            f"topic {topic!r} has segment.bytes={segment_bytes}, and every start of a query would "
            f"read that much of each partition: set it to {SEGMENT_BYTES}; or, for a query that "
            "has no ledger yet, name a topic created by `fencepost ledger create --topic`. Nothing "
            "was written"
        )


def _settings_of(cluster: Cluster, topic: str) -> dict[str, Setting]:
    """Retries for a moment: any broker may answer, and not know a new topic yet."""
    deadline = time.monotonic() + PROPAGATION_SECONDS
    while True:
        try:
            return cluster.describe_configs(ResourceType.TOPIC, topic, [_POLICY, _SEGMENT])
        except UnknownTopicOrPartition:
            if time.monotonic() >= deadline:
                raise
            time.sleep(PROPAGATION_SECONDS / 50)


def refusal_of(topic: str, problem: Refused) -> Exception:
    """The error that names the missing ACLs; any other problem unchanged."""
    if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return problem
    return SinkRefused(
        f"this user may not use the ledger topic {topic!r}: grant READ, WRITE and DESCRIBE on it; "
        f"if it does not exist, have an administrator run `fencepost ledger create --topic "
        f"{topic}`. Nothing of the batch is visible"
    )
