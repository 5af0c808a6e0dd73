"""What database and Kafka know of a relay, without touching either: `fencepost outbox status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.database import OutboxDatabase
from fencepost.outside.outbox.positions import TOPIC_PREFIX, read_position
from fencepost.outside.outbox.rules import ChunkRow, FoundDatabase, HeldWal, Position, judge_start

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.outside.connection import Database
    from fencepost.outside.outbox.database import Outbox


class RelayStatus(NamedTuple):
    """The status of one relay."""

    position: Position | None
    row: ChunkRow
    held: HeldWal
    confirmed_lsn: str
    is_active: bool
    """Whether a relay is connected."""
    refusal: str | None
    """Why a start would be refused. A relay that is running may be ahead of what is seen."""


def read_status(
    database: Database, cluster: Cluster, outbox: Outbox, position_topic: str | None = None
) -> RelayStatus:
    """Looks at both sides; errors are those of a start."""
    topic = position_topic or TOPIC_PREFIX + outbox.transactional_id
    with OutboxDatabase(database, outbox) as sql, sql.stream() as stream:
        facts = sql.check()
        row, held, identity = sql.read_row(), sql.held_wal(), stream.identify()
    position = None
    if cluster.find_topic(topic) is not None:
        position = read_position(cluster, topic, outbox.transactional_id, fenced=False)
    found = FoundDatabase(identity.system_id, identity.timeline, identity.lsn, outbox.source, row)
    refusal = None
    try:
        judge_start(position, found, None)
    except OutsideError as problem:
        refusal = str(problem)
    return RelayStatus(
        position,
        row,
        held,
        str(facts.slot.get("confirmed_flush_lsn")),
        bool(facts.slot.get("active")),
        refusal,
    )
