"""Well-known stories about transactions as tests: what can and cannot go wrong, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.requests import batch_of, create_topic
from tests.transactions.protocol import TV1, Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    consume,
    logged_states,
    values,
)

HOUR_MS = 3_600_000
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- the paused producer that wakes after its id has expired ---------------------------------------


@pytest.fixture
def forgetful() -> Iterator[Stage]:
    """A broker that expires an idle id after an hour, and its tombstone a minute later."""
    settings = {"transactional.id.expiration.ms": str(HOUR_MS)}
    with Stage(durability="os", settings=settings) as stage:
        create_topic(stage, "refunds", 2)
        yield stage


@pytest.mark.parametrize("paused", ["between transactions", "inside one"])
@pytest.mark.parametrize("replaced", [False, True], ids=["alone", "replaced"])
def test_a_producer_that_wakes_up_after_its_id_has_expired_cannot_write(
    forgetful: Stage, protocol: Protocol, paused: str, replaced: bool
) -> None:
    """The story: the new producer, with a fresh id, fences no one, and a refund is duplicated.

    It is true that no epochs are compared when the id is not in the log. But the first write of the
    sleeper is verified, and the coordinator does not know its producer id.
    """
    stage = forgetful
    sleeper = WireProducer(stage, "refunds-1", protocol).initialise()
    sleeper.send("refunds", b"RFD-1")
    sleeper.commit()
    if paused == "inside one":
        sleeper.send("refunds", b"RFD-2 by the sleeper")
    stage.advance(4 * HOUR_MS)
    assert logged_states(stage, "refunds-1")[-1] is None, "expired"
    expected = [b"RFD-1"]
    if replaced:
        replacement = WireProducer(stage, "refunds-1", protocol).initialise()
        assert replacement.producer_id != sleeper.producer_id
        replacement.send("refunds", b"RFD-2")
        replacement.commit()
        expected.append(b"RFD-2")
    for index in (0, 1):
        if protocol is TV1:
            assert sleeper.add_one("refunds", index) == UNKNOWN
        refused = sleeper.produce("refunds", b"RFD-2 again", index=index).error_code
        assert refused in (UNKNOWN, ErrorCode.INVALID_PRODUCER_EPOCH)
    for commit in (True, False):
        assert sleeper.end(commit=commit) == UNKNOWN
    assert values(stage, "refunds") == expected
    assert values(stage, "refunds", index=1, committed=False) == []


# -- stable and random transactional ids -----------------------------------------------------------


class Shard:
    """One instance of a refunds service: read a settlement, write its refund, move the offset."""

    def __init__(self, stage: Stage, transactional_id: str, protocol: Protocol) -> None:
        self._stage = stage
        self._producer = WireProducer(stage, transactional_id, protocol).initialise()
        self._offset = -1

    def take(self) -> None:
        """Reads the next settlement and writes its refund into a transaction."""
        self._offset = max(0, committed_offset(self._stage, "refunds", "settlements"))
        record = consume(self._stage, "settlements", offset=self._offset).records[0]
        self._producer.send("refunds-emitted", b"refund of " + (record.value or b""))

    def finish(self) -> int:
        """Moves the offset and commits; returns the first error."""
        one = self._producer
        moved = {("settlements", 0): self._offset + 1}
        if one.protocol is TV1 and (error := one.add_offsets("refunds")):
            return error
        if error := one.commit_offsets("refunds", moved)["settlements", 0]:
            return error
        return one.end(commit=True)


@pytest.fixture
def settled(stage: Stage) -> Stage:
    create_topic(stage, "settlements")
    create_topic(stage, "refunds-emitted")
    await_coordinator(stage, "refunds", GROUP)
    records = batch_of(b"S-1", b"S-2", b"S-3")
    stage.call(
        ApiKey.PRODUCE, 11, produce_request({("settlements", 0): records}, transactional_id=None)
    )
    return stage


def let_a_pod_be_replaced(stage: Stage, protocol: Protocol, names: tuple[str, str]) -> int:
    """A pod hangs with an open refund, another takes over, and then the first one wakes up."""
    pod = Shard(stage, names[0], protocol)
    pod.take()
    replacement = Shard(stage, names[1], protocol)
    replacement.take()
    assert replacement.finish() == NONE
    return pod.finish()


def test_with_a_random_transactional_id_no_producer_is_fenced_and_a_refund_is_duplicated(
    settled: Stage, protocol: Protocol
) -> None:
    """This is not a bug in the broker, which sees two unrelated producers."""
    names = (
        "refunds-2c9f7a54-7f1e-4b0a-9d5e-1a2b3c4d5e6f",
        "refunds-8d3e1b72-0c4d-4e5f-a6b7-c8d9e0f1a2b3",
    )
    assert let_a_pod_be_replaced(settled, protocol, names) == NONE
    assert values(settled, "refunds-emitted") == [b"refund of S-1", b"refund of S-1"]


# -- crash between the write and the offset --------------------------------------------------------


def test_idempotence_alone_is_not_enough(settled: Stage) -> None:
    """A restarted producer has a new producer id, so its retry of the refund is another record."""
    for producer_id in (501, 502):
        records = batch_of(b"refund of S-1", producer_id=producer_id, epoch=0, sequence=0)
        request = produce_request({("refunds-emitted", 0): records}, transactional_id=None)
        for _ in range(2):  # A retry is recognised.
            reply = settled.call(ApiKey.PRODUCE, 11, request)
            assert reply.responses[0].partition_responses[0].error_code == NONE
    assert values(settled, "refunds-emitted") == [b"refund of S-1"] * 2
