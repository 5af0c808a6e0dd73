"""A broker on a virtual clock for each test, and both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.node_stage import Stage
from tests.transactions.protocol import PROTOCOLS, Protocol


@pytest.fixture
def stage() -> Iterator[Stage]:
    """The whole broker in this thread, on a disk in memory, with a virtual clock."""
    with Stage(durability="os") as started:
        yield started


@pytest.fixture(params=PROTOCOLS, ids=repr)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """TV1 (explicit adds, one epoch) and TV2 (implicit adds, an epoch per transaction)."""
    chosen: Protocol = request.param
    return chosen
