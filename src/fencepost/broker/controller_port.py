"""The controller, as a broker reaches it: in its own process, or over a link to the parent.

The topics of the coordinators are created on first use. A broker that needs one asks the controller
for it, as a client would. In Kafka it is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.broker.controller.controller import Outcome, Outcomes
    from fencepost.broker.dispatch import Forward
    from fencepost.coordinator.metadata.state import MetadataState


class ControllerPort(Protocol):
    """What a broker asks of the controller.

    `Controller` is the controller in this process, `ControllerClient` the link to another one.
    """

    @property
    def forward(self) -> Forward | None:
        """Sends it a request that only the controller serves; None if it is in this process."""

    def auto_create(self, names: Sequence[str], done: Callable[[Outcomes], None]) -> None:
        """Creates topics with default settings; calls `done` when they are open, or refused."""

    def reserve_block(self, done: Callable[[range | None], None]) -> None:
        """Reserves a block of producer ids; calls `done` with None if that failed."""

    def on_damage(self) -> None:
        """A scrub has found that the metadata log on the disk is damaged."""


class InternalTopics:
    """Creates the internal topics."""

    def __init__(self, metadata: MetadataState, controller: ControllerPort) -> None:
        self._metadata = metadata
        self._controller = controller

    def ensure(self, name: str) -> None:
        """Creates an internal topic if it does not exist.

        Raises StorageError if that fails at once. Its partitions are open when its records are
        durable and the brokers have applied them; in a single broker in `os` mode that is now.
        """
        assert name in INTERNAL_TOPICS, f"{name} is not internal"
        if name in self._metadata.topics:
            return
        outcomes: list[Outcome] = []
        self._controller.auto_create([name], outcomes.extend)
        if outcomes and outcomes[0].error is not ErrorCode.NONE:
            raise StorageError(f"cannot create {name}: {outcomes[0].message}")
