"""Fates agree with what readers see, and with the partition's own state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.client.fetched import AbortedTransaction, visible_batches, whole_batches
from fencepost.partition.partition import Appended
from fencepost.partition.verification import Guard
from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.control import Marker, build_marker
from fencepost.records.fates import (
    WHOLE_LOG,
    End,
    Fate,
    Known,
    Transaction,
    TransactionFollower,
    fates,
    fates_when_decided,
)
from fencepost.records.index import AbortedTxn
from tests.halves import examples
from tests.partition.batches import client_batch
from tests.partition.conftest import PartitionStage

EVERYTHING = 1 << 30
PRODUCERS = (1, 2, 3)


def scan_transactions(
    batches: Iterable[SealedBatch], known: Known = WHOLE_LOG
) -> dict[tuple[int, int], Transaction]:
    """The first pass, as the tools do it: all transactions by their key, as they begin."""
    follower = TransactionFollower(known)
    found = {each.key: each for each in follower.open.values()}
    for batch in batches:
        transaction = follower.follow(batch)
        if transaction is not None and not batch.is_control:
            found.setdefault(transaction.key, transaction)
    return found


@dataclass
class History:
    """A partition, written by several producers, and what each batch should have become."""

    stage: PartitionStage = field(default_factory=lambda: PartitionStage(segment_bytes=600))
    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    sequences: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    open: dict[int, list[int]] = field(default_factory=dict)
    expected: dict[int, Fate] = field(default_factory=dict)

    def write(self, producer: int) -> None:
        batch = client_batch(
            producer_id=producer,
            epoch=self.epochs[producer],
            sequence=self.sequences[producer],
            transactional=True,
        )
        offset = self._append(batch)
        self.sequences[producer] += 1
        self.open.setdefault(producer, []).append(offset)
        self.expected[offset] = Fate.OPEN

    def write_plain(self) -> None:
        self.expected[self._append(client_batch())] = Fate.NOT_TRANSACTIONAL

    def end(self, producer: int, *, commit: bool, bump: bool) -> None:
        if bump:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        offset = self.stage.partition.log.log_end_offset
        ended = self.stage.partition.append_marker(
            producer,
            self.epochs[producer],
            commit=commit,
            coordinator_epoch=7,
            transaction_version=1,
            now_ms=5_000 + offset,
        )
        assert isinstance(ended, int), ended
        self.expected[offset] = Fate.CONTROL
        for each in self.open.pop(producer, []):
            self.expected[each] = Fate.COMMITTED if commit else Fate.ABORTED

    def _append(self, batch: SealedBatch) -> int:
        guard = None
        if batch.is_transactional:
            begun = self.stage.partition.begin_verification(batch, 1_000, starts_at_zero=False)
            assert begun is None or isinstance(begun, Guard), begun
            guard = begun
        appended = self.stage.partition.append_from_client(batch, 1_000, guard)
        assert isinstance(appended, Appended), appended
        return appended.base_offset

    def fetch(
        self, offset: int, *, read_committed: bool
    ) -> tuple[list[SealedBatch], list[AbortedTransaction], int]:
        """All batches from an offset, as a consumer would get them, and the last stable offset."""
        batches: list[SealedBatch] = []
        aborted: set[AbortedTransaction] = set()
        while True:
            part = self.stage.partition.fetch(offset, EVERYTHING, read_committed=read_committed)
            aborted.update(AbortedTransaction(first, pid) for pid, first in part.aborted or ())
            found = whole_batches(part.data)
            if not found:
                return batches, sorted(aborted), part.last_stable_offset
            batches += found
            offset = found[-1].next_offset

    def batches(self) -> list[SealedBatch]:
        return self.fetch(0, read_committed=False)[0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(PRODUCERS)),
        st.just(("plain",)),
        st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans(), st.booleans()),
    ),
    max_size=30,
)


def history_of(steps: list[tuple[object, ...]]) -> History:
    history = History()
    for name, *details in steps:
        if name == "write":
            history.write(details[0])  # type: ignore[arg-type]
        elif name == "plain":
            history.write_plain()
        else:
            producer, commit, bump = details
            history.end(producer, commit=commit, bump=bump)  # type: ignore[arg-type]
    return history


def fates_by_offset(batches: list[SealedBatch], known: Known = WHOLE_LOG) -> dict[int, Fate]:
    found = scan_transactions(batches, known)
    return {each.batch.base_offset: each.fate for each in fates(batches, found, known)}


@given(steps=STEPS)
def test_every_batch_of_a_log_has_the_fate_that_its_marker_decided(
    steps: list[tuple[object, ...]],
) -> None:
    history = history_of(steps)
    assert fates_by_offset(history.batches()) == history.expected


@given(steps=STEPS)
def test_one_pass_gives_the_same_in_the_same_order_as_two(steps: list[tuple[object, ...]]) -> None:
    batches = history_of(steps).batches()
    two_passes = list(fates(batches, scan_transactions(batches)))
    one_pass = list(fates_when_decided(iter(batches)))
    assert [each.batch for each in one_pass] == batches
    assert [each.fate for each in one_pass] == [each.fate for each in two_passes]
    assert [each.end for each in one_pass] == [each.end for each in two_passes]


@given(steps=STEPS)
def test_read_committed_readers_see_exactly_what_is_committed_below_the_last_stable_offset(
    steps: list[tuple[object, ...]],
) -> None:
    history = history_of(steps)
    found = fates_by_offset(history.batches())
    for start in sorted(found):
        batches, aborted, stable = history.fetch(start, read_committed=True)
        seen = [each.base_offset for each in visible_batches(batches, aborted)]
        assert seen == [
            offset
            for offset, fate in sorted(found.items())
            if start <= offset < stable and fate in (Fate.COMMITTED, Fate.NOT_TRANSACTIONAL)
        ]


@given(steps=STEPS)
def test_transactions_agree_with_the_partition_about_what_is_open_and_what_was_aborted(
    steps: list[tuple[object, ...]],
) -> None:
    history = history_of(steps)
    found = scan_transactions(history.batches()).values()
    partition = history.stage.partition
    still_open = [each.first_offset for each in found if each.end is None]
    assert still_open == list(partition.open_txns._open)
    aborted = [
        (each.producer_id, each.first_offset, each.end.offset)
        for each in found
        if each.end is not None and not each.end.commit
    ]
    indexed = partition.log.aborted_between(0, EVERYTHING)
    assert sorted(aborted) == sorted(txn[:3] for txn in indexed)


@settings(max_examples=examples(60))
@given(steps=STEPS, data=st.data())
def test_a_range_from_a_read_committed_fetch_has_the_fates_of_the_whole_log(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    history = history_of(steps)
    whole = fates_by_offset(history.batches())
    start = data.draw(st.sampled_from(sorted(whole) or [0]))
    batches, aborted, stable = history.fetch(start, read_committed=True)
    stop = data.draw(st.integers(0, len(batches)))
    known = Known(
        aborted=[AbortedTxn(each.producer_id, each.first_offset, -1, -1) for each in aborted],
        stable_offset=stable,
        reaches_log_end=False,
    )
    found = fates_by_offset(batches[:stop], known)
    assert found == {offset: whole[offset] for offset in found}
    # Nothing is held back: the list and the last stable offset decide everything.
    decided = fates_when_decided(batches[:stop], known, max_held_bytes=0)
    assert {each.batch.base_offset: each.fate for each in decided} == found


@settings(max_examples=examples(60))
@given(steps=STEPS, max_bytes=st.integers(1, 300), data=st.data())
def test_a_follower_that_learns_from_each_fetch_decides_everything_at_once(
    steps: list[tuple[object, ...]], max_bytes: int, data: st.DataObject
) -> None:
    history = history_of(steps)
    whole = fates_by_offset(history.batches())
    start = data.draw(st.sampled_from(sorted(whole) or [0]))
    follower = TransactionFollower(Known(reaches_log_end=False))

    def fetched() -> Iterator[SealedBatch]:
        offset = start
        while True:
            part = history.stage.partition.fetch(offset, max_bytes, read_committed=True)
            batches = whole_batches(part.data)
            if not batches:
                return
            aborted = [AbortedTxn(pid, first, -1, -1) for pid, first in part.aborted or ()]
            follower.learn(aborted, part.last_stable_offset)
            yield from batches
            offset = batches[-1].next_offset

    judged = list(fates_when_decided(fetched(), follower=follower, max_held_bytes=0))
    found = {each.batch.base_offset: each.fate for each in judged}
    stable = history.stage.partition.last_stable_offset
    assert found == {
        offset: fate for offset, fate in whole.items() if start <= offset < max(start, stable)
    }


@settings(max_examples=examples(60))
@given(steps=STEPS, data=st.data())
def test_the_transaction_index_gives_the_fate_and_the_bounds_of_what_was_aborted(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    history = history_of(steps)
    batches = history.batches()
    start = data.draw(st.integers(0, len(batches)))
    whole = {each.batch.base_offset: each for each in fates(batches, scan_transactions(batches))}
    indexed = history.stage.partition.log.aborted_between(0, EVERYTHING)
    known = Known(aborted=indexed, reaches_log_end=False)
    part = batches[start:]
    for each in fates(part, scan_transactions(part, known), known):
        expected = whole[each.batch.base_offset]
        if each.fate is Fate.UNKNOWN:
            assert expected.fate is Fate.OPEN
            continue
        assert (each.fate, each.end) == (expected.fate, expected.end)
        if each.transaction is not None and each.transaction.has_start:
            assert expected.transaction is not None
            assert each.transaction.key == expected.transaction.key


@settings(max_examples=examples(60))
@given(steps=STEPS, data=st.data())
def test_a_range_that_knows_what_was_open_where_it_begins_has_the_transactions_of_the_whole_log(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    batches = history_of(steps).batches()
    whole = scan_transactions(batches)
    middle = data.draw(st.integers(0, len(batches)))
    before = TransactionFollower()
    for batch in batches[:middle]:
        before.follow(batch)
    known = Known(open_at_start={pid: each.first_offset for pid, each in before.open.items()})
    for each in fates(batches[middle:], scan_transactions(batches[middle:], known), known):
        if each.transaction is not None:
            assert each.transaction.has_start
            assert each.transaction.end == whole[each.transaction.key].end


# -- by hand --------------------------------------------------------------------------------------


def data_batch(offset: int, *, producer: int = 1, epoch: int = 0, sequence: int = 5) -> SealedBatch:
    batch = client_batch(producer_id=producer, epoch=epoch, sequence=sequence, transactional=True)
    raw = bytearray(batch.data)
    sealed = read_header(memoryview(raw))
    sealed.assign(offset, 0)
    return sealed


def marker_batch(offset: int, *, commit: bool, producer: int = 1, epoch: int = 0) -> SealedBatch:
    return build_marker(
        Marker(commit, 3),
        producer_id=producer,
        producer_epoch=epoch,
        timestamp_ms=9_000,
        base_offset=offset,
    )


def test_a_marker_tells_its_offset_time_and_coordinator_epoch() -> None:
    batches = [data_batch(10, sequence=0), marker_batch(11, commit=False, epoch=1)]
    ((_, transaction),) = scan_transactions(batches).items()
    assert transaction.end == End(False, 11, 9_000, 3, 1)
    assert (transaction.producer_epoch, transaction.first_offset) == (0, 10)


def test_a_marker_of_a_partition_that_was_never_written_ends_nothing() -> None:
    (only,) = fates([marker_batch(4, commit=True)], {})
    assert (only.fate, only.transaction) == (Fate.CONTROL, None)
    assert only.end is not None
    assert only.end.commit


def test_a_range_that_begins_inside_a_transaction_does_not_claim_to_know_where_it_began() -> None:
    middle = Known(reaches_log_end=False)
    found = scan_transactions([data_batch(10), marker_batch(11, commit=True)], middle)
    assert [each.has_start for each in found.values()] == [False]


def test_sequence_zero_and_an_earlier_marker_show_that_a_transaction_begins_in_the_range() -> None:
    batches = [
        data_batch(10, producer=1, sequence=0),
        marker_batch(11, commit=True, producer=2),
        data_batch(12, producer=2, sequence=40),
    ]
    found = scan_transactions(batches, Known())
    assert [each.has_start for each in found.values()] == [True, True]


@pytest.mark.parametrize(("reaches_log_end", "fate"), [(True, Fate.OPEN), (False, Fate.UNKNOWN)])
def test_without_a_marker_a_batch_is_open_at_the_end_of_the_log_and_unknown_before(
    reaches_log_end: bool, fate: Fate
) -> None:
    known = Known(reaches_log_end=reaches_log_end)
    assert fates_by_offset([data_batch(10)], known) == {10: fate}


def test_what_waits_for_a_marker_is_bounded() -> None:
    batches = [data_batch(offset) for offset in range(100)]
    taken = 0

    def counted() -> object:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch

    first = next(fates_when_decided(counted(), max_held_bytes=10 * len(batches[0].data)))  # type: ignore[arg-type]
    assert (first.batch.base_offset, first.fate, taken) == (0, Fate.UNKNOWN, 11)


def test_the_end_of_a_listed_transaction_ends_what_the_list_hides() -> None:
    """The list names the first transaction only; the second one has no marker in the range."""
    batches = [data_batch(5), marker_batch(6, commit=False), data_batch(7)]
    known = Known(aborted=[AbortedTxn(1, 0, -1, -1)], stable_offset=100, reaches_log_end=False)
    assert fates_by_offset(batches, known) == {5: Fate.ABORTED, 6: Fate.CONTROL, 7: Fate.COMMITTED}


def test_an_abort_by_an_administrator_splits_a_transaction_in_two() -> None:
    """WriteTxnMarkers on a live transaction: what follows is a separate transaction here."""
    batches = [
        data_batch(0, sequence=0),
        marker_batch(1, commit=False),
        data_batch(2, sequence=1),
        marker_batch(3, commit=True),
    ]
    assert fates_by_offset(batches) == {
        0: Fate.ABORTED,
        1: Fate.CONTROL,
        2: Fate.COMMITTED,
        3: Fate.CONTROL,
    }
    keys = [each.key for each in scan_transactions(batches).values()]
    assert keys == [(1, 0), (1, 2)]
    assert isinstance(next(iter(scan_transactions(batches).values())), Transaction)
