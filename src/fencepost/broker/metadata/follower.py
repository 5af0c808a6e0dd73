"""Follows the metadata log: the state of the cluster for the other parts of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.ids import NO_NODE
from fencepost.coordinator.metadata.apply import apply
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionsCreated,
    SettingsChanged,
    TopicRemoved,
    effects_of,
)
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.broker.metadata.effects import MetadataEffects
    from fencepost.wire.forms.metadata import MetadataResponseTopic

_BROKER_RECORDS: Final = (
    RegisterBrokerRecord,
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)


class MetadataFollower:
    """What one broker knows of its cluster."""

    def __init__(self) -> None:
        self.state: Final = MetadataState()
        self.cluster_id = ""
        self.controller_id = NO_NODE
        self.shown: dict[str, MetadataResponseTopic] = {}
        """Topics as Metadata replies describe them, until the state or the set of open partitions
        changes."""
        self._effects: MetadataEffects | None = None

    def attach(self, effects: MetadataEffects) -> None:
        """Sets what carries out the effects; the state can be loaded before."""
        self._effects = effects

    def apply(self, records: Sequence[MetadataRecord]) -> list[Effect]:
        """Applies a batch of the log, and returns its effects."""
        effects = effects_of(self.state, records)
        for record in records:
            apply(self.state, record)
        self._forget_shown(records, effects)
        return effects

    def carry_out(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Carries out the effects of records that are durable now, then calls `done`."""
        assert self._effects is not None, "effects are attached first"
        self._effects.run(effects, done)

    def partitions_changed(self, topic: str) -> None:
        """Drops the cached description of a topic: one of its partitions was opened or closed."""
        self.shown.pop(topic, None)

    def _forget_shown(self, records: Sequence[MetadataRecord], effects: Sequence[Effect]) -> None:
        """Drops the cached descriptions that a batch changes."""
        for effect in effects:
            match effect:
                case PartitionsCreated() | TopicRemoved():
                    self.shown.pop(effect.topic, None)
                case LeadersChanged():
                    for change in effect.partitions:
                        self.shown.pop(change.topic, None)
                case SettingsChanged():
                    pass  # They are not shown.
        if any(isinstance(record, _BROKER_RECORDS) for record in records):
            self.shown.clear()
