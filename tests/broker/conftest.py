"""One embedded broker per test module, unique topic names, and the broker's warnings."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator

import pytest

import fencepost
from fencepost.broker import turns
from tests.broker.controller.topics_stage import StubNode
from tests.broker.raw import RawClient
from tests.broker.requests import create_topic

NewTopic = Callable[..., str]
Complaints = Callable[[], list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as running:
        yield running


@pytest.fixture
def client(broker: fencepost.Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def other(broker: fencepost.Broker) -> Iterator[RawClient]:
    """A second client of the same broker."""
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def node() -> StubNode:
    """A controller and the broker that follows it."""
    return StubNode().start()


_numbers = itertools.count()


@pytest.fixture
def new_topic(client: RawClient) -> NewTopic:
    """Creates a topic with an unused name; settings are given with underscores."""

    def create(partitions: int = 1, **settings: str) -> str:
        name = f"topic-{next(_numbers)}"
        given = {key.replace("_", "."): value for key, value in settings.items()}
        create_topic(client, name, partitions, given)
        return name

    return create


@pytest.fixture
def one_step_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long requests yield to the loop after every step, however fast the machine is."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Drops the log lines of tests in which hundreds of brokers fail."""
    caplog.set_level(logging.CRITICAL, logger="fencepost")


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Complaints:
    """The warnings and errors that the broker has logged so far in this test."""
    caplog.set_level(logging.INFO, logger="fencepost")

    def lines() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("fencepost") and record.levelno >= logging.WARNING
        ]

    return lines
