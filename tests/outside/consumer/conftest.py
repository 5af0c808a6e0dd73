"""An embedded broker per module, a new topic per test, and a table of what was applied."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import fencepost
from tests.outside.consumer.stage import Stage

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    # Short sessions are allowed, and a group does not wait for more members.
    settings = {"group.min.session.timeout.ms": 100, "group.initial.rebalance.delay.ms": 0}
    with fencepost.Broker(config=settings) as running:
        yield running


@pytest.fixture
def stage(broker: fencepost.Broker, dsn: str) -> Iterator[Stage]:
    with Stage(broker.bootstrap_servers, dsn, f"orders-{next(_NUMBERS)}") as made:
        yield made
