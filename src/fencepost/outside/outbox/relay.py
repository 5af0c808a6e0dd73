"""The relay: carries rows from a database to Kafka, each exactly once.

The rows come from a source: the database's log (log_source.py), or a numbered table
(table_source.py). All else is the same.

A start, in this order: checks that change nothing; the fence in Kafka, and the position; the lock
and the slot, which a predecessor gives up when it notices the fence; the decision of `rules.py`.
Then, for each chunk:

    rows collected    full batches are sent, in one Kafka transaction
    row updated       the database commits the number of the chunk and its cursor
    position written  into the same transaction, with the other rows; all is acknowledged
    committed         EndTxn: the chunk is visible
    noted             outside chunks, and rarely: the row says how far the slot may go beyond it
    confirmed         the slot may release the log; a table has none

A row that no topic accepts is found by a second reading of its chunk (refused.py), which begins as
a start does.

A relay does not survive any other error of either side: it ends with one sentence, and the next
start finds out what was committed. Run it under a supervisor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError
from fencepost.outside.connection import Database
from fencepost.outside.outbox.database import Outbox, OutboxDatabase
from fencepost.outside.outbox.log_source import LogSource
from fencepost.outside.outbox.outlet import BATCH_BYTES, Outlet
from fencepost.outside.outbox.positions import position_topic
from fencepost.outside.outbox.refused import (
    ChunkRefused,
    DeadLetterRefused,
    OnRefused,
    RefusedRow,
    dead_letter_topic,
    ensure_dead_letters,
)
from fencepost.outside.outbox.replication import SlotInUse
from fencepost.outside.outbox.rows import USUAL, ColumnNames, Outgoing, RowRefused, Unreadable
from fencepost.outside.outbox.rules import (
    Cursor,
    Limits,
    Position,
    Reason,
    Start,
    judge_start,
    refuse_foreign,
)
from fencepost.outside.outbox.source import Pace, RelayCounts, Source
from fencepost.outside.outbox.table_source import TableSource
from fencepost.records.opened import Headers, Record

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.2
"""The pause while a predecessor still has the lock or the slot."""
OWNERSHIP_SECONDS: Final = 5.0
"""How often a quiet relay asks whether another one has taken over."""
PATIENCE_SECONDS: Final = 10.0
"""How long a start waits for its predecessor to notice the fence, before it ends its connections:
a process that is suspended notices nothing."""
TAKEOVER_SECONDS: Final = 20.0
"""How long a start waits for its predecessor in all."""
COMMIT_HEADER: Final = "fencepost.committed.ms"
"""When the row was committed in the database, in milliseconds since 1970."""
FOREVER_MS: Final = 1 << 62
LOOK_SECONDS: Final = 10.0
"""How often the relay looks at how far it is behind, and what its slot holds."""

STEPS: Final = (
    "checked",
    "fenced",
    "begun",
    "streaming",
    "rows collected",
    "row updated",
    "position written",
    "committed",
    "noted",
    "confirmed",
)
"""Between any two effects: tests kill the relay, the database and the broker at each."""


@checked
class RelaySettings(NamedTuple):
    """How a relay runs; all have defaults."""

    limits: Limits = Limits()
    columns: ColumnNames = USUAL
    topic: str = "*"
    """The name of the topic; `*` stands for the value of the topic column."""
    position_topic: str | None = None
    transaction_timeout_ms: int = 60_000
    max_held_wal_bytes: int | None = None
    on_refused: OnRefused = OnRefused.STOP
    """What happens to a row that can never be written to its topic."""
    accept: Collection[Reason] = ()
    """What a person has decided: a start goes on in spite of these reasons."""
    dead_letter_topic: str | None = None
    commit_timestamps: bool = False
    """Whether the time of a record is that of the commit in the database."""


@checked
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
        self._settings = _usable(settings or RelaySettings())
        self._on_step = on_step

    def run(
        self,
        stop: threading.Event | None = None,
        *,
        until_caught_up: bool = False,
        on_progress: Callable[[RelayCounts], None] = lambda _: None,
    ) -> RelayCounts:
        """Relays until `stop` is set; or until what is in the log now is in Kafka."""
        self.counts.has_caught_up = False
        stop = stop or threading.Event()
        care = _Care(self._settings.accept)
        while True:
            self.counts.oldest_unsent_at_ms = None
            try:
                self._run_once(care, stop, on_progress, until_caught_up=until_caught_up)
            except ChunkRefused as problem:
                care.note(problem)
                log.info("a chunk is read and sent again: %s", problem)
            else:
                return self.counts

    def _run_once(
        self,
        care: _Care,
        stop: threading.Event,
        on_progress: Callable[[RelayCounts], None],
        *,
        until_caught_up: bool,
    ) -> None:
        settings, outbox = self._settings, self._outbox
        topic = position_topic(outbox.transactional_id, settings.position_topic)
        outlet = Outlet(
            self._cluster,
            outbox.transactional_id,
            topic,
            settings.transaction_timeout_ms,
            care.batch_bytes,
        )
        with ExitStack() as stack:
            database = stack.enter_context(OutboxDatabase(self._database, outbox))
            source = self._open(database)
            stack.callback(source.close)
            run = _Run(self, outlet, database, source, care, on_progress)
            stack.callback(outlet.abandon)
            run.start()
            run.relay(stop, until_caught_up=until_caught_up)

    def _open(self, database: OutboxDatabase) -> Source:
        facts = database.check()
        limits, columns, topic = self._settings[:3]
        if self._outbox.is_numbered:
            return TableSource(database, facts, limits, columns, topic)
        held = self._settings.max_held_wal_bytes
        return LogSource(database, facts, limits, columns, topic, held)

    # What _Run needs.

    @property
    def cluster(self) -> Cluster:
        """Where the records go."""
        return self._cluster

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


def _usable(settings: RelaySettings) -> RelaySettings:
    limits = settings.limits
    if limits.rows < 1 or limits.size_bytes < 1:
        sizes = f"{limits.rows} rows and {limits.size_bytes} bytes"
        raise ConfigError(f"chunks of {sizes} have no rows: choose at least 1 of each")
    accept: object = settings.accept  # Whatever its type says.
    if not (isinstance(accept, Collection) and all(isinstance(each, Reason) for each in accept)):
        raise ConfigError(
            f"accept={settings.accept!r}: write a collection of Reason, such as {{Reason.NEW_SLOT}}"
        )
    # A chunk must end before the brokers abort its transaction.
    open_ms = min(limits.open_ms, settings.transaction_timeout_ms // 3)
    return settings._replace(limits=limits._replace(open_ms=open_ms))


class _Care:
    """What the next reading of a chunk has to know, after a batch of it was refused."""

    def __init__(self, accept: Any) -> None:
        self.accept = accept
        self.batch_bytes: dict[str, int] = {}
        """Of topics that refused larger ones."""
        self.rows = 0
        """How many rows are to be sent one by one."""
        self.chunk_rows = 0
        """Rows of the chunk at hand, of which one is refused."""

    def note(self, problem: ChunkRefused) -> None:
        """A batch was refused."""
        # What was accepted is recorded by now.
        self.accept = RelaySettings().accept
        if problem.too_large is not None:
            topic, size_bytes = problem.too_large
            known = self.batch_bytes.get(topic, BATCH_BYTES)
            self.batch_bytes[topic] = min(known, size_bytes) // 2
        else:
            self.rows = max(self.rows, self.chunk_rows)


class _Run:
    """One run, from the start to an end."""

    def __init__(
        self,
        relay: OutboxRelay,
        outlet: Outlet,
        database: OutboxDatabase,
        source: Source,
        care: _Care,
        on_progress: Callable[[RelayCounts], None],
    ) -> None:
        self._relay = relay
        self._care = care
        self._outbox = relay.outbox
        self._settings = relay.settings
        self._counts = relay.counts
        self._outlet = outlet
        self._database = database
        self._source = source
        self._on_progress = on_progress
        self._chunk = 0
        self._dead = 0
        self._may_end = True
        self._headers: tuple[int, Headers] = (-1, ())
        """The time of a commit as a header, which all rows of it have."""
        self._sent: Cursor | None = None
        """The cursor after the last row that was sent, if rows are sent one by one."""
        self._dead_letters: str | None = None
        if self._settings.on_refused is OnRefused.DEAD_LETTER:
            positions = position_topic(self._outbox.transactional_id, self._settings.position_topic)
            self._dead_letters = dead_letter_topic(positions, self._settings.dead_letter_topic)
        self._look_due = self._ownership_due = 0.0
        self._found = source.find()

    # The start.

    def start(self) -> None:
        """Decides where to go on, and begins to read there."""
        accept = self._care.accept
        refuse_foreign(self._outlet.peek(), self._found, accept)
        if self._dead_letters is not None:
            ensure_dead_letters(self._relay.cluster, self._dead_letters)
        self._relay.step("checked")
        position = self._outlet.fence()
        self._relay.step("fenced")
        deadline = time.monotonic() + TAKEOVER_SECONDS
        while not self._database.try_lock():
            self._wait_for_predecessor(deadline, None)
        # Another relay may have come and gone meanwhile: then the position is an older one, and a
        # row that is written from it would look like a restored database.
        self._outlet.require_ownership()
        # The predecessor may have updated the row until it gave up the lock.
        self._found = self._source.find()
        self._begin(judge_start(position, self._found, accept), deadline)

    def _begin(self, start: Start, deadline: float) -> None:
        self._chunk = start.next_chunk
        if start.needs_position:
            self._record_start(start)
        while True:
            try:
                self._source.begin(start.cursor)
                break
            except SlotInUse as problem:
                self._wait_for_predecessor(deadline, problem)
        self._relay.step("streaming")

    def _wait_for_predecessor(self, deadline: float, problem: SlotInUse | None) -> None:
        now = time.monotonic()
        if now >= deadline - TAKEOVER_SECONDS + PATIENCE_SECONDS:
            self._end_predecessors(is_late=now >= deadline, problem=problem)
        time.sleep(WAIT_SECONDS)

    def _end_predecessors(self, *, is_late: bool, problem: SlotInUse | None) -> None:
        """Its transaction can no longer commit, so it has nothing left to do."""
        found = self._database.find_predecessors()
        # They may also be those of a successor, which fenced this relay.
        self._outlet.require_ownership()
        self._may_end = self._may_end and self._database.end_predecessors(found)
        if not is_late:
            return
        if not found and problem is not None:
            raise problem
        processes = ", ".join(map(str, found)) or "none any more"
        why = "they did not end" if self._may_end else "this user may not end them"
        raise SlotInUse(
            f"another relay of {self._outbox.transactional_id!r} is connected to the database "
            f"(processes of the server: {processes}), and did not notice within "
            f"{TAKEOVER_SECONDS:.0f} s that it was fenced; {why}. Stop that relay, or run SELECT "
            "pg_terminate_backend(...) as its user or with the rights of pg_signal_backend; then "
            "start again. If its machine is gone, the database notices that within a minute"
        )

    def _record_start(self, start: Start) -> None:
        """Writes a position before any row comes: the next start has nothing to accept."""
        steps = [self._write_start_row, self._commit_start_position]
        if start.is_row_last:
            steps.reverse()
        steps[0](start)
        self._relay.step("begun")
        steps[1](start)
        self._chunk += 1

    def _write_start_row(self, start: Start) -> None:
        self._database.write_start_row(
            self._chunk, start.cursor, resets_confirmed=start.resets_confirmed
        )

    def _commit_start_position(self, start: Start) -> None:
        self._outlet.write_position(self._position(start.cursor))
        self._outlet.commit()

    # The rows.

    def relay(self, stop: threading.Event, *, until_caught_up: bool) -> None:
        """Relays until `stop`, or until everything that was there is in Kafka, if told.

        What `stop` interrupts is aborted, and relayed again by the next start.
        """
        source, counts = self._source, self._counts
        may_split = self._settings.limits.may_split
        self._outlet.is_careful = self._care.rows > 0
        while not stop.is_set():
            pace = source.advance(self._send)
            if pace is Pace.FILLING:
                continue
            # Transactions before that of a refused row are committed first.
            is_last = self._outlet.is_careful and not may_split
            is_due = source.is_due(FOREVER_MS if is_last else self._outlet.open_ms)
            if is_due:
                self._end_chunk()
            if is_due or pace is Pace.PAUSING:
                if source.note_confirmed():
                    self._relay.step("noted")
                if source.confirm():
                    self._relay.step("confirmed")
                self._look()
                if source.has_caught_up and not counts.has_caught_up:
                    counts.has_caught_up = True
                    self._on_progress(counts)
                if until_caught_up and counts.has_caught_up:
                    return

    def _send(self, read: Callable[[], Outgoing]) -> None:
        commit_ms, oldest_ms = self._source.commit_ms, self._counts.oldest_unsent_at_ms
        # A table is read shard by shard.
        if oldest_ms is None or commit_ms < oldest_ms:
            self._counts.oldest_unsent_at_ms = commit_ms
        number = self._care.chunk_rows = self._source.rows
        topic, record = "", None
        try:
            topic, record = read()
            record = self._with_time(record, commit_ms)
            self._outlet.add(topic, record, number)
        except RowRefused as problem:
            self._refuse(topic, record, problem)
        if self._outlet.is_careful:
            self._sent = self._source.cursor

    def _with_time(self, record: Record, commit_ms: int) -> Record:
        if self._headers[0] != commit_ms:
            self._headers = commit_ms, ((COMMIT_HEADER, str(commit_ms).encode()),)
        time_ms = commit_ms if self._settings.commit_timestamps else record.timestamp_ms
        headers = record.headers + self._headers[1]
        return Record(0, time_ms, record.key, record.value, headers)

    # Rows that are refused.

    def _refuse(self, topic: str, record: Record | None, problem: RowRefused) -> None:
        """Writes a dead letter for the row at hand, or commits those before it and raises."""
        source = self._source
        raw = problem.raw if isinstance(problem, Unreadable) else Record()
        found = RefusedRow(
            self._outbox.source,
            source.where(),
            source.cursor.commit_lsn,
            problem,
            topic,
            record or self._with_time(raw, source.commit_ms),
        )
        if self._dead_letters is not None:
            self._write_dead_letter(found, self._dead_letters)
            return
        if source.rows > 1 and not self._outlet.is_careful:
            raise ChunkRefused(problem)  # The cursor before this row is not known.
        if self._sent is not None and self._settings.limits.may_split:
            self._end_chunk(self._sent)
        before = "rows" if self._settings.limits.may_split else "transactions"
        stopped = type(problem)(
            f"{found}. The {before} before it are in Kafka; it was not skipped. Remove the cause, "
            "or start with --on-refused dead-letter, which puts such rows into a topic of their own"
        )
        stopped.code = problem.code
        raise stopped from problem

    def _write_dead_letter(self, found: RefusedRow, topic: str) -> None:
        refused: RowRefused | None = None
        for letter in found.dead_letters():
            try:
                self._outlet.add(topic, letter, self._source.rows)
            except RowRefused as problem:
                refused = problem
                continue
            log.warning("%s. It is a dead letter in topic %r", found, topic)
            self._dead += 1
            return
        raise DeadLetterRefused(
            f"{found}. Nor can its dead letter be written to topic {topic!r}: {refused}. Correct "
            "that topic, or name another one with --dead-letter-topic; then start again. The row "
            "was not skipped"
        ) from refused

    def _position(self, cursor: Cursor) -> Position:
        return Position(
            self._outbox.transactional_id,
            cursor,
            self._chunk,
            self._found.system_id,
            self._found.timeline,
            self._found.source,
            self._found.publication,
        )

    def _end_chunk(self, before: Cursor | None = None) -> None:
        """Commits the chunk; `before`: without the row at hand, which is refused."""
        source, step, care = self._source, self._relay.step, self._care
        cursor = before or source.cursor
        rows = source.rows if before is None else source.rows - 1
        step("rows collected")
        self._database.write_row(self._chunk, cursor, source.sent)
        step("row updated")
        self._outlet.write_position(self._position(cursor))
        step("position written")
        self._outlet.commit()
        step("committed")
        source.chunk_committed()
        self._chunk += 1
        self._counts.rows += rows - self._dead
        self._counts.dead_letters += self._dead
        self._dead = 0
        care.rows = max(0, care.rows - rows)
        self._outlet.is_careful, self._sent = care.rows > 0, None
        self._counts.chunks += 1
        self._counts.oldest_unsent_at_ms = None
        source.note(self._counts)
        self._on_progress(self._counts)

    def _look(self) -> None:
        """Asks now and then what nobody says: who owns the id, and what the database shows."""
        now = time.monotonic()
        if now >= self._ownership_due and not self._outlet.open_ms:
            self._ownership_due = now + OWNERSHIP_SECONDS
            self._outlet.require_ownership()
        if now >= self._look_due:
            self._look_due = now + LOOK_SECONDS
            self._database.check_again()
            self._source.look(self._counts.done)
            self._source.note(self._counts)
            self._on_progress(self._counts)
