"""Visibility for read_committed, compared with a simple oracle over random histories."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.seams import Buffer
from fencepost.client.fetched import (
    AbortedTransaction,
    FetchedPartition,
    visible_batches,
    whole_batches,
)
from fencepost.client.reading import fetch
from fencepost.records.batch import BatchError, SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec
from fencepost.records.control import Marker, build_marker
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.fetch import AbortedTransaction as AbortedForm
from fencepost.wire.forms.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tests.client.scripted import Script, partition


def data(
    offset: int, *values: bytes, producer_id: int = -1, codec: Codec = Codec.NONE
) -> bytearray:
    return build_batch(
        [Record(value=value) for value in values],
        timestamp_ms=0,
        base_offset=offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> Buffer:
    batch = build_marker(
        Marker(commit, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )
    return batch.data


def fetched(
    *batches: Buffer, aborted: list[tuple[int, int]] | None = None, start: int = 0
) -> FetchedPartition:
    return FetchedPartition(
        partition=partition(),
        fetch_offset=start,
        high_watermark=100,
        last_stable_offset=100,
        log_start_offset=0,
        batches=[read_header(batch) for batch in batches],
        aborted=sorted(AbortedTransaction(first, producer) for producer, first in aborted or []),
    )


def values(answer: FetchedPartition) -> list[bytes | None]:
    return [record.value for record in answer.records()]


def test_an_aborted_transaction_is_hidden_up_to_its_marker() -> None:
    answer = fetched(
        data(0, b"plain"),
        data(1, b"a", b"b", producer_id=7),
        data(3, b"other", producer_id=8),
        marker(4, 7, commit=False),
        data(5, b"c", producer_id=7),
        marker(6, 7, commit=True),
        marker(7, 8, commit=True),
        aborted=[(7, 1)],
    )
    assert values(answer) == [b"plain", b"other", b"c"]
    assert answer.next_offset == 8


def test_an_aborted_transaction_that_began_before_the_fetch_offset_is_hidden() -> None:
    answer = fetched(
        data(10, b"a", producer_id=7), marker(11, 7, commit=False), aborted=[(7, 2)], start=10
    )
    assert values(answer) == []
    assert answer.next_offset == 12


def test_records_before_the_fetch_offset_are_skipped() -> None:
    assert values(fetched(data(0, b"a", b"b", b"c", codec=Codec.LZ4), start=1)) == [b"b", b"c"]


def test_without_a_list_of_aborted_transactions_everything_but_markers_is_visible() -> None:
    answer = fetched(data(0, b"a", producer_id=7), marker(1, 7, commit=False))
    assert values(answer) == [b"a"]


def test_an_empty_fetch_does_not_move_the_next_offset() -> None:
    assert fetched(start=42).next_offset == 42


def test_a_damaged_batch_is_an_error() -> None:
    broken = data(0, b"a")
    broken[-1] ^= 1
    with pytest.raises(BatchError, match="CRC"):
        values(fetched(broken))


@pytest.mark.parametrize("cut", [1, 11, 12, 30, 60, 61, 70])
def test_a_truncated_last_batch_is_left_for_the_next_fetch(cut: int) -> None:
    whole = data(0, b"a")
    found = whole_batches(memoryview(whole + data(1, b"b" * 30)[:cut]))
    assert [batch.next_offset for batch in found] == [1]


def test_a_truncated_first_batch_is_an_error() -> None:
    with pytest.raises(BatchError, match="a part of a batch"):
        whole_batches(memoryview(data(0, b"a" * 100)[:90]))
    assert whole_batches(None) == []
    assert whole_batches(memoryview(b"")) == []


class FetchedHistory:
    """A random log, and what a read_committed reader should see of it."""

    def __init__(self, rng: Random, steps: int) -> None:
        self.batches: list[Buffer] = []
        self.committed: set[int] = set()
        self.aborted: list[tuple[int, int]] = []
        self.offset = 0
        self._open: dict[int, list[int]] = {}
        for _ in range(steps):
            producer_id = rng.choice([-1, 1, 2, 3])
            if producer_id in self._open and rng.random() < 0.4:
                self._end(producer_id, commit=rng.random() < 0.5)
            else:
                self._write(producer_id, rng.randint(1, 3))
        for producer_id in list(self._open):
            self._end(producer_id, commit=rng.random() < 0.5)

    def _write(self, producer_id: int, count: int) -> None:
        names = [b"%d" % (self.offset + i) for i in range(count)]
        self.batches.append(data(self.offset, *names, producer_id=producer_id))
        written = range(self.offset, self.offset + count)
        if producer_id < 0:
            self.committed.update(written)
        else:
            self._open.setdefault(producer_id, []).extend(written)
        self.offset += count

    def _end(self, producer_id: int, *, commit: bool) -> None:
        written = self._open.pop(producer_id)
        self.batches.append(marker(self.offset, producer_id, commit=commit))
        if commit:
            self.committed.update(written)
        else:
            self.aborted.append((producer_id, written[0]))
        self.offset += 1


@settings(max_examples=200)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(1, 5))
def test_random_histories_are_read_correctly_in_pieces(rng: Random, steps: int, piece: int) -> None:
    """However the log is split into fetches, a reader sees each committed record once."""
    history = FetchedHistory(rng, steps)
    batches: list[SealedBatch] = [read_header(batch) for batch in history.batches]
    seen: list[int] = []
    for start in range(0, len(batches), piece):
        part = batches[start : start + piece]
        first, last = part[0].base_offset, part[-1].last_offset
        # A broker lists the aborted transactions that overlap the range it sends.
        ends = {(pid, at): _abort_offset(batches, pid, at) for pid, at in history.aborted}
        listed = [
            AbortedTransaction(at, pid)
            for (pid, at), end in ends.items()
            if end >= first and at <= last
        ]
        for batch in visible_batches(part, listed):
            seen += range(batch.base_offset, batch.next_offset)
    assert seen == sorted(history.committed)


def _abort_offset(batches: list[SealedBatch], producer_id: int, first_offset: int) -> int:
    return next(
        b.base_offset
        for b in batches
        if b.is_control and b.producer_id == producer_id and b.base_offset > first_offset
    )


# The procedure.


def test_a_fetch_sends_its_isolation_level_and_returns_the_partition_data() -> None:
    records = bytes(data(5, b"a", producer_id=7) + marker(6, 7, commit=False))
    part = PartitionData(
        partition_index=0,
        high_watermark=9,
        last_stable_offset=8,
        log_start_offset=2,
        aborted_transactions=[AbortedForm(producer_id=7, first_offset=5)],
        records=records,
    )
    script = Script()
    script.leaders["t"] = [2]
    script.on(
        ApiKey.FETCH,
        FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])]),
    )
    answer = script.run(fetch(script.core, {partition(): 5}, max_wait_ms=7))[partition()]
    (seen,) = script.of(ApiKey.FETCH)
    assert (seen.form.isolation_level, seen.form.max_wait_ms, seen.form.session_epoch) == (1, 7, -1)
    assert seen.form.topics[0].partitions[0].fetch_offset == 5
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (9, 8, 2)
    assert [batch.base_offset for batch in answer.batches] == [5, 6]
    assert (list(answer.records()), answer.next_offset) == ([], 7)


def test_a_fetch_returns_partial_results_if_one_leader_is_unavailable(script: Script) -> None:
    script.leaders["t"] = [1, -1]
    part = PartitionData(partition_index=0, high_watermark=3)
    script.on(
        ApiKey.FETCH,
        FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])]),
    )
    answer = script.run(fetch(script.core, {partition(0): 0, partition(1): 0}))
    assert set(answer) == {partition(0)}
