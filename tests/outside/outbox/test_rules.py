"""What the relay skips, sends, confirms and accepts, without any server.

The stream is a list of transactions, each with the LSNs of its commit and its end and a number of
rows. `Replay` plays it from wherever a slot would start, with the relay dying after any chunk, and
notes which rows were sent.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.rules import (
    PHASES,
    ChunkPlan,
    ChunkRow,
    Cursor,
    Event,
    FoundDatabase,
    HeldWal,
    HeldWalWatch,
    Limits,
    Phase,
    Position,
    Reason,
    Start,
    StartRefused,
    StreamBroken,
    TablePlan,
    judge_start,
    refuse_foreign,
)

# The stream.


class Txn(NamedTuple):
    commit_lsn: int
    rows: int

    @property
    def end_lsn(self) -> int:
        return self.commit_lsn + 10


Sent = tuple[int, int]
"""The commit LSN of a transaction and the number of a row in it."""


def fire(plan: ChunkPlan, event: Event) -> None:
    match event:
        case Event.BEGIN:
            plan.begin(100)
        case Event.ROW:
            plan.row(1)
        case Event.COMMIT:
            plan.commit(110)
        case Event.KEEPALIVE:
            plan.keepalive(120)


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_every_event_is_in_the_table_or_breaks_the_protocol(phase: Phase, event: Event) -> None:
    plan = ChunkPlan(Cursor(200 if phase is Phase.SKIPPING else 0), Limits())
    if phase is not Phase.BETWEEN:
        plan.begin(100)
    assert plan.phase is phase
    if allowed := PHASES.get((phase, event)):
        fire(plan, event)
        assert plan.phase in allowed
    else:
        with pytest.raises(StreamBroken, match="protocol"):
            fire(plan, event)


def play(
    plan: ChunkPlan, stream: list[Txn], sent: list[Sent], die_after: int = 1_000_000
) -> tuple[Cursor, int] | None:
    """Plays it; returns cursor and confirmed LSN if it died after so many chunks."""
    chunks, cursor, pending = 0, plan.cursor, list[Sent]()

    def end_chunk(is_quiet: bool) -> bool:
        nonlocal chunks, cursor
        if plan.is_due(is_quiet=is_quiet, open_ms=0):
            # Rows and cursor in one transaction.
            sent.extend(pending)
            pending.clear()
            cursor = plan.cursor
            chunks += 1
            if chunks == die_after:
                return True
            plan.chunk_committed()
        return False

    for number, txn in enumerate(stream):
        plan.begin(txn.commit_lsn)
        for row in range(txn.rows):
            if plan.row(1):
                pending.append((txn.commit_lsn, row))
            if end_chunk(is_quiet=False):
                return cursor, plan.confirmable
        plan.commit(txn.end_lsn)
        if end_chunk(is_quiet=number % 2 == 1):
            return cursor, plan.confirmable
    end_chunk(is_quiet=True)
    return None


@given(
    rows=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    size=st.integers(1, 5),
    may_split=st.booleans(),
    deaths=st.lists(st.integers(1, 6), max_size=5),
    falls_back=st.booleans(),
)
def test_every_row_is_sent_once_in_order_whatever_dies_where(
    rows: list[int], size: int, may_split: bool, deaths: list[int], falls_back: bool
) -> None:
    stream = [Txn(100 * (index + 1), count) for index, count in enumerate(rows)]
    sent: list[Sent] = []
    limits = Limits(rows=size, may_split=may_split)
    cursor, confirmed = Cursor(50), 0
    for death in [*deaths, 1_000_000]:
        slot = 0 if falls_back else confirmed
        left = [txn for txn in stream if txn.commit_lsn >= slot]
        if (died := play(ChunkPlan(cursor, limits), left, sent, death)) is None:
            break
        cursor, confirmed = died
    assert sent == [(txn.commit_lsn, row) for txn in stream for row in range(txn.rows)]


def test_the_slot_is_told_the_end_of_a_transaction_and_only_when_it_is_in_kafka() -> None:
    plan = ChunkPlan(Cursor(), Limits())
    plan.begin(100)
    assert plan.row(1)
    plan.commit(110)
    assert plan.confirmable == 0
    plan.chunk_committed()
    assert plan.confirmable == 110


def test_the_end_of_a_split_transaction_is_written_before_the_slot_moves() -> None:
    plan = ChunkPlan(Cursor(), Limits(rows=1))
    plan.begin(100)
    plan.row(1)
    plan.chunk_committed()
    plan.commit(110)
    assert plan.confirmable == 0
    assert plan.is_due(is_quiet=True, open_ms=0)
    assert plan.cursor == Cursor(110)
    plan.chunk_committed()
    assert plan.confirmable == 110


def test_an_idle_outbox_confirms_what_keepalives_say() -> None:
    plan = ChunkPlan(Cursor(50), Limits())
    plan.keepalive(500)
    assert plan.confirmable == 500
    assert not plan.is_due(is_quiet=True, open_ms=0)


def test_a_keepalive_within_a_transaction_confirms_nothing() -> None:
    plan = ChunkPlan(Cursor(50), Limits())
    plan.begin(100)
    plan.keepalive(500)
    assert plan.confirmable == 0


def test_transactions_without_rows_are_confirmed_and_need_no_chunk() -> None:
    plan = ChunkPlan(Cursor(50), Limits())
    plan.begin(100)
    plan.commit(110)
    assert plan.confirmable == 110
    assert not plan.is_behind


def test_a_transaction_that_begins_where_the_last_one_ended_is_sent() -> None:
    plan = ChunkPlan(Cursor(110), Limits())
    plan.begin(110)
    assert plan.row(1)


@pytest.mark.parametrize(
    ("limits", "open_ms", "inside", "between"),
    [
        (Limits(rows=2), 0, True, True),
        (Limits(size_bytes=2), 0, True, True),
        (Limits(), 20_000, True, True),
        (Limits(rows=2, may_split=False), 0, False, True),
        (Limits(open_ms=1, may_split=False), 5, False, True),
        (Limits(), 0, False, False),
    ],
)
def test_a_chunk_ends_when_it_is_full_and_within_a_transaction_only_if_told(
    limits: Limits, open_ms: int, inside: bool, between: bool
) -> None:
    plan = ChunkPlan(Cursor(), limits)
    plan.begin(100)
    plan.row(1)
    plan.row(1)
    assert plan.is_due(is_quiet=True, open_ms=open_ms) is inside
    plan.commit(110)
    assert plan.is_due(is_quiet=False, open_ms=open_ms) is between
    assert plan.is_due(is_quiet=True, open_ms=open_ms)


def test_the_lost_rest_of_a_split_transaction_ends_the_relay() -> None:
    plan = ChunkPlan(Cursor(50, 100, 3), Limits())
    with pytest.raises(StreamBroken, match="--accept new-slot"):
        plan.begin(200)


def test_a_split_transaction_that_became_shorter_ends_the_relay() -> None:
    plan = ChunkPlan(Cursor(50, 100, 3), Limits())
    plan.begin(100)
    assert not plan.row(1)
    with pytest.raises(StreamBroken, match="fewer rows"):
        plan.commit(110)


# A numbered table.

Numbered = tuple[int, int]
"""The shard of a row and its number."""


def play_table(
    plan: TablePlan, rows: list[Numbered], sent: list[Numbered], die_after: int = 1_000_000
) -> Cursor | None:
    """Queries as a relay does; returns the cursor of Kafka if it died after so many chunks."""
    chunks, cursor, pending, is_quiet = 0, plan.cursor, list[Numbered](), False
    while not is_quiet:
        limit, found = plan.rows_per_shard, list[Numbered]()
        for shard, after in enumerate(plan.cursor.numbers):
            found += [row for row in rows if row[0] == shard and row[1] > after][:limit]
        counts = [sum(row[0] == shard for row in found) for shard in range(len(plan.sent))]
        is_quiet = limit is None or all(count < limit for count in counts)
        for row in [*found, None]:
            if row is not None:
                plan.row(*row, 1)
                pending.append(row)
            if plan.is_due(is_between=row is None, is_quiet=row is None and is_quiet, open_ms=0):
                sent.extend(pending)
                pending.clear()
                cursor = plan.cursor
                chunks += 1
                if chunks == die_after:
                    return cursor
                plan.chunk_committed()
                assert plan.sent == cursor.numbers
    assert not pending
    return None


@given(
    shards=st.lists(st.integers(0, 3), max_size=30),
    size=st.integers(1, 9),
    may_split=st.booleans(),
    deaths=st.lists(st.integers(1, 6), max_size=5),
)
def test_every_numbered_row_is_sent_once_in_the_order_of_its_shard(
    shards: list[int], size: int, may_split: bool, deaths: list[int]
) -> None:
    rows = [(shard, number + 1) for number, shard in enumerate(shards)]
    sent: list[Numbered] = []
    cursor = Cursor(numbers=(0,) * 4)
    for death in [*deaths, 1_000_000]:
        plan = TablePlan(cursor, Limits(rows=size, may_split=may_split))
        if (died := play_table(plan, rows, sent, death)) is None:
            break
        cursor = died
    for shard in range(4):
        assert [row for row in sent if row[0] == shard] == [r for r in rows if r[0] == shard]


def test_a_chunk_of_whole_transactions_ends_only_between_queries() -> None:
    plan = TablePlan(Cursor(numbers=(0,)), Limits(rows=1, may_split=False))
    assert plan.rows_per_shard is None
    plan.row(0, 1, 1)
    assert not plan.is_due(is_between=False, is_quiet=False, open_ms=60_000)
    assert plan.is_due(is_between=True, is_quiet=True, open_ms=0)


def test_a_number_that_comes_again_ends_the_relay() -> None:
    plan = TablePlan(Cursor(numbers=(0, 7)), Limits())
    plan.row(0, 5, 1)
    with pytest.raises(StreamBroken, match="numbers were changed"):
        plan.row(1, 7, 1)


# The start.

POSITION = Position("r", Cursor(1_000), 5, "sys", 1, "table outbox")
FOUND = FoundDatabase(
    "sys", 1, 2_000, "table outbox", ChunkRow(5, Cursor(1_000), 100), confirmed_flush_lsn=100
)


def found(
    chunk: int = 5,
    cursor: int = 1_000,
    *,
    confirmed: int | None = 0,
    slot: int = 100,
    of_init: str = "",
    **more: object,
) -> FoundDatabase:
    row = ChunkRow(chunk, Cursor(cursor), 100, confirmed=confirmed, publication=of_init)
    return FOUND._replace(row=row, confirmed_flush_lsn=slot, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "database", "start"),
    [
        (None, found(0, 0), Start(Cursor(100), 0, needs_position=True)),
        (None, found(0, 0, slot=7), Start(Cursor(7), 0, needs_position=True)),
        (POSITION._replace(chunk=0), found(1, 1_500), Start(Cursor(1_000), 1)),
        (POSITION, FOUND, Start(Cursor(1_000), 6)),
        (POSITION, found(6, 1_500), Start(Cursor(1_000), 6)),
        (POSITION, found(publication="8"), Start(Cursor(1_000), 6)),
        (POSITION._replace(publication="8"), found(publication="8"), Start(Cursor(1_000), 6)),
    ],
    ids=[
        "new",
        "copied before the first start",
        "died before the first commit",
        "k",
        "k - 1",
        "older position",
        "same publication",
    ],
)
def test_a_start_goes_on_where_the_position_is(
    position: Position | None, database: FoundDatabase, start: Start
) -> None:
    assert judge_start(position, database, ()) == start
    assert judge_start(position, database, set(Reason)) == start


SPLIT = POSITION._replace(cursor=Cursor(1_000, 1_600, 3))
R = Reason


@pytest.mark.parametrize(
    ("position", "database", "reasons", "cursor"),
    [
        (POSITION, found(system_id="other"), {R.FOREIGN}, Cursor(100)),
        (POSITION, found(lsn=999), {R.RESTORED}, Cursor(100)),
        (POSITION, found(4), {R.RESTORED}, Cursor(100)),
        (POSITION, found(0, 0), {R.RESTORED}, Cursor(100)),
        (POSITION, found(5, 900), {R.RESTORED}, Cursor(100)),
        (POSITION, found(confirmed=2_001), {R.RESTORED}, Cursor(100)),
        (POSITION, found(7), {R.LOST_POSITION}, Cursor(100)),
        (None, found(1), {R.LOST_POSITION}, Cursor(100)),
        (POSITION, found(slot=1_001), {R.NEW_SLOT}, Cursor(1_001)),
        (POSITION, found(slot=1_501, confirmed=1_500), {R.NEW_SLOT}, Cursor(1_501)),
        (POSITION, found(6, 1_500, slot=1_001), {R.NEW_SLOT}, Cursor(1_001)),
        (None, found(0, 0, slot=101), {R.NEW_SLOT}, Cursor(101)),
        (POSITION, found(slot=1_001, confirmed=None), {R.NEW_SLOT}, Cursor(1_001)),
        (POSITION._replace(publication="7"), found(publication="8"), {R.NEW_PUBLICATION},
         Cursor(1_000)),
        (POSITION, found(timeline=2), {R.FAILED_OVER}, Cursor(1_000)),
        (POSITION, found(timeline=2, slot=1_500, confirmed=1_500), {R.FAILED_OVER}, Cursor(1_000)),
        (None, found(0, 0, publication="8", of_init="7"), {R.NEW_PUBLICATION}, Cursor(100)),
        (None, found(1, publication="8", of_init="7"), {R.LOST_POSITION}, Cursor(100)),
        # Several at once.
        (POSITION, found(4, timeline=2), {R.RESTORED, R.FAILED_OVER}, Cursor(100)),
        (POSITION, found(timeline=2, slot=1_500), {R.NEW_SLOT, R.FAILED_OVER}, Cursor(1_500)),
        (POSITION._replace(publication="7"), found(publication="8", slot=1_500, timeline=2),
         {R.NEW_SLOT, R.NEW_PUBLICATION, R.FAILED_OVER}, Cursor(1_500)),
        (POSITION, found(4, 900, slot=1_500), {R.RESTORED, R.NEW_SLOT}, Cursor(1_500)),
        (POSITION, found(7, 1_400, slot=1_500), {R.LOST_POSITION, R.NEW_SLOT}, Cursor(1_500)),
        # The slot of another state of the database is compared with its row.
        (POSITION, found(4, 900, slot=900), {R.RESTORED}, Cursor(900)),
        (POSITION, found(7, 1_500, slot=1_500), {R.LOST_POSITION}, Cursor(1_500)),
        (None, found(7, 1_500, slot=1_600, confirmed=1_600), {R.LOST_POSITION}, Cursor(1_600)),
        # Another system has other LSNs, but a copy keeps the number of its chunk.
        (POSITION, found(slot=7, confirmed=9_000, system_id="other"), {R.FOREIGN}, Cursor(7)),
        (POSITION, found(0, 0, slot=7, system_id="other", timeline=9), {R.FOREIGN}, Cursor(7)),
        (POSITION, found(4, slot=7, system_id="other"), {R.FOREIGN, R.RESTORED}, Cursor(7)),
        (POSITION, found(9, slot=7, system_id="other"), {R.FOREIGN, R.LOST_POSITION}, Cursor(7)),
    ],
)  # fmt: skip
def test_another_database_is_refused_until_every_reason_is_accepted(
    position: Position | None, database: FoundDatabase, reasons: set[Reason], cursor: Cursor
) -> None:
    for accept in (set[Reason](), *(set(Reason) - {reason} for reason in reasons)):
        with pytest.raises(StartRefused) as caught:
            judge_start(position, database, accept)
        assert caught.value.reasons == reasons - accept
        for reason in caught.value.reasons:
            assert f"--accept {reason.value}" in str(caught.value)
    start = judge_start(position, database, reasons)
    assert start.cursor == cursor
    assert start.needs_position
    assert start.next_chunk >= database.row.chunk
    assert start.next_chunk > (position.chunk if position else -1)
    assert_a_death_changes_nothing(position, database, reasons)


def assert_a_death_changes_nothing(
    position: Position | None, database: FoundDatabase, reasons: set[Reason]
) -> None:
    """Wherever relays die that accept reasons: the next start refuses for them, with one result."""
    first = judge_start(position, database, reasons)
    for _ in range(3):
        start = judge_start(position, database, reasons)
        assert start.cursor == first.cursor
        confirmed = 0 if start.resets_confirmed else database.row.confirmed
        row = database.row._replace(
            chunk=start.next_chunk,
            cursor=start.cursor,
            sent=start.cursor.numbers,
            confirmed=confirmed,
        )
        recorded = Position("r", start.cursor, start.next_chunk, *database[:2], database.source)
        recorded = recorded._replace(publication=database.publication)
        assert not judge_start(recorded, database._replace(row=row), ()).needs_position
        if start.is_row_last:
            position = recorded
        else:
            database = database._replace(row=row)
        with pytest.raises(StartRefused) as caught:
            judge_start(position, database, ())
        assert caught.value.reasons <= reasons


def test_a_part_of_a_transaction_is_not_sent_again_if_the_slot_still_has_it() -> None:
    """An earlier version told the slot what keepalives said, up to where the transaction began."""
    split = found(5, slot=1_500, confirmed=None)
    split = split._replace(row=split.row._replace(cursor=SPLIT.cursor))
    start = judge_start(SPLIT, split, {Reason.NEW_SLOT})
    assert start.cursor == Cursor(1_500, 1_600, 3)
    beyond = split._replace(confirmed_flush_lsn=1_601)
    assert judge_start(SPLIT, beyond, {Reason.NEW_SLOT}).cursor == Cursor(1_601)


def test_an_earlier_version_is_named_if_it_may_have_moved_the_slot() -> None:
    with pytest.raises(StartRefused, match="ran in an earlier version last"):
        judge_start(POSITION, found(slot=1_001, confirmed=None), ())
    assert not judge_start(POSITION, found(slot=1_000, confirmed=None), ()).needs_position


@pytest.mark.parametrize("chunk", [4, 5, 6])
def test_a_copy_is_told_from_an_older_one_in_words(chunk: int) -> None:
    with pytest.raises(StartRefused) as caught:
        judge_start(POSITION, found(chunk, system_id="other"), ())
    assert ("nothing is sent again" in str(caught.value)) is (chunk == 5)


NUMBERED = Position("r", Cursor(numbers=(7, 9)), 5, "sys", 1, "numbered")


def numbered(chunk: int = 5, numbers: tuple[int, ...] = (7, 9), **more: object) -> FoundDatabase:
    row = ChunkRow(chunk, Cursor(numbers=numbers), 0, sent=(6, 9))
    start = FoundDatabase("sys", 1, 2_000, "numbered", row, shards=2, last_number=9)
    return start._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "database", "reason", "numbers"),
    [
        (NUMBERED, numbered(), None, (7, 9)),
        (NUMBERED, numbered(6, (8, 9)), None, (7, 9)),
        (NUMBERED._replace(cursor=Cursor(numbers=(7, 12))), numbered(6, (8, 9)), Reason.RESTORED,
         (6, 9)),
        (NUMBERED, numbered(4), Reason.RESTORED, (6, 9)),
        (NUMBERED, numbered(5, (7, 8)), Reason.RESTORED, (6, 9)),
        (None, numbered(), Reason.LOST_POSITION, (6, 9)),
        (None, numbered(shards=3), Reason.LOST_POSITION, (6, 9, 0)),
        (NUMBERED, numbered(source="other"), Reason.OTHER_SOURCE, (0, 0)),
        (POSITION, numbered(), Reason.OTHER_SOURCE, (0, 0)),
        (NUMBERED, FOUND, Reason.OTHER_SOURCE, ()),
        (NUMBERED, numbered(timeline=2), Reason.FAILED_OVER, (7, 9)),
    ],
)  # fmt: skip
def test_a_numbered_table_is_judged_by_the_same_rules(
    position: Position | None,
    database: FoundDatabase,
    reason: Reason | None,
    numbers: tuple[int, ...],
) -> None:
    """What is sent again when a reason is accepted: rows that the database does not know sent."""
    if reason is not None:
        with pytest.raises(StartRefused) as caught:
            judge_start(position, database, ())
        assert caught.value.reasons == {reason}
        assert_a_death_changes_nothing(position, database, {reason})
    assert judge_start(position, database, {reason} if reason else ()).cursor.numbers == numbers


def test_a_table_with_another_spelling_is_the_same_one() -> None:
    one, other = "numbered table outbox (sequence 7)", "numbered table public.outbox (sequence 7)"
    position = NUMBERED._replace(source=one)
    assert judge_start(position, numbered(source=other), ()) == Start(NUMBERED.cursor, 6)
    with pytest.raises(StartRefused, match="other-source"):
        judge_start(position, numbered(source=other.replace("7", "8")), ())


@pytest.mark.parametrize("system_id", ["sys", "other"])
def test_a_sequence_behind_its_table_is_named_whatever_is_accepted(system_id: str) -> None:
    """New rows would get numbers that the relay takes for sent."""
    database = numbered(last_number=8, sequence='"a_fencepost"', system_id=system_id)
    for reason in (Reason.RESTORED, Reason.FOREIGN):
        with pytest.raises(OutsideError) as caught:
            judge_start(NUMBERED, database, {reason})
        if not isinstance(caught.value, StartRefused):
            assert "SELECT setval('\"a_fencepost\"', 9)" in str(caught.value)
    repaired = database._replace(last_number=9)
    if system_id == "sys":
        assert judge_start(NUMBERED, repaired, ()) == Start(NUMBERED.cursor, 6)
    else:
        assert judge_start(NUMBERED, repaired, {Reason.FOREIGN}).cursor.numbers == (6, 9)


def test_a_foreign_database_is_refused_before_its_relay_is_fenced() -> None:
    with pytest.raises(StartRefused):
        refuse_foreign(POSITION, found(system_id="other"), ())
    refuse_foreign(POSITION, found(system_id="other"), {Reason.FOREIGN})
    # A running relay may be several chunks ahead of what is visible of it.
    refuse_foreign(POSITION, found(9), ())
    refuse_foreign(None, FOUND, ())


def test_another_source_is_refused_while_a_transaction_is_split() -> None:
    database = found(source="table other")
    split = POSITION._replace(cursor=Cursor(1_000, 1_100, 3))
    row = ChunkRow(5, split.cursor, 100)
    with pytest.raises(StreamBroken, match="options of before"):
        judge_start(split, database._replace(row=row), ())
    assert judge_start(POSITION, database, ()) == Start(Cursor(1_000), 6)


# The log that the slot holds.


def test_a_slot_over_the_limit_ends_the_relay_only_if_nothing_moves_for_a_minute() -> None:
    watch = HeldWalWatch(100)
    assert not watch.is_stuck(HeldWal(500, 7), 0, 0, keeps_up=False)
    assert not watch.is_stuck(HeldWal(500, 7), 0, 59_000, keeps_up=False)
    assert not watch.is_stuck(HeldWal(500, 7), 1, 61_000, keeps_up=False), "a backlog is relayed"
    assert not watch.is_stuck(HeldWal(500, 8), 1, 122_000, keeps_up=False), "the slot moved"
    assert not watch.is_stuck(HeldWal(99, 8), 1, 190_000, keeps_up=False), "below the limit"
    assert watch.is_stuck(HeldWal(500, 8), 1, 200_000, keeps_up=False)
    assert not HeldWalWatch(None).is_stuck(HeldWal(500, 8), 1, 10**9, keeps_up=False)


def test_new_rows_do_not_hide_that_a_transaction_holds_the_log() -> None:
    """A relay that keeps up always has new rows, and the slot stays where the transaction began."""
    watch = HeldWalWatch(100)
    for look in range(6):
        assert not watch.is_stuck(HeldWal(500, 7), look, look * 10_000, keeps_up=True)
    assert watch.is_stuck(HeldWal(500, 7), 6, 60_000, keeps_up=True)
