"""Brokers for the tests of other people. pytest finds these fixtures by itself where fencepost is installed:

    def test_a_refund_is_emitted_once(fencepost_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": fencepost_broker.bootstrap_servers})

For other settings of the brokers, override the fixture `fencepost_config`.

Every pytest run of an environment with fencepost imports this module, also where no test wants a
broker: so it imports the broker only when one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencepost.testing.embedded import Broker


@pytest.fixture(scope="session")
def fencepost_config() -> Mapping[str, object]:
    """Settings of the brokers, by Kafka's names; to be overridden."""
    return {}


@pytest.fixture
def fencepost_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """An empty broker for this test alone, which may stop and restart it."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def fencepost_shared_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """One broker for the whole run: faster, but tests see each other's topics, groups and transactional ids."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config) as broker:
        yield broker
