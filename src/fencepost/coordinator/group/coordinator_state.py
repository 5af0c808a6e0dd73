"""The state of one partition of `__consumer_offsets`."""

from __future__ import annotations

from fencepost.coordinator.group.group import Group
from fencepost.coordinator.group.offsets import Offsets
from fencepost.coordinator.group.settings import GroupCoordinatorSettings


class GroupCoordinatorState:
    """The groups of one coordinator partition and their offsets."""

    __slots__ = ("groups", "is_loading", "offsets", "settings")

    def __init__(self, settings: GroupCoordinatorSettings | None = None) -> None:
        self.settings = settings or GroupCoordinatorSettings()
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.is_loading = True
        """Until `on_loaded`: the groups that records describe have no connected members yet."""

    def __repr__(self) -> str:
        loading = ", loading" if self.is_loading else ""
        return f"GroupCoordinatorState({len(self.groups)} groups{loading})"
