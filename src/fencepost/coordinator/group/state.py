"""What one partition of `__consumer_offsets` amounts to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.coordinator.group.offsets import Offsets
from fencepost.coordinator.group.settings import Settings

if TYPE_CHECKING:
    from fencepost.coordinator.group.group import Group


class GroupState:
    """The groups of one coordinator partition and their offsets."""

    __slots__ = ("groups", "is_loading", "offsets", "settings")

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.is_loading = True
        """Until `on_loaded`: records describe groups that nobody talks to yet."""

    def __repr__(self) -> str:
        return f"GroupState({len(self.groups)} groups{', loading' if self.is_loading else ''})"
