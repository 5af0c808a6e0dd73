"""A topic for groups that lag behind."""

from __future__ import annotations

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from tests.cli.commands.groups import write


@pytest.fixture
def topic(cluster: Cluster, name: str) -> str:
    """A topic of two partitions; record n of each is n seconds old since 1970."""
    cluster.create_topics([NewTopic(name, 2)])
    write(cluster, name, 0, 10)
    write(cluster, name, 1, 5)
    return name
