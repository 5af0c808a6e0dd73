"""A broker that is in a hurry: short checks for timeouts and expired ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.client.blocking import Cluster, connect

HURRY = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    """Transactions time out soon after their timeout."""
    with fencepost.Broker(config=HURRY) as running:
        yield running


@pytest.fixture(scope="module")
def servers(broker: fencepost.Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture(scope="module")
def forgetful_servers() -> Iterator[str]:
    """Idle ids expire after a moment."""
    with fencepost.Broker(config={**HURRY, "transactional.id.expiration.ms": 300}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    with connect(servers) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:8]}"
