"""What database and Kafka know of a relay, without touching either: `fencepost outbox status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.database import OutboxDatabase
from fencepost.outside.outbox.log_source import find_log
from fencepost.outside.outbox.positions import position_topic, read_position
from fencepost.outside.outbox.rules import ChunkRow, HeldWal, Position, judge_start
from fencepost.outside.outbox.table_source import find_numbered

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.outside.connection import Database
    from fencepost.outside.outbox.database import Outbox


class RelayStatus(NamedTuple):
    """The status of one relay."""

    position: Position | None
    row: ChunkRow
    held: HeldWal | None
    """None in mode table, which has no slot."""
    confirmed_lsn: str | None
    rows_left: int | None
    """Rows above the position; None in mode wal."""
    is_active: bool
    """Whether a relay is connected."""
    refusal: str | None
    """Why a start would be refused. A relay that is running may be ahead of what is seen."""


def read_status(
    database: Database, cluster: Cluster, outbox: Outbox, topic: str | None = None
) -> RelayStatus:
    """Looks at both sides; errors are those of a start."""
    topic = position_topic(outbox.transactional_id, topic)
    position = None
    if cluster.find_topic(topic) is not None:
        position = read_position(cluster, topic, outbox.transactional_id, fenced=False)
    held = confirmed_lsn = rows_left = None
    with OutboxDatabase(database, outbox) as sql:
        facts = sql.check()
        if outbox.is_numbered:
            found, is_active = find_numbered(sql, facts), sql.is_locked()
            numbers = position.cursor.numbers if position else ()
            rows_left = sql.count_above(numbers + (0,) * (found.shards - len(numbers)))
        else:
            with sql.stream() as stream:
                found, held = find_log(sql, facts, stream), sql.held_wal()
            is_active = bool(facts.slot.get("active"))
            confirmed_lsn = str(facts.slot.get("confirmed_flush_lsn"))
    refusal = None
    try:
        judge_start(position, found, None)
    except OutsideError as problem:
        refusal = str(problem)
    return RelayStatus(
        position,
        found.row,
        held,
        confirmed_lsn,
        rows_left,
        is_active,
        refusal,
    )
