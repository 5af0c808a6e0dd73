"""Faults with errors that an API never returns are refused: they would show nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fencepost
from fencepost.base.failures import ConfigError


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as started:
        yield started


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Fetch", "INVALID_TXN_STATE"),
        ("Fetch", "NOT_COORDINATOR"),
        ("Metadata", "REBALANCE_IN_PROGRESS"),
        ("EndTxn", "NOT_LEADER_OR_FOLLOWER"),
        ("Produce", "ILLEGAL_GENERATION"),
    ],
)
def test_an_error_that_the_api_never_returns_is_refused_with_those_that_it_does(
    broker: fencepost.Broker, api: str, error: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{api} never returns {error}. What it returns: [A-Z_]+"
    ):
        broker.faults.on(api).fail(error)
    broker.faults.reset()


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Fetch", "KAFKA_STORAGE_ERROR"),
        ("Fetch", "UNKNOWN_SERVER_ERROR"),
        ("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        ("TxnOffsetCommit", "ILLEGAL_GENERATION"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_errors_that_some_broker_returns_are_allowed(
    broker: fencepost.Broker, api: str, error: str
) -> None:
    broker.faults.on(api).fail(error).optional()
