"""A group without settings of its own."""

from __future__ import annotations

import pytest

from tests.coordinator.group.stage import GroupStage


@pytest.fixture
def stage() -> GroupStage:
    return GroupStage()
