"""The topics of the coordinators are created on first use.

A broker that needs one asks the controller for it, as a client would. In Kafka it is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import INTERNAL_TOPICS
from fencepost.broker.controller.new_topics import NewTopic

if TYPE_CHECKING:
    from fencepost.broker.controller.controller import Controller, Outcome
    from fencepost.coordinator.metadata.state import MetadataState


class InternalTopics:
    """Creates the internal topics."""

    def __init__(self, metadata: MetadataState, controller: Controller) -> None:
        self._metadata = metadata
        self._controller = controller

    def ensure(self, name: str) -> None:
        """Creates an internal topic if it does not exist.

        Raises StorageError if that fails. Its partitions are open when its records are durable; in
        `os` mode that is now.
        """
        assert name in INTERNAL_TOPICS, f"{name} is not internal"
        if name in self._metadata.topics:
            return
        outcomes: list[Outcome] = []
        self._controller.create([NewTopic(name)], outcomes.extend, validate_only=False)
        if outcomes and outcomes[0].error is not ErrorCode.NONE:
            raise StorageError(f"cannot create {name}: {outcomes[0].message}")
