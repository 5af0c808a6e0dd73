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
    row: ChunkRow | None
    """None if there is none, which is a reason to refuse."""
    held: HeldWal | None
    """None in mode table, which has no slot; nothing is held without one."""
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
    """Looks at both sides; what a start would refuse is a part of the answer."""
    topic = position_topic(outbox.transactional_id, topic)
    position = None
    if cluster.find_topic(topic) is not None:
        position = read_position(cluster, topic, outbox.transactional_id, fenced=False)
    with OutboxDatabase(database, outbox) as sql:
        if outbox.is_numbered:
            return _of_table(sql, position)
        facts, refusal = sql.look(), None
        row = sql.find_row() if facts.chunk_rights else None
        try:
            sql.check()
            with sql.stream() as stream:
                found = find_log(sql, facts, stream)
            row = found.row
            judge_start(position, found, ())
        except OutsideError as problem:
            refusal = str(problem)
        confirmed_lsn = facts.slot.get("confirmed_flush_lsn")
        is_active = bool(facts.slot.get("active"))
        return RelayStatus(position, row, sql.held_wal(), confirmed_lsn, None, is_active, refusal)


def _of_table(sql: OutboxDatabase, position: Position | None) -> RelayStatus:
    found, is_active, refusal = find_numbered(sql, sql.check()), sql.is_locked(), None
    numbers = position.cursor.numbers if position else ()
    rows_left = sql.count_above(numbers + (0,) * (found.shards - len(numbers)))
    try:
        judge_start(position, found, ())
    except OutsideError as problem:
        refusal = str(problem)
    return RelayStatus(position, found.row, None, None, rows_left, is_active, refusal)
