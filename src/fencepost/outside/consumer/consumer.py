"""`PostgresConsumer`: batches of records, each applied in a transaction that moves its positions.

    with PostgresConsumer(dsn, ["refunds"], "ledger", bootstrap_servers=servers) as consumer:
        for batch in consumer:
            with batch.transaction() as cursor:
                for record in batch:
                    cursor.execute("INSERT ...", [record.key(), record.value()])

Group callbacks run inside `next` alone, so an assignment never changes under an open batch; if the
group takes a partition away during it, the batch does not commit.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self

from fencepost.base.arguments import checked
from fencepost.outside.connection import Database, require_writable
from fencepost.outside.consumer.member import Member, Waiting
from fencepost.outside.consumer.positions import DEFAULT_TABLE, Advance, OtherTransaction, Positions
from fencepost.outside.consumer.rule import STARTS, Found, Partition, Refusal, Stored, decide
from fencepost.outside.failures import (
    BatchMisused,
    ConsumerFenced,
    DatabaseRefused,
    DatabaseUnavailable,
    OutsideError,
)

if TYPE_CHECKING:
    import psycopg

    from fencepost.outside.connection import Connection

    Cursor = psycopg.Cursor[tuple[Any, ...]]

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
"""How long one look for records takes, at most: signals are handled between two."""
RECONNECT_SECONDS: Final = 0.2
HEARTBEAT_SECONDS: Final = 10.0
"""More than a member needs to notice that the group has changed."""
MOST_RECORDS: Final = 1_000_000
"""What librdkafka gives in one call."""

STEPS: Final = (
    "before the claim",
    "before the seek",
    "before the records",
    "before the update",
    "before the commit",
    "before the group commit",
    "after the group commit",
)
"""Where a process may die: between any two effects. `on_step` is called there, for tests."""


class State(Enum):
    """The life of a batch."""

    READY = "not used yet"
    OPEN = "in an open transaction"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    FENCED = "fenced"


_CANNOT_BEGIN: Final = {
    State.OPEN: "its transaction is open already: use that cursor",
    State.COMMITTED: "it is committed: go on to the next one",
    State.FENCED: "another consumer has a partition of it: go on to the next one",
}
_CANNOT_GO_ON: Final = {
    State.READY: "use it first: with batch.transaction() as cursor: ... (an empty block skips it)",
    State.OPEN: "its transaction is open: leave the block first",
}


class _Idle:
    """Measures how long nothing has come."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds or 0.0
        self._began = time.monotonic()
        self._since: float | None = None
        self._was_said: set[str] = set()

    def begin_again(self) -> None:
        """Counts from the next look on."""
        self._since = None

    def is_past(self, more: float) -> bool:
        """Whether `idle_seconds` are over, and `more` besides."""
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since >= self._seconds + more

    def say(self, sentence: str) -> None:
        """Logs why the iteration goes on, once, when it has lasted for `idle_seconds`."""
        is_time = time.monotonic() - self._began >= self._seconds
        if is_time and sentence not in self._was_said:
            self._was_said.add(sentence)
            log.warning("%s", sentence)


class Batch:
    """Records in the order of their partitions, as confluent_kafka.Message."""

    def __init__(
        self, consumer: PostgresConsumer, records: tuple[Any, ...], advances: list[Advance]
    ) -> None:
        self._consumer = consumer
        self.records = records
        self.advances = advances
        self.state = State.READY

    def __iter__(self) -> Iterator[Any]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        ranges = (f"{each} {held.next_offset} to {to}" for each, held, to in self.advances)
        return f"<Batch of {', '.join(ranges)}; {self.state.value}>"

    def transaction(self) -> AbstractContextManager[Cursor]:
        """What its cursor does is committed together with the positions, or not at all.

        An error in the block rolls back, and is raised.
        """
        return self._consumer._transaction(self)  # noqa: SLF001 - two halves of one thing.


@checked
class PostgresConsumer:
    """Iterates over batches; a batch must be used in a transaction before the next one.

    A batch that was rolled back may be tried again, or comes again with the next iteration.
    """

    def __init__(
        self,
        dsn: str,
        topics: str | Iterable[str],
        group: str,
        *,
        bootstrap_servers: str,
        table: str = DEFAULT_TABLE,
        start: str = "earliest",
        max_records: int = 500,
        idle_seconds: float | None = None,
        database_seconds: float = 60.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`config` has more settings of confluent-kafka.

        `start` is "earliest" or "latest", for partitions without a position. The iteration ends
        after `idle_seconds` without a record, counted from the assignment of partitions; a lost
        database is awaited for `database_seconds`.
        """
        topics = [topics] if isinstance(topics, str) else list(topics)
        if not (group and topics and all(topics)):
            # Without a group, librdkafka would end this process.
            raise BatchMisused("name the group, and at least one topic")
        if not 1 <= max_records <= MOST_RECORDS or start not in STARTS:
            raise BatchMisused(
                f'max_records must be from 1 to {MOST_RECORDS:,}, start "earliest" or "latest"'
            )
        self._start = start
        self._database = Database(dsn)
        self._positions = Positions(table, group)
        self._max_records = max_records
        self._idle_seconds = idle_seconds
        self._database_seconds = database_seconds
        self._held: dict[Partition, Stored] = {}
        """The rows that were claimed, as they are while no one else claims them."""
        self._is_behind = False
        """Whether records were received that are not applied: then all are read again."""
        self._batch: Batch | None = None
        self._thread: int | None = None
        self._is_closed = False
        self.on_step: Callable[[str], None] = lambda _: None
        self._connection = self._connect()
        try:
            self._member = Member(
                topics, group, {"bootstrap.servers": bootstrap_servers, **(config or {})}
            )
        except BaseException:
            self._connection.close()
            raise

    @staticmethod
    def creation_sql(table: str = DEFAULT_TABLE) -> str:
        """The statement that creates the table of positions."""
        return Positions(table, "").creation()

    @staticmethod
    def create_table(dsn: str, table: str = DEFAULT_TABLE) -> None:
        """Creates the table of positions, unless it exists."""
        database = Database(dsn)
        with database.connect(autocommit=True) as connection:
            require_writable(connection, database)
            with database.explaining(f"the creation of table {table}"):
                connection.execute(Positions(table, "").creation().encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        self._require_turn()
        idle = _Idle(self._idle_seconds)
        while True:
            connection = self._connected()
            try:
                batch = self._look(connection)
                if batch is not None:
                    self._batch = batch
                    return batch
                if self._idle_seconds is not None and self._ends(connection, idle):
                    raise StopIteration
            except DatabaseUnavailable as problem:
                # The connection was lost, or a transaction met another one (stricter isolation).
                log.warning("%s; trying again", problem)

    def _ends(self, connection: Connection, idle: _Idle) -> bool:
        """Whether the iteration ends, now that nothing has come."""
        member = self._member
        if not member.has_joined or member.assigned - member.started.keys():
            idle.say(
                f"group {member.group!r} has not given this consumer its partitions yet: it waits "
                "for a member that died or is busy, or Kafka does not answer. Still waiting"
            )
            idle.begin_again()
            return False
        if not idle.is_past(0.0):
            return False
        try:
            behind = self._behind_elsewhere(connection)
        except Waiting:
            return False
        if not behind or idle.is_past(member.session_seconds + HEARTBEAT_SECONDS):
            return True
        idle.say(
            f"nothing comes, but {', '.join(map(str, behind))} of group {member.group!r} have "
            "records that are not applied, and belong to another member. Waiting until its session "
            "would have ended if it died"
        )
        return False

    def _behind_elsewhere(self, connection: Connection) -> list[Partition]:
        """Partitions that this consumer does not read, and which have records to apply.

        Those of a member that died come to this one when its session ends.
        """
        with self._database.explaining("a look at the positions"):
            return [
                each
                for each, found in self._member.find(self._member.others()).items()
                if self._positions.read(connection, each).is_behind(found, self._start)
            ]

    def close(self) -> None:
        """Leaves the group and closes the connection; an open transaction is rolled back."""
        if not self._is_closed:
            self._is_closed = True
            self._connection.close()
            self._member.close()

    def _look(self, connection: Connection) -> Batch | None:
        """Claims what was assigned, and returns what can be read; None if that is nothing."""
        if self._is_behind:
            self._read_again()
        self._claim(connection)
        self._is_behind = True
        received = self._member.receive(self._max_records, POLL_SECONDS)
        self._forget_stopped()
        records = tuple(each for each in received if self._is_next(each))
        if not records:
            self._is_behind = False
            self._skip_markers(connection)
            return None
        if not self._are_topics_the_same({each.topic() for each in records}):
            return None
        after = self._member.positions()
        partitions = sorted({_partition_of(each) for each in records})
        return Batch(self, records, [Advance(p, self._held[p], after[p]) for p in partitions])

    def _is_next(self, record: Any) -> bool:
        """Whether it is of a claimed partition, and not behind its position."""
        held = self._held.get(_partition_of(record))
        return held is not None and record.offset() >= (held.next_offset or 0)

    def _claim(self, connection: Connection) -> None:
        """Claims what is assigned and not read yet; what cannot be claimed now waits."""
        wanted = sorted(self._member.assigned - self._member.started.keys())
        if wanted:
            with suppress(Waiting):
                self._claim_all(connection, wanted)

    def _claim_all(self, connection: Connection, wanted: list[Partition]) -> None:
        with self._database.explaining("the claim of partitions"):
            # A consumer that could not begin, or has lost the partition, must not fence another.
            rows = {each: self._positions.read(connection, each) for each in wanted}
            begins, topic_ids = {}, {}
            for each, found in self._member.find(wanted).items():
                topic_ids[each] = found.topic_id
                decision = decide(rows[each], found, self._start)
                if isinstance(decision, Refusal):
                    if self._positions.read(connection, each) != rows[each]:
                        return  # Its owner has gone on: the row and the log are of two moments.
                    raise self._positions.refuse(decision, each, rows[each], found)
                begins[each] = decision
            if not self._member.confirm(begins):
                return
            self.on_step("before the claim")
            for each in wanted:
                owner = f"{socket.gethostname()} pid {os.getpid()} {uuid.uuid4().hex[:16]}"
                self._held[each] = self._positions.claim(
                    connection, each, topic_ids[each], begins[each], owner
                )
            # The rows stay as they are from here on, and may have moved before the claim.
            for each, found in self._member.find(wanted).items():
                begins[each] = self._decide(each, self._held[each], found)
        self.on_step("before the seek")
        self._member.start(begins)
        self.on_step("before the records")

    def _decide(self, partition: Partition, stored: Stored, found: Found) -> int:
        decision = decide(stored, found, self._start)
        if isinstance(decision, Refusal):
            raise self._positions.refuse(decision, partition, stored, found)
        return decision

    def _are_topics_the_same(self, topics: set[str]) -> bool:
        """Whether Kafka says so; others are claimed again, which refuses them."""
        try:
            ids = self._member.topic_ids(topics)
        except Waiting:
            return False
        others = [
            each
            for each, held in self._held.items()
            if ids.get(each.topic, held.topic_id) != held.topic_id
        ]
        self._member.stop(others)
        return not others

    def _read_again(self) -> None:
        """Goes back to the stored positions: what was received since is not applied."""
        self._forget_stopped()
        again = {each: held.next_offset or 0 for each, held in self._held.items()}
        self._member.stop(again)
        self._member.start(again)

    def _skip_markers(self, connection: Connection) -> None:
        """Moves positions over control records and aborted ones at the end of a log.

        Otherwise retention would go past them, and look like a loss.
        """
        advances = [
            Advance(each, self._held[each], after)
            for each, after in self._member.positions().items()
            if after > (self._held[each].next_offset or 0)
        ]
        if not advances:
            return
        with self._database.explaining("the update of positions"), connection.transaction():
            stuck = self._positions.advance(connection, advances)
        # Where one did not move, the others may: no record is between these offsets.
        self._member.stop([each.partition for each in stuck])
        self._move([each for each in advances if each not in stuck])

    @contextmanager
    def _transaction(self, batch: Batch) -> Iterator[Cursor]:
        import psycopg

        self._require_usable(batch)
        connection = self._connected(is_asked=True)
        batch.state = State.OPEN
        is_advanced = False
        try:
            with connection.transaction(), connection.cursor() as cursor:
                self._positions.mark(connection)
                yield cursor
                self.on_step("before the update")
                self._advance(connection, batch)
                is_advanced = True
                self.on_step("before the commit")
            # psycopg.Rollback, raised in the block, ends here without an error.
            batch.state = State.COMMITTED if is_advanced else State.ROLLED_BACK
        except psycopg.Error as problem:
            batch.state = State.ROLLED_BACK
            if not (is_advanced and connection.closed):
                raise
            self._look_up(batch, problem)
        except BaseException:
            if batch.state is State.OPEN:
                batch.state = State.ROLLED_BACK
            if is_advanced:
                self._start_over()
            raise
        if batch.state is State.COMMITTED:
            self.on_step("before the group commit")
            self._move(batch.advances)
            self._is_behind = False
            self.on_step("after the group commit")

    def _advance(self, connection: Connection, batch: Batch) -> None:
        """Moves the positions in the transaction of the block; raises ConsumerFenced."""
        if self._is_closed:
            raise BatchMisused(f"the consumer was closed inside {batch}: it was rolled back")
        try:
            with self._database.explaining("the update of positions"):
                # Outside a transaction the mark is gone too.
                stuck = self._positions.advance(connection, batch.advances, is_marked=True)
                reasons = [self._positions.why_not(connection, each) for each in stuck]
        except OtherTransaction:
            raise BatchMisused(
                f"the block of {batch} ended its transaction with SQL (COMMIT, ROLLBACK, END, "
                "ABORT or PREPARE TRANSACTION): what it did before that may be committed, and its "
                "position is not; what it did after that was rolled back. The records come again. "
                "Leave the end to the block, and use savepoints inside it"
            ) from None
        if stuck:
            batch.state = State.FENCED
            self._member.stop([each.partition for each in stuck])
            raise ConsumerFenced(
                f"{batch} was rolled back: {'; '.join(reasons)}. Partitions that are still "
                "assigned to this consumer are claimed again"
            )

    def _look_up(self, batch: Batch, problem: psycopg.Error) -> None:
        """After a COMMIT without an answer: returns if it took place, otherwise raises."""
        explained = self._database.explain(problem, f"the commit of {batch}")
        try:
            connection = self._connected()
            with self._database.explaining("the look at the positions"):
                partition, held, after = batch.advances[0]
                row = self._positions.read(connection, partition, lock=True)
        except OutsideError:
            self._start_over()
            raise type(explained)(
                f"{explained}; whether it took place is not known yet: the next batch begins where "
                "the database says"
            ) from None
        if row == held._replace(next_offset=after):
            batch.state = State.COMMITTED
        elif row == held:
            raise type(explained)(f"{explained}; it did not take place") from None
        else:
            batch.state = State.FENCED
            self._start_over()
            raise ConsumerFenced(
                f"{explained}; another consumer has its partitions, which are applied once, by one "
                "of the two"
            ) from None

    def _move(self, advances: Iterable[Advance]) -> None:
        for partition, held, after in advances:
            self._held[partition] = held._replace(next_offset=after)
        self._member.report({each.partition: each.after for each in advances})

    def _start_over(self) -> None:
        """Claims everything again before more is read."""
        self._connection.close()
        self._member.stop(list(self._held))
        self._forget_stopped()

    def _forget_stopped(self) -> None:
        for each in self._held.keys() - self._member.started.keys():
            del self._held[each]

    def _connect(self) -> Connection:
        connection = self._database.connect(autocommit=True)
        try:
            require_writable(connection, self._database)
            with self._database.explaining("a look for the table"):
                is_there = self._positions.exists(connection)
            if not is_there:
                raise DatabaseRefused(
                    f"{self._database} has no table {self._positions.table}: call "
                    f"PostgresConsumer.create_table, or run {self._positions.creation()}"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self, *, is_asked: bool = False) -> Connection:
        """The connection, made again if it was lost. `is_asked`: the server has to answer first."""
        import psycopg

        if is_asked and not self._connection.closed:
            try:
                self._connection.execute("SELECT 1")
            except psycopg.Error as problem:
                log.warning("%s", self._database.explain(problem, "the connection"))
                self._connection.close()
        deadline = time.monotonic() + self._database_seconds
        while self._connection.closed:
            try:
                self._connection = self._connect()
            except DatabaseUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RECONNECT_SECONDS)
        return self._connection

    def _require_turn(self) -> None:
        """Raises BatchMisused unless the next batch may be handed out."""
        self._require_thread()
        if self._batch is not None and (reason := _CANNOT_GO_ON.get(self._batch.state)):
            raise BatchMisused(f"{self._batch} comes first: {reason}")

    def _require_usable(self, batch: Batch) -> None:
        self._require_thread()
        if batch is not self._batch:
            raise BatchMisused(f"{batch} is not the newest: its records are in a later one")
        if reason := _CANNOT_BEGIN.get(batch.state):
            raise BatchMisused(f"{batch} cannot be used: {reason}")

    def _require_thread(self) -> None:
        if self._is_closed:
            raise BatchMisused("the consumer is closed: make another one")
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            raise BatchMisused("a consumer and its batches belong to the thread that began with it")


def _partition_of(record: Any) -> Partition:
    return Partition(record.topic(), record.partition())
