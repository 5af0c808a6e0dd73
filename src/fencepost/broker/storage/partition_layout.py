"""What the two kinds of data directories have in common.

`Layout` is the directory of a single broker, which owns all of it, and of the parent of a cluster.
`BrokerLayout` is the same directory as one broker of a cluster uses it. `PartitionStore`, `Flusher`
and DeleteRecords work with either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from fencepost.broker.storage.broker_layout import BrokerLayout
    from fencepost.broker.storage.layout import Layout

    PartitionLayout: TypeAlias = Layout | BrokerLayout


class SavedOffsets(NamedTuple):
    """What was saved about a log before it is opened."""

    recovery_point: int
    log_start_offset: int
    first_dirty_offset: int
    is_clean: bool
    """Whether its last leader closed it cleanly, and no broker has led it since."""


class Save(Protocol):
    """A prepared write of checkpoint files."""

    def run(self) -> None:
        """Writes the files under temporary names; blocks, and touches nothing else."""
        ...
