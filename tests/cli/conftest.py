"""A broker for the tests of commands, and commands against it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.client.blocking import Cluster, connect
from tests.cli.processes import Processes
from tests.cli.running import Commands


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    """One broker for all tests of a module, which use their own topics and groups."""
    with fencepost.Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def servers(broker: fencepost.Broker) -> str:
    """The cluster that `commands` talk to."""
    return broker.bootstrap_servers


@pytest.fixture
def commands(servers: str, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(servers, capsys)


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    with connect(servers) as cluster:
        yield cluster


@pytest.fixture
def name() -> str:
    """A name that no other test uses, with the characters that Kafka allows."""
    return f"a.b_c-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()
