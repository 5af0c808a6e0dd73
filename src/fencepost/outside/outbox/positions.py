"""The topic of positions: one record per relay, written in the transaction of each chunk.

The record's key is the transactional id, and its value JSON. The topic is compacted, has one
partition, and belongs to one relay unless `position_topic` says otherwise: then the open
transaction of one delays the start of another. Its segments are small, because the last one is
never compacted, and a start reads it whole.

How it is read. After InitProducerId no transaction of this id is open, so the newest committed
record is the position. A reader that stopped at the last stable offset of a foreign transaction
would find an older one and send rows twice; so it reads to the high watermark, and waits for
transactions before that.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic, ResourceType
from fencepost.client.failures import Refused
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.lsn import lsn_text, parse_lsn
from fencepost.outside.outbox.rows import is_topic
from fencepost.outside.outbox.rules import Cursor, Position

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

log = logging.getLogger(__name__)

TOPIC_PREFIX: Final = "fencepost-outbox-"
SEGMENT_BYTES: Final = 1024 * 1024
"""The minimum of Apache Kafka: some 3,000 chunks."""
VERSION: Final = 1
"""Of the JSON. Readers ignore fields that they do not know."""

_POLICY: Final = "cleanup.policy"


class PositionUnusable(OutsideError):  # noqa: N818 - named for what is the case
    """The topic of positions, or the record in it, cannot be used."""


def encode_position(position: Position) -> bytes:
    """The value of the record."""
    fields = {
        "v": VERSION,
        "relay": position.relay,
        "chunk": position.chunk,
        "endLsn": lsn_text(position.cursor.end_lsn),
        "commitLsn": lsn_text(position.cursor.commit_lsn),
        "ordinal": position.cursor.ordinal,
        "numbers": position.cursor.numbers,
        "systemId": position.system_id,
        "timeline": position.timeline,
        "source": position.source,
        "publication": position.publication,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_position(value: bytes) -> Position:
    """The position in the value of a record; ValueError says what is wrong with it."""
    try:
        fields: dict[str, Any] = json.loads(value)
        if fields["v"] > VERSION:
            raise ValueError(f"its version is {fields['v']}: a newer fencepost wrote it")
        cursor = Cursor(
            parse_lsn(fields["endLsn"]),
            parse_lsn(fields["commitLsn"]),
            int(fields["ordinal"]),
            tuple(int(each) for each in fields["numbers"]),
        )
        return Position(
            str(fields["relay"]),
            cursor,
            int(fields["chunk"]),
            str(fields["systemId"]),
            int(fields["timeline"]),
            str(fields["source"]),
            str(fields.get("publication", "")),
        )
    except (TypeError, KeyError, AttributeError) as problem:
        raise ValueError(f"it is not the JSON of a position ({problem!r})") from problem


def position_topic(transactional_id: str, named: str | None) -> str:
    """The name of the topic; PositionUnusable if there can be none."""
    topic = named or TOPIC_PREFIX + transactional_id
    if not is_topic(topic):
        raise PositionUnusable(
            f"the position would be in topic {topic!r}, which is no possible name: name another "
            "one with --position-topic"
        )
    return topic


def ensure_topic(cluster: Cluster, topic: str) -> None:
    """Creates the topic if it is missing, and checks that it keeps the record."""
    if cluster.find_topic(topic) is None:
        configs = {_POLICY: "compact", "segment.bytes": str(SEGMENT_BYTES)}
        try:
            cluster.create_topics([NewTopic(topic, 1, configs=configs)], exist_ok=True)
        except Refused as problem:
            raise PositionUnusable(
                f"the relay keeps its position in the topic {topic!r}, and may not create it "
                f"({problem}): have an administrator create it with one partition and "
                f"cleanup.policy=compact. Nothing was written"
            ) from problem
    view = cluster.metadata([topic]).topics[topic]
    if len(view.partitions) != 1:
        raise PositionUnusable(
            f"topic {topic!r} has {len(view.partitions)} partitions, and positions need exactly "
            "one: name another topic with --position-topic. Nothing was written"
        )
    try:
        found = cluster.describe_configs(ResourceType.TOPIC, topic, [_POLICY])
    except Refused as problem:
        if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        log.warning("grant DESCRIBE_CONFIGS on topic %r: it must have %s=compact", topic, _POLICY)
        return
    policy = (found[_POLICY].value or "").replace(" ", "")
    if policy != "compact":
        raise PositionUnusable(
            f"topic {topic!r} has cleanup.policy={policy}, so the brokers would delete the "
            "position: set it to compact. Nothing was written"
        )


def read_position(
    cluster: Cluster, topic: str, transactional_id: str, *, fenced: bool
) -> Position | None:
    """The newest committed position of this id; None if there is none.

    Without a fence, the relay that owns the id may be writing, and the position may be old.
    """
    place, key = TopicPartition(topic, 0), transactional_id.encode()
    isolation = "read_uncommitted" if fenced else "read_committed"
    ends = cluster.list_offsets({place: LATEST}, isolation=isolation)
    start = cluster.list_offsets({place: EARLIEST})[place].offset
    newest: tuple[int, bytes | None] | None = None
    for record in cluster.records(place, start, ends[place].offset, isolation="read_committed"):
        if record.key == key:
            newest = (record.offset, record.value)
    # A deleted position is a lost one, and not the one before.
    offset, value = newest or (0, None)
    if value is None:
        return None
    try:
        return decode_position(value)
    except ValueError as problem:
        raise PositionUnusable(
            f"the position of {transactional_id!r} at offset {offset} of {place} cannot be read: "
            f"{problem}. Nothing was written"
        ) from problem
