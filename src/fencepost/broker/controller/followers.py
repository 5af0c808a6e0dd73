"""The brokers that follow the metadata log, as the controller knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.records.metadata_log import MetadataRecord


class Followers(Protocol):
    """Everything that the controller needs from brokers; it passes effects on without a look."""

    controller_id: int
    """The node that decides; the controller sets it when it has loaded its log."""

    @property
    def state(self) -> MetadataState:
        """The state that the controller decides on."""

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[Effect]:
        """Applies a batch in the turn in which it was appended; returns what it means."""

    def carry_out(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Carries out the effects of records that are durable now, then calls `done`."""
