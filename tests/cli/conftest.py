"""A broker for the tests of commands, and commands against it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import fencepost
from tests.cli.running import Commands


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[fencepost.Broker]:
    """One broker for all tests of a module, which use topics and groups of their own."""
    with fencepost.Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def commands(shared_broker: fencepost.Broker, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(shared_broker.bootstrap_servers, capsys)


@pytest.fixture
def name() -> str:
    """A name that no other test uses, with the characters that Kafka allows."""
    return f"a.b_c-{uuid.uuid4().hex[:8]}"
