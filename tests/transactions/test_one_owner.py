"""One owner: requests of earlier owners of a transactional id are refused, in both protocols.

Method: each earlier owner, with or without an open transaction, sends each request in each state of
the current owner. In the end only the records of the current owner are read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from fencepost.base.errors import ErrorCode
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.halves import half_of
from tests.transactions.protocol import PROTOCOLS, TV1, TV2, Protocol
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    values,
)

FENCED = ErrorCode.PRODUCER_FENCED
STALE = ErrorCode.INVALID_PRODUCER_EPOCH

OWNER_STATES = ["initialised", "open", "committed", "aborted"]


@pytest.fixture(autouse=True)
def _topics(stage: Stage) -> None:
    create_topic(stage, "t", 2)
    create_topic(stage, "source")
    await_coordinator(stage, "g", GROUP)


def bring(owner: WireProducer, state: str) -> list[bytes]:
    """Brings the owner into a state; returns what it has committed."""
    if state == "initialised":
        return []
    owner.send("t", b"of the owner")
    if state == "committed":
        owner.commit()
        return [b"of the owner"]
    if state == "aborted":
        owner.abort()
    return []


def requests_of(earlier: WireProducer) -> dict[str, Callable[[], int]]:
    identity = {"producer_id": earlier.producer_id, "epoch": earlier.epoch}
    return {
        "commit": lambda: earlier.end(commit=True),
        "abort": lambda: earlier.end(commit=False),
        "commit in the other protocol": lambda: earlier.end(
            commit=True, version=TV1.end_txn if earlier.protocol is TV2 else TV2.end_txn
        ),
        "send": lambda: earlier.produce("t", b"zombie").error_code,
        "add": lambda: earlier.add_one("t", 1),
        "offsets": lambda: earlier.commit_offsets("g", {("source", 0): 9})["source", 0],
        "group": lambda: earlier.add_offsets("g"),
        "init": lambda: earlier.init(**identity),
    }


@pytest.mark.parametrize(
    ("old", "new", "was_open", "state"),
    [
        (*pair, was_open, state)
        for pair in product(PROTOCOLS, repeat=2)
        for was_open in (False, True)
        for state in half_of(OWNER_STATES, str(pair), str(was_open))
    ],
)
def test_case_86_every_request_of_an_earlier_owner_is_refused(
    stage: Stage, old: Protocol, new: Protocol, was_open: bool, state: str
) -> None:
    earlier = WireProducer(stage, "a", old).initialise()
    if was_open:
        earlier.send("t", b"of the earlier one")
    owner = WireProducer(stage, "a", new).initialise()
    committed = bring(owner, state)
    identity = earlier.identity
    for name, request in requests_of(earlier).items():
        assert request() in (FENCED, STALE), name
        assert earlier.identity == identity, f"{name}: it got the epoch of another producer"
    if state == "open":
        owner.commit()
        committed = [b"of the owner"]
    owner.send("t", b"and on")
    owner.commit()
    assert values(stage, "t") == [*committed, b"and on"]
    assert committed_offset(stage, "g", "source") == -1


def test_a_tv2_producer_that_took_over_from_tv1_may_retry_an_end(stage: Stage) -> None:
    """The record of its last end counts, not the protocol of the transaction before."""
    earlier = WireProducer(stage, "a", TV1).initialise()
    earlier.send("t", b"earlier")
    earlier.commit()
    owner = WireProducer(stage, "a", TV2).initialise()
    owner.send("t", b"v")
    retry = owner.twin()
    assert owner.end(commit=True) == NONE
    assert retry.end(commit=True) == NONE
    assert retry.identity == owner.identity
