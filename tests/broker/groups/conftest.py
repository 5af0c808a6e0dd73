"""A group coordinator with the topics of the tests."""

from __future__ import annotations

import pytest

from tests.broker.groups.groups_stage import GroupNode


@pytest.fixture
def node() -> GroupNode:
    return GroupNode().begin()
