"""The relay: carries rows from the log of a database to Kafka, each exactly once.

A start, in this order: checks that change nothing; the fence in Kafka, and the position; the lock
and the slot, which a predecessor gives up when it notices the fence; the decision of `rules.py`.
Then, for each chunk:

    rows collected    full batches are sent, in one Kafka transaction
    row updated       the database commits the number of the chunk and its cursor
    position written  into the same transaction, with the other rows; all is acknowledged
    committed         EndTxn: the chunk is visible
    confirmed         the slot may release the log

A relay does not survive an error of either side: it ends with one sentence, and the next start
finds out what was committed. Run it under a supervisor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.outside.connection import Database
from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.database import Outbox, OutboxDatabase
from fencepost.outside.outbox.lsn import lsn_text
from fencepost.outside.outbox.outlet import Outlet
from fencepost.outside.outbox.pgoutput import Begin, Commit, Insert, Message, Relation, decode
from fencepost.outside.outbox.positions import TOPIC_PREFIX
from fencepost.outside.outbox.replication import Changes, Keepalive, ReplicationStream, SlotInUse
from fencepost.outside.outbox.rows import (
    USUAL,
    ColumnNames,
    Outgoing,
    TableMapping,
    Unreadable,
    read_message,
)
from fencepost.outside.outbox.rules import (
    ChunkPlan,
    Cursor,
    FoundDatabase,
    HeldWalWatch,
    Limits,
    Phase,
    Position,
    Reason,
    Start,
    judge_start,
    refuse_foreign,
)

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.outside.outbox.database import Facts
    from fencepost.outside.outbox.pgoutput import Decoded

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""How soon a quiet relay notices that it is to stop."""
OWNERSHIP_SECONDS: Final = 5.0
"""How often a quiet relay asks whether another one has taken over."""
TAKEOVER_SECONDS: Final = 20.0
"""How long a start waits for its predecessor to notice the fence."""
HELD_SECONDS: Final = 10.0
"""How often the relay looks at how much of the log its slot holds."""

STEPS: Final = (
    "checked",
    "fenced",
    "begun",
    "streaming",
    "rows collected",
    "row updated",
    "position written",
    "committed",
    "confirmed",
)
"""Between any two effects: tests kill the relay, the database and the broker at each."""


class RelaySettings(NamedTuple):
    """How a relay runs; all have defaults."""

    limits: Limits = Limits()
    columns: ColumnNames = USUAL
    topic: str = "*"
    """The name of the topic; `*` stands for the value of the topic column."""
    position_topic: str | None = None
    transaction_timeout_ms: int = 60_000
    max_held_wal_bytes: int | None = None
    skips_unreadable: bool = False
    """Whether rows that are no records are counted and left out; else they end the relay."""
    accept: Reason | None = None


@dataclass
class RelayCounts:
    """What a relay has done, and how far it is behind. Another thread may read it."""

    rows: int = 0
    chunks: int = 0
    skipped: int = 0
    """Rows that were left out because they are no records."""
    read_lsn: int = 0
    """How far the log was read."""
    end_lsn: int = 0
    """Where it ended when the relay last looked."""
    oldest_unsent_at_ms: int | None = None
    """When the oldest row that is not committed to Kafka was committed to the database."""
    held_wal_bytes: int = 0
    has_caught_up: bool = False
    """Whether everything that was in the log at the start is in Kafka."""

    @property
    def behind_bytes(self) -> int:
        """How much of the log is still to be read."""
        return max(0, self.end_lsn - self.read_lsn)


class HeldTooMuch(OutsideError):  # noqa: N818 - named for what is the case
    """The slot holds more of the log than allowed, and nothing makes it less."""


class OutboxRelay:
    """Relays one outbox. `run` may be called again after it ended, with whatever result."""

    def __init__(
        self,
        dsn: str,
        cluster: Cluster,
        outbox: Outbox,
        settings: RelaySettings | None = None,
        *,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`outbox`: `Outbox.of("my-transactional-id", table="outbox")`."""
        self.counts = RelayCounts()
        self._database = Database(dsn)
        self._cluster = cluster
        self._outbox = outbox
        self._settings = settings or RelaySettings()
        self._on_step = on_step

    def run(
        self,
        stop: threading.Event | None = None,
        *,
        until_caught_up: bool = False,
        on_progress: Callable[[RelayCounts], None] = lambda _: None,
    ) -> RelayCounts:
        """Relays until `stop` is set; or until what is in the log now is in Kafka."""
        settings, outbox = self._settings, self._outbox
        self.counts.has_caught_up = False
        topic = settings.position_topic or TOPIC_PREFIX + outbox.transactional_id
        outlet = Outlet(
            self._cluster, outbox.transactional_id, topic, settings.transaction_timeout_ms
        )
        with ExitStack() as stack:
            database = stack.enter_context(OutboxDatabase(self._database, outbox))
            facts = database.check()
            self._require_columns(facts)
            stream = stack.enter_context(database.stream())
            table = (facts.table.get("nspname"), facts.table.get("relname"))
            run = _Run(self, outlet, database, stream, table, on_progress)
            stack.callback(outlet.abandon)
            target = run.start()
            run.relay(stop or threading.Event(), target, until_caught_up=until_caught_up)
        return self.counts

    def _require_columns(self, facts: Facts) -> None:
        """Raises ColumnsMissing before anything is done; the log may have older columns."""
        settings = self._settings
        if self._outbox.table is not None:
            TableMapping(self._outbox.table, facts.columns, settings.columns, settings.topic)

    # What _Run needs.

    @property
    def outbox(self) -> Outbox:
        """The names in the database."""
        return self._outbox

    @property
    def settings(self) -> RelaySettings:
        """How it runs."""
        return self._settings

    def step(self, name: str) -> None:
        """Called between two effects."""
        assert name in STEPS
        self._on_step(name)


class _Run:
    """One run, from the start to an end."""

    def __init__(
        self,
        relay: OutboxRelay,
        outlet: Outlet,
        database: OutboxDatabase,
        stream: ReplicationStream,
        table: tuple[str | None, str | None],
        on_progress: Callable[[RelayCounts], None],
    ) -> None:
        self._relay = relay
        self._outbox = relay.outbox
        self._settings = relay.settings
        self._counts = relay.counts
        self._outlet = outlet
        self._database = database
        self._stream = stream
        self._table = table
        self._on_progress = on_progress
        self._relations: dict[int, TableMapping | None] = {}
        self._chunk = 0
        self._identity = stream.identify()
        self._watch = HeldWalWatch(self._settings.max_held_wal_bytes)
        self._look_due = self._ownership_due = 0.0
        self._commit_ms = self._confirmed = 0
        self._plan = ChunkPlan(Cursor(), self._settings.limits)

    # The start.

    def start(self) -> int:
        """Decides where to go on, and begins to stream; returns the end of the log."""
        accept = self._settings.accept
        found = self._found()
        refuse_foreign(self._outlet.peek(), found, accept)
        self._relay.step("checked")
        position = self._outlet.fence()
        self._relay.step("fenced")
        deadline = time.monotonic() + TAKEOVER_SECONDS
        while not self._database.try_lock():
            self._wait_for_predecessor(deadline, None)
        # The predecessor may have updated the row until it gave up the lock.
        start = judge_start(position, self._found(), accept)
        self._begin(start, deadline)
        self._counts.end_lsn = self._identity.lsn
        return self._identity.lsn

    def _found(self) -> FoundDatabase:
        identity = self._identity = self._stream.identify()
        return FoundDatabase(
            identity.system_id,
            identity.timeline,
            identity.lsn,
            self._outbox.source,
            self._database.read_row(),
        )

    def _begin(self, start: Start, deadline: float) -> None:
        self._chunk = start.next_chunk
        self._plan = ChunkPlan(start.cursor, self._settings.limits)
        if start.needs_position:
            self._record_start()
        while True:
            try:
                self._stream.start(self._outbox.slot, self._outbox.publication)
                break
            except SlotInUse as problem:
                self._wait_for_predecessor(deadline, problem)
        self._relay.step("streaming")

    def _wait_for_predecessor(self, deadline: float, problem: SlotInUse | None) -> None:
        if time.monotonic() >= deadline:
            raise problem or SlotInUse(
                f"another relay of {self._outbox.transactional_id!r} is connected to the database, "
                "and did not notice within "
                f"{TAKEOVER_SECONDS:.0f} s that it was fenced: stop it, then start again"
            )
        time.sleep(POLL_SECONDS)

    # The stream.

    def relay(self, stop: threading.Event, target: int, *, until_caught_up: bool) -> None:
        """Relays until `stop`, or until everything before `target` is in Kafka, if told.

        What `stop` interrupts is aborted, and relayed again by the next start.
        """
        plan = self._plan
        while not stop.is_set():
            is_waiting = plan.is_behind and plan.phase is Phase.BETWEEN
            frame = self._stream.receive(0 if is_waiting else POLL_SECONDS)
            if isinstance(frame, Changes):
                self._note_read(frame.lsn)
                self._handle(decode(frame.data), len(frame.data))
                if plan.is_filling:
                    continue  # The next row is often here already.
            elif isinstance(frame, Keepalive):
                self._note_read(frame.lsn)
                plan.keepalive(frame.lsn)
            is_due = plan.is_due(is_quiet=frame is None, open_ms=self._outlet.open_ms)
            if is_due:
                self._end_chunk()
            if is_due or not isinstance(frame, Changes):
                self._confirm()
                self._look()
                if plan.confirmable >= target and not self._counts.has_caught_up:
                    self._counts.has_caught_up = True
                    self._on_progress(self._counts)
                if until_caught_up and self._counts.has_caught_up:
                    return

    def _handle(self, message: Decoded | None, size_bytes: int) -> None:
        plan = self._plan
        if isinstance(message, Insert):
            mapping = self._relations.get(message.relation_id)
            if mapping is not None and plan.row(size_bytes):
                self._send(lambda: mapping.read(message.values))
        elif isinstance(message, Begin):
            plan.begin(message.commit_lsn)
            self._commit_ms = message.commit_ms
        elif isinstance(message, Commit):
            plan.commit(message.end_lsn)
        elif isinstance(message, Relation):
            self._relations[message.relation_id] = self._mapping_of(message)
        elif isinstance(message, Message) and self._is_ours(message) and plan.row(size_bytes):
            self._send(lambda: read_message(message.content))

    def _mapping_of(self, relation: Relation) -> TableMapping | None:
        if (relation.schema, relation.name) != self._table:
            return None
        settings = self._settings
        assert self._outbox.table is not None
        return TableMapping(self._outbox.table, relation.columns, settings.columns, settings.topic)

    def _is_ours(self, message: Message) -> bool:
        """Messages outside transactions come even if their transaction is rolled back."""
        is_wanted = self._outbox.table is None and message.prefix == self._outbox.prefix
        return is_wanted and message.is_transactional

    def _send(self, read: Callable[[], Outgoing]) -> None:
        if self._counts.oldest_unsent_at_ms is None:
            self._counts.oldest_unsent_at_ms = self._commit_ms
        try:
            row = read()
        except Unreadable as problem:
            cursor = self._plan.cursor
            where = f"row {cursor.ordinal} of the transaction at {lsn_text(cursor.commit_lsn)}"
            if not self._settings.skips_unreadable:
                raise Unreadable(
                    f"{self._outbox.source}: {where} is no record: {problem}. Start with "
                    "--skip-unreadable to leave such rows out. It was not skipped"
                ) from problem
            log.warning("%s: %s is left out: %s", self._outbox.source, where, problem)
            self._counts.skipped += 1
            return
        self._outlet.add(row, self._plan.rows)

    def _record_start(self) -> None:
        """Writes a position before any row comes: the next start has nothing to accept.

        Here the position goes first. A row that is one ahead would make the next start continue at
        the old position, which may be of another database.
        """
        cursor = self._plan.cursor
        self._outlet.write_position(self._position(cursor))
        self._outlet.commit()
        self._relay.step("begun")
        self._database.write_row(self._chunk, cursor)
        self._chunk += 1

    def _position(self, cursor: Cursor) -> Position:
        return Position(
            self._outbox.transactional_id,
            cursor,
            self._chunk,
            self._identity.system_id,
            self._identity.timeline,
            self._outbox.source,
        )

    def _end_chunk(self) -> None:
        plan, step = self._plan, self._relay.step
        cursor, rows = plan.cursor, plan.rows
        step("rows collected")
        self._database.write_row(self._chunk, cursor)
        step("row updated")
        self._outlet.write_position(self._position(cursor))
        step("position written")
        self._outlet.commit()
        step("committed")
        plan.chunk_committed()
        self._chunk += 1
        self._counts.rows += rows
        self._counts.chunks += 1
        self._counts.oldest_unsent_at_ms = None
        self._on_progress(self._counts)

    def _note_read(self, lsn: int) -> None:
        # Changes of a transaction are older than the commits before it.
        self._counts.read_lsn = max(self._counts.read_lsn, lsn)

    def _confirm(self) -> None:
        if self._plan.confirmable > self._confirmed:
            self._confirmed = self._plan.confirmable
            self._stream.confirm(self._confirmed)
            self._relay.step("confirmed")

    def _look(self) -> None:
        """Asks now and then what nobody says: who owns the id, and what the slot holds."""
        now = time.monotonic()
        if now >= self._ownership_due and not self._outlet.open_ms:
            self._ownership_due = now + OWNERSHIP_SECONDS
            self._outlet.require_ownership()
        if now < self._look_due:
            return
        self._look_due = now + HELD_SECONDS
        held = self._database.held_wal()
        self._counts.held_wal_bytes, self._counts.end_lsn = held.size_bytes, held.end_lsn
        if self._watch.is_stuck(held, self._counts.rows, int(now * 1_000)):
            raise HeldTooMuch(
                f"slot {self._outbox.slot!r} holds {held.size_bytes} bytes of the log, more than "
                f"{self._settings.max_held_wal_bytes}, and did not move for a minute: end long "
                "transactions (pg_stat_activity), or drop the slot and lose what was not relayed. "
                "The relay ended; the slot still holds the log"
            )
        self._on_progress(self._counts)
