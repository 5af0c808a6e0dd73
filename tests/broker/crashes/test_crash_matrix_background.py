"""Crashes and failing calls during large commits, and while the scrub reads what others change.

Method: the clients and the drivers of the crash matrix. A commit is served in slices of one offset.
The scrub reads every segment while retention, compaction and a deletion run beside it.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.broker.groups import slices
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.broker.crashes.test_crash_matrix import (
    Clients,
    compaction,
    crash_at_calls,
    delete_topic,
    fail_at_calls,
    keep_house,
    some_retention,
    started,
)
from tests.broker.damage.test_damaged_directory import flip
from tests.broker.node_stage import Stage
from tests.halves import EVERY_CALL
from tests.transactions.wire import GROUP, NONE, RETRIABLE, WireProducer, await_coordinator

pytestmark = pytest.mark.usefixtures("quiet")

PLACES = (("t", 0), ("c", 0), ("d", 0), ("d", 1))
"""The partitions of a commit, in the order of the request; each is a slice."""
OLD, NEW, DROPPED = 100, 200, 300
PLAIN, TRANSACTIONAL = "plain", "transactional"


# -- commits in slices
# ------------------------------------------------------------------------------------


@pytest.fixture
def slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "COMMITTED_PER_TURN", 1)


def commit_plainly(stage: Stage, offset: int) -> list[int]:
    """The error of each place."""
    topics: dict[str, list[Any]] = {}
    for topic, index in PLACES:
        place = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        topics.setdefault(topic, []).append(place)
    asked = [OffsetCommitRequestTopic(name=n, partitions=each) for n, each in topics.items()]
    request = OffsetCommitRequest(group_id=PLAIN, topics=asked)
    reply = stage.call(ApiKey.OFFSET_COMMIT, 8, request)
    return [each.error_code for topic in reply.topics for each in topic.partitions]


def committed(stage: Stage, group: str) -> list[int]:
    """The offset of each place; none may be pending."""
    topics = [
        OffsetFetchRequestTopics(name=topic, partition_indexes=[index]) for topic, index in PLACES
    ]
    asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
    request = OffsetFetchRequest(groups=[asked], require_stable=True)
    for _ in range(100):
        (reply,) = stage.call(ApiKey.OFFSET_FETCH, 8, request).groups
        if reply.error_code not in RETRIABLE:
            break
        stage.advance(100)
    assert reply.error_code == NONE, ErrorCode(reply.error_code)
    found = [each for topic in reply.topics for each in topic.partitions]
    assert [each.error_code for each in found] == [NONE] * len(PLACES)
    return [each.committed_offset for each in found]


class WideCommits:
    """The story, and what its clients know of the outcomes."""

    __name__ = "wide commits"

    def __init__(self) -> None:
        self.told: list[int] | None = None
        self.is_committed = False

    def __call__(self, clients: Clients) -> None:
        self.__init__()  # type: ignore[misc]
        stage = clients.stage
        await_coordinator(stage, PLAIN, GROUP)
        assert set(commit_plainly(stage, OLD)) <= {NONE, *RETRIABLE}
        self.told = commit_plainly(stage, NEW)
        producer = WireProducer(stage, "wide").initialise()
        for offset, commit in ((OLD, True), (NEW, True), (DROPPED, False)):
            self.transaction(clients, producer, offset, commit=commit)
            self.is_committed = self.is_committed or offset == NEW

    def transaction(
        self, clients: Clients, producer: WireProducer, offset: int, *, commit: bool
    ) -> None:
        places = dict.fromkeys(PLACES, offset)
        clients.insist(producer, lambda: producer.add_offsets(TRANSACTIONAL))
        clients.insist(
            producer, lambda: max(producer.commit_offsets(TRANSACTIONAL, places).values())
        )
        clients.insist(producer, lambda: producer.end(commit=commit))

    def check(self, clients: Clients) -> None:
        stage = clients.stage
        WireProducer(stage, "wide").initialise()  # What it left open is aborted.
        stage.advance(1_000)
        offsets = committed(stage, PLAIN)
        if self.told is None:
            in_order = sorted(offsets, reverse=True)
            assert offsets == in_order, "a later slice without an earlier one"
        else:
            is_new = [offset == NEW for offset in offsets]
            assert is_new == [error == NONE for error in self.told], "an answer was not true"
        found = set(committed(stage, TRANSACTIONAL))
        assert len(found) == 1, f"a part of a transaction's offsets: {found}"
        assert DROPPED not in found
        if self.is_committed:
            assert found == {NEW}

    def check_after_a_loss(self, clients: Clients) -> None:
        """Offsets may be gone, but those of one transaction all or none."""
        WireProducer(clients.stage, "wide").initialise()
        clients.stage.advance(1_000)
        found = set(committed(clients.stage, TRANSACTIONAL))
        assert len(found) == 1
        assert DROPPED not in found


@pytest.mark.usefixtures("slices_of_one")
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_after_a_crash_at_sampled_calls_of_a_large_commit_its_offsets_are_as_answered(
    durability: str, crash: str
) -> None:
    story = WideCommits()
    is_lossy = (durability, crash) == ("os", "lose_power")
    crash_at_calls(story, durability, crash, story.check_after_a_loss if is_lossy else story.check)


@pytest.mark.usefixtures("slices_of_one")
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "short write"])
def test_after_a_failed_call_of_a_large_commit_its_offsets_are_as_answered(
    durability: str, failure: str
) -> None:
    story = WideCommits()
    fail_at_calls(story, durability, failure, story.check)


# -- the scrub
# -----------------------------------------------------------------------------------------------


def begin_scrub(stage: Stage) -> None:
    """A pass over all segments, also those that recovery has just read."""
    stage.loop.call_soon(stage.node.scrub._begin)


def scrub_with_retention(clients: Clients) -> None:
    begin_scrub(clients.stage)
    some_retention(clients)


def scrub_with_compaction(clients: Clients) -> None:
    clients.transaction(clients.a, commit=True)
    begin_scrub(clients.stage)
    keep_house(clients, "_compact")
    clients.write()


def scrub_with_deletion(clients: Clients) -> None:
    begin_scrub(clients.stage)
    delete_topic(clients)
    compaction(clients)


SCRUBS = (scrub_with_retention, scrub_with_compaction, scrub_with_deletion)


def no_damage(clients: Clients) -> None:
    for partition in clients.stage.node.partitions.by_name.values():
        assert partition.log.is_sound, partition.name


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("story", SCRUBS)
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_after_a_crash_at_sampled_calls_while_the_scrub_reads_clients_continue(
    story: Any, durability: str, crash: str
) -> None:
    crash_at_calls(story, durability, crash, no_damage)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("story", SCRUBS)
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC"])
def test_after_a_failed_call_while_the_scrub_reads_clients_continue(
    story: Any, durability: str, failure: str
) -> None:
    """A read that fails is no damage: what cannot be read now may be readable later."""
    fail_at_calls(story, durability, failure, no_damage)


@pytest.mark.parametrize("topic", [TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_crash_while_a_coordinator_saves_what_its_log_has_lost_lets_no_zombie_in(
    topic: str, durability: str
) -> None:
    """The log rots, the scrub finds it, the coordinator writes a checkpoint, the process dies."""
    for call in itertools.count(1, 1 if EVERY_CALL else 12):
        clients = started(durability)
        stage = clients.stage
        zombie = clients.b.twin()
        index = next(
            index
            for index in range(2)
            if (found := stage.node.partitions.get(topic, index)) is not None
            and len(found.log.segments) > 1
        )
        partition = stage.partition(topic, index)
        clients.b.initialise()
        flip(stage, partition.log.segments[0].path(".log"), 70)
        stage.disk.lose_power_at(call)
        dies_at = stage.disk.calls + call
        try:
            begin_scrub(stage)
            stage.advance(10_000)
        except Exception:  # noqa: BLE001 - the process is dead: how it fails means nothing.
            assert stage.disk.calls >= dies_at, "the scrub failed before the crash"
        is_over = stage.disk.calls < dies_at
        again = stage.kill().again()
        again.advance(1_000)
        zombie.client = again
        error = zombie.end(commit=True)
        assert error in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ), ErrorCode(error)
        again.kill()
        if is_over:
            assert topic != TRANSACTION_STATE_TOPIC or error != ErrorCode.COORDINATOR_NOT_AVAILABLE
            return
