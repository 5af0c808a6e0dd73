"""What a partition remembers of each producer: epoch, sequences, and the last five batches.

Theory of operation.

A producer numbers the records that it sends to one partition. The broker accepts a batch whose
first sequence follows the last one. It answers a duplicate of one of the last five batches with the
offsets of the first append, and refuses everything else (OUT_OF_ORDER_SEQUENCE_NUMBER). Sequences
wrap from 2^31-1 to 0.

A higher epoch starts again at 0. A lower epoch is refused with INVALID_PRODUCER_EPOCH, never with
PRODUCER_FENCED (KAFKA-10687). A marker may raise the epoch too; the next sequence is then 0.

An unknown producer id may start anywhere: its state may have expired while the producer was idle. A
TV2 transaction has a new epoch each time and must start at 0 (KAFKA-18202).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import MAX_PRODUCER_EPOCH, MAX_SEQUENCE, NO_SEQUENCE
from fencepost.base.limits import BATCHES_REMEMBERED_PER_PRODUCER
from fencepost.base.refusal import Refusal
from fencepost.records.batch import SealedBatch
from fencepost.records.control import Marker
from fencepost.records.saved_point import SavedProducer
from fencepost.records.snapshot import ProducerSnapshotEntry

NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1


@dataclass(slots=True, init=False)
class RememberedBatch:
    """One of a producer's last five batches: enough to recognise and answer a duplicate."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int

    def __init__(
        self,
        first_sequence: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
    ) -> None:
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.timestamp_ms = timestamp_ms


@dataclass(slots=True, init=False)
class CompletedTxn:
    """A transaction that a marker has just ended here."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool

    def __init__(
        self, producer_id: int, first_offset: int, last_offset: int, aborted: bool
    ) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.aborted = aborted


class ProducerState:
    """One producer id on one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[RememberedBatch] = deque(maxlen=BATCHES_REMEMBERED_PER_PRODUCER)
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp_ms = -1
        self.txn_first_offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 when only a marker is known at this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def in_txn(self) -> bool:
        """Whether the producer has an open transaction here."""
        return self.txn_first_offset != NO_OFFSET

    def check_epoch(self, epoch: int) -> Refusal | None:
        """Refuses an epoch below the last one seen: its producer was fenced."""
        if epoch < self.epoch:
            return self.refuse_epoch(epoch)
        return None

    def refuse_epoch(self, epoch: int) -> Refusal:
        """The refusal of a fenced producer; it names both epochs."""
        return Refusal(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {self.producer_id} is {epoch}, which is smaller than the last seen "
            f"epoch {self.epoch}.",
        )

    def find_duplicate(self, batch: SealedBatch) -> RememberedBatch | None:
        """The remembered batch with exactly these sequences at this epoch; None otherwise."""
        if batch.producer_epoch != self.epoch:
            return None
        first = batch.base_sequence
        for known in self.batches:
            if known.first_sequence == first and known.last_sequence == batch.last_sequence:
                return known
        return None

    def expects(self, sequence: int) -> bool:
        """Whether `sequence` follows the last one at this epoch."""
        last = self.last_sequence
        return sequence == last + 1 if last != MAX_SEQUENCE else sequence == 0

    def __repr__(self) -> str:
        txn = f", txn from {self.txn_first_offset}" if self.in_txn else ""
        return (
            f"ProducerState({self.producer_id}, epoch {self.epoch}, sequence "
            f"{self.last_sequence}{txn})"
        )


class Producers:
    """All producers of one partition: checks change nothing, `apply_*` refuses nothing."""

    __slots__ = ("_states", "has_forgotten")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self.has_forgotten = False
        """Whether producers have expired whose batches are still in the log."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._states.values())

    def get(self, producer_id: int) -> ProducerState | None:
        """The state of a producer; None when it is unknown."""
        return self._states.get(producer_id)

    # -- checks ---------------------------------------------------------------------------------

    def check_epoch(self, producer_id: int, epoch: int) -> Refusal | None:
        """Refuses the epoch of a fenced producer; an unknown producer passes."""
        state = self._states.get(producer_id)
        return None if state is None else state.check_epoch(epoch)

    def check_sequence(self, batch: SealedBatch, *, starts_at_zero: bool) -> Refusal | None:
        """Checks that a client's batch follows the last one; `check_epoch` comes before.

        `starts_at_zero` is set for transactions of TV2, whose unknown producers must begin at 0.
        """
        state = self._states.get(batch.producer_id)
        sequence = batch.base_sequence
        if state is None:
            if starts_at_zero and sequence != 0:
                return self._out_of_order(batch, expected=0)
            return None
        assert batch.producer_epoch >= state.epoch, "the epoch was checked before"
        if batch.producer_epoch > state.epoch:
            if sequence != 0:
                return self._out_of_order(batch, expected=0)
        elif not state.expects(sequence):
            last = state.last_sequence
            return self._out_of_order(batch, expected=0 if last == MAX_SEQUENCE else last + 1)
        # At a higher epoch too: the marker of the open transaction would be refused after it.
        if state.in_txn and not batch.is_transactional:
            return Refusal(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {batch.producer_id} has an open transaction on this partition since "
                f"offset {state.txn_first_offset}; a batch outside of it cannot be written until "
                "it ends.",
            )
        return None

    @staticmethod
    def _out_of_order(batch: SealedBatch, expected: int) -> Refusal:
        return Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {batch.producer_id} at epoch "
            f"{batch.producer_epoch}: got {batch.base_sequence}, expected {expected}.",
        )

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Refusal | None:
        """Checks whether a coordinator may write this marker (KIP-1228)."""
        state = self._states.get(producer_id)
        if state is None:
            return None
        if refusal := state.check_epoch(producer_epoch):
            return refusal
        if (
            transaction_version >= 2
            and producer_epoch == state.epoch
            and producer_epoch != MAX_PRODUCER_EPOCH
            # An equal epoch without an open transaction is a repeated marker (KAFKA-19999).
            and state.in_txn
        ):
            return state.refuse_epoch(producer_epoch)
        if coordinator_epoch < state.coordinator_epoch:
            return Refusal(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"A coordinator of epoch {coordinator_epoch} came after one of epoch "
                f"{state.coordinator_epoch} for producer {producer_id}.",
            )
        return None

    # -- the only mutations ---------------------------------------------------------------------

    def forget_txns(self) -> None:
        """Forgets all open transactions."""
        for state in self._states.values():
            state.txn_first_offset = NO_OFFSET

    def apply_batch(self, batch: SealedBatch) -> bool:
        """Applies a data batch of the log; True when it opened a transaction here."""
        producer_id = batch.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, batch.producer_epoch)
        elif state.epoch != batch.producer_epoch:
            state.epoch = batch.producer_epoch
            state.batches.clear()
        state.batches.append(
            RememberedBatch(
                batch.base_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.max_timestamp,
            )
        )
        state.last_timestamp_ms = batch.max_timestamp
        if batch.is_transactional and state.txn_first_offset == NO_OFFSET:
            state.txn_first_offset = batch.base_offset
            return True
        return False

    def apply_marker(self, batch: SealedBatch, marker: Marker) -> CompletedTxn | None:
        """Applies a marker of the log; returns the transaction that it ended, if one was open."""
        producer_id = batch.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, batch.producer_epoch)
        elif state.epoch != batch.producer_epoch:
            state.epoch = batch.producer_epoch
            state.batches.clear()
        state.coordinator_epoch = marker.coordinator_epoch
        # A marker's time counts for expiry, else the coordinator epoch could go backwards
        # (KAFKA-9144).
        state.last_timestamp_ms = batch.max_timestamp
        first_offset = state.txn_first_offset
        state.txn_first_offset = NO_OFFSET
        if first_offset == NO_OFFSET:
            return None
        return CompletedTxn(producer_id, first_offset, batch.base_offset, not marker.commit)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets idle producers without an open transaction; returns how many."""
        idle = [
            state.producer_id
            for state in self._states.values()
            if not state.in_txn and now_ms - state.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in idle:
            del self._states[producer_id]
            self.has_forgotten = True
        return len(idle)

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The entries of Kafka's .snapshot file: the last batch of each producer."""
        return [_snapshot_entry(state) for state in self._states.values()]

    def restore(self, entries: Iterable[ProducerSnapshotEntry]) -> list[tuple[int, int]]:
        """Loads a snapshot; returns its open transactions as (first offset, producer id)."""
        self._states = {entry.producer_id: _restored(entry) for entry in entries}
        return self.open_txns()

    def save(self) -> list[SavedProducer]:
        """The producers for a saved point: all remembered batches of each."""
        return [
            SavedProducer(
                state.producer_id,
                state.epoch,
                state.coordinator_epoch,
                state.last_timestamp_ms,
                state.txn_first_offset,
                [
                    (
                        batch.first_sequence,
                        batch.last_sequence,
                        batch.base_offset,
                        batch.last_offset,
                        batch.timestamp_ms,
                    )
                    for batch in state.batches
                ],
            )
            for state in self._states.values()
        ]

    def restore_saved(self, saved: Iterable[SavedProducer]) -> list[tuple[int, int]]:
        """Loads the producers of a saved point; returns their open transactions."""
        self._states = {each.producer_id: _from_saved(each) for each in saved}
        return self.open_txns()

    def open_txns(self) -> list[tuple[int, int]]:
        """The open transactions as (first offset, producer id), oldest first."""
        return sorted(
            (state.txn_first_offset, state.producer_id)
            for state in self._states.values()
            if state.in_txn
        )


def _from_saved(saved: SavedProducer) -> ProducerState:
    state = ProducerState(saved.producer_id, saved.epoch)
    state.coordinator_epoch = saved.coordinator_epoch
    state.last_timestamp_ms = saved.last_timestamp_ms
    state.txn_first_offset = saved.txn_first_offset
    for batch in saved.batches:
        state.batches.append(RememberedBatch(*batch))
    return state


def _snapshot_entry(state: ProducerState) -> ProducerSnapshotEntry:
    last = state.batches[-1] if state.batches else None
    return ProducerSnapshotEntry(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=last.last_sequence if last else NO_SEQUENCE,
        last_offset=last.last_offset if last else NO_OFFSET,
        offset_delta=last.last_offset - last.base_offset if last else 0,
        timestamp_ms=state.last_timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_first_offset=state.txn_first_offset,
    )


def _restored(entry: ProducerSnapshotEntry) -> ProducerState:
    state = ProducerState(entry.producer_id, entry.producer_epoch)
    state.last_timestamp_ms = entry.timestamp_ms
    state.coordinator_epoch = entry.coordinator_epoch
    state.txn_first_offset = entry.current_txn_first_offset
    if entry.last_offset != NO_OFFSET:
        state.batches.append(
            RememberedBatch(
                _sequence_before(entry.last_sequence, entry.offset_delta),
                entry.last_sequence,
                entry.last_offset - entry.offset_delta,
                entry.last_offset,
                entry.timestamp_ms,
            )
        )
    return state


def _sequence_before(sequence: int, steps: int) -> int:
    """The sequence `steps` before `sequence`, across the wrap at 0 (KAFKA-7692)."""
    return sequence - steps if sequence >= steps else MAX_SEQUENCE - (steps - sequence) + 1
