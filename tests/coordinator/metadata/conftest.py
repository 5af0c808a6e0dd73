"""A cluster of three brokers."""

from __future__ import annotations

import pytest

from tests.coordinator.metadata.cluster import Cluster, brokers


@pytest.fixture
def cluster() -> Cluster:
    return brokers(3)
