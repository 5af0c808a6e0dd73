"""pytest fixtures with brokers, which pytest finds wherever fencepost is installed.

    def test_a_refund_is_emitted_once(fencepost_broker):
        servers = fencepost_broker.bootstrap_servers
        producer = confluent_kafka.Producer({"bootstrap.servers": servers})

To change the broker settings, override the fixture `fencepost_config`.

Every pytest run in an environment with fencepost imports this module, so it imports the broker only
when a test needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencepost.testing.embedded import Broker


@pytest.fixture(scope="session")
def fencepost_config() -> Mapping[str, object]:
    """Broker settings by Kafka's names; override it to change them."""
    return {}


@pytest.fixture
def fencepost_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """A fresh broker for one test, which may stop and restart it."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def fencepost_shared_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """One broker for the run: faster, but tests share topics, groups and transactional ids."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config) as broker:
        yield broker
