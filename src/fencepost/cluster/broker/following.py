"""Batches of the metadata log at a broker: applied at once, carried out in their order.

    received   apply the records to the state; the caller learns the new offset
    release    close what the batch takes from this broker, then report RELEASED
    open       when the controller allows it: open what the batch gives, then report DONE

A batch is released when the one before it has been opened, so a partition that moves away and back
is closed and opened in this order. The state may be several batches ahead of the partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.cluster.messages import Batch
from fencepost.coordinator.metadata.effects import Effect
from fencepost.records.metadata_log import decode_record


class Effects(Protocol):
    """What carries out the effects of a batch (`broker/metadata/effects.py`)."""

    def release(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Closes the partitions that this broker no longer leads."""

    def open(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Opens the partitions that this broker leads now, and applies everything else."""


class Reports(Protocol):
    """What the controller hears of a batch."""

    def released(self, end_offset: int) -> None:
        """What the batches below this offset take from this broker is closed."""

    def done(self, end_offset: int) -> None:
        """The batches below this offset are carried out."""


class _Pending(NamedTuple):
    """A batch that is applied and not carried out yet."""

    end_offset: int
    effects: Sequence[Effect]
    opens_at_once: bool


class Following:
    """The metadata log as one broker of a cluster follows it."""

    def __init__(
        self,
        follower: MetadataFollower,
        effects: Effects,
        reports: Reports,
        on_applied: Callable[[int], None],
    ) -> None:
        self._follower = follower
        self._effects = effects
        self._reports = reports
        self._on_applied = on_applied
        self._pending: Final[deque[_Pending]] = deque()
        self._is_busy = False
        """Whether the first batch is being released or opened."""
        self._is_released = False
        """Whether the first batch is released and waits to be opened."""
        self._may_open_below = -1
        self.applied_offset = -1
        """The end of the metadata that the state has."""

    def load(self, batch: Batch) -> None:
        """Takes the whole state, once; the caller opens what this broker leads."""
        assert self.applied_offset < 0, "a broker gets the state once"
        self._apply(batch)

    def receive(self, batch: Batch) -> None:
        """Applies a batch, and carries it out after those before it."""
        assert batch.end_offset > self.applied_offset >= 0, "batches come in their order"
        effects = self._apply(batch)
        self._pending.append(_Pending(batch.end_offset, effects, batch.opens_at_once))
        self._go_on()

    def may_open(self, end_offset: int) -> None:
        """All brokers have released what the batches below this offset take from them."""
        self._may_open_below = max(self._may_open_below, end_offset)
        self._go_on()

    def _apply(self, batch: Batch) -> Sequence[Effect]:
        effects = self._follower.apply([decode_record(each) for each in batch.records])
        self.applied_offset = batch.end_offset
        self._on_applied(batch.end_offset)
        return effects

    def _go_on(self) -> None:
        if self._is_busy or not self._pending:
            return
        batch = self._pending[0]
        if not self._is_released:
            self._is_busy = True
            self._effects.release(batch.effects, self._released)
        elif batch.opens_at_once or batch.end_offset <= self._may_open_below:
            self._is_busy = True
            self._effects.open(batch.effects, self._opened)

    def _released(self) -> None:
        self._is_busy = False
        self._is_released = True
        batch = self._pending[0]
        if not batch.opens_at_once:
            self._reports.released(batch.end_offset)
        self._go_on()

    def _opened(self) -> None:
        self._is_busy = False
        self._is_released = False
        self._reports.done(self._pending.popleft().end_offset)
        self._go_on()
