"""Brokers for the tests of other people. A test suite asks for them in its topmost conftest.py:

    pytest_plugins = ["fencepost.testing.pytest_plugin"]

    def test_a_refund_is_emitted_once(fencepost_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": fencepost_broker.bootstrap_servers})

Whoever needs settings of Kafka's overrides the fixture `fencepost_config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from fencepost.testing.embedded import Broker


@pytest.fixture(scope="session")
def fencepost_config() -> Mapping[str, object]:
    """Settings of the brokers, by Kafka's names; to be overridden."""
    return {}


@pytest.fixture
def fencepost_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """An empty broker for this test alone, which may stop and restart it."""
    with Broker(config=fencepost_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def fencepost_shared_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """One broker for the whole run: faster, but tests see each other's topics, groups and transactional ids."""
    with Broker(config=fencepost_config) as broker:
        yield broker
