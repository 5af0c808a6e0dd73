"""Committed offsets survive crashes and full disks: none goes back, none passes to another topic.

Method: one group commits plainly, another one in transactions. The replies are compared with what
OffsetFetch returns after a crash at every disk call, or while the disk refuses to write.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from tests.broker.controller.topics_stage import CountingRandomness
from tests.broker.crashes.test_many_partitions import delete
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import commit_offset, create_topic, create_topics
from tests.halves import EVERY_CALL, HALF
from tests.transactions.protocol import TV2
from tests.transactions.requests import offset_fetch_request
from tests.transactions.wire import WireProducer, retried

pytestmark = pytest.mark.usefixtures("quiet", "one_step_per_turn")

NONE = ErrorCode.NONE
MINUTE_MS = 60_000
SETTINGS = {"offsets.topic.segment.bytes": "600", "offsets.retention.check.interval.ms": "30000"}
GROUPS = ("plain", "transactional")


def commit(stage: Stage, offset: int, topic: str = "doomed", version: int = 8, **more: Any) -> int:
    return commit_offset(stage, "plain", topic, offset, version, **more)


def offset_of(stage: Stage, group: str, topic: str = "doomed") -> int:
    """The offset that a consumer of the group would start from."""
    answers: list[Any] = []

    def ask() -> int:
        request = offset_fetch_request(group, topic, stable=False)
        answers.append(stage.call(ApiKey.OFFSET_FETCH, 8, request).groups[0])
        return int(answers[-1].error_code)

    retried(stage, ask)
    return int(answers[-1].topics[0].partitions[0].committed_offset)


def prepared(durability: str) -> tuple[Stage, WireProducer]:
    stage = Stage(durability=durability, settings=SETTINGS).start()
    create_topic(stage, "doomed")
    create_topic(stage, "kept")
    producer = WireProducer(stage, "x", TV2)
    producer.initialise(timeout_ms=600_000)
    producer.send_offsets("transactional", {("doomed", 0): 7})
    producer.commit()
    producer.send_offsets("transactional", {("kept", 0): 8})
    producer.commit()
    retried(stage, lambda: commit(stage, 7))
    assert commit(stage, 8, "kept") == NONE
    stage.advance(2_000)
    return stage, producer


def id_of(stage: Stage, topic: str = "doomed") -> bytes | None:
    return stage.node.metadata.topic_id(topic)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
@pytest.mark.parametrize("is_pending", [False, True])
def test_after_a_crash_during_a_deletion_no_other_topic_gets_the_offsets(
    durability: str, crash: str, is_pending: bool
) -> None:
    call = 0 if EVERY_CALL else HALF - 2
    is_over = False
    while not is_over:
        call += 1 if EVERY_CALL else 2
        stage, producer = prepared(durability)
        if is_pending:
            producer.send_offsets("transactional", {("doomed", 0): 9})
        old = id_of(stage)
        stage.disk.lose_power_at(call)
        try:
            assert delete(stage, "doomed") == NONE
            create_topics(stage, "doomed", partitions=1)
            stage.settle()
            is_over = True
        except Exception:  # noqa: BLE001 - after a crash any failure is expected.
            is_over = False
        if crash == "kill":
            stage.kill()
        else:
            stage.lose_power(CountingRandomness() if call % 2 else None)
        again = stage.again()
        check(again, old, is_lossy=(durability, crash) == ("os", "lose_power"))
        if is_pending and (durability, crash) != ("os", "lose_power"):
            end(again, producer)
            check(again, old, is_lossy=False)
        again.kill()
    assert call > 3


def check(stage: Stage, old: bytes | None, *, is_lossy: bool) -> None:
    """The old topic has its offsets, a new one has none."""
    if id_of(stage) is None:
        create_topic(stage, "doomed")
    if id_of(stage) != old:
        assert [offset_of(stage, group) for group in GROUPS] == [-1, -1]
    elif not is_lossy:
        assert offset_of(stage, "plain") == 7
    if not is_lossy:
        assert [offset_of(stage, group, "kept") for group in GROUPS] == [8, 8]


def end(stage: Stage, producer: WireProducer) -> None:
    producer.client = stage
    retried(stage, lambda: producer.end(commit=True))


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_offsets_whose_tombstones_cannot_be_written_pass_to_no_other_topic(durability: str) -> None:
    """The deletion is written, then the disk is full for a while."""
    for first in range(2, 6):
        stage, _ = prepared(durability)
        stage.disk.fail_for_a_while(first, 30, errno.ENOSPC, kinds=["append"])
        try:
            assert delete(stage, "doomed") == NONE
            stage.disk.heal()
            create_topic(stage, "doomed")
            assert [offset_of(stage, group) for group in GROUPS] == [-1, -1]
            stage.advance(MINUTE_MS)
            assert [offset_of(stage, group) for group in GROUPS] == [-1, -1]
            stored = [known.state.offsets for known in stage.node.groups._partitions.values()]
            topics = {name.topic for each in stored for g in GROUPS for name in each.of_group(g)}
            assert topics == {"kept"}, "hidden offsets are removed once the disk has space"
        except (DiedError, ClosedError):
            assert stage.fatal
        again = stage.kill().again()
        assert [offset_of(again, group) for group in GROUPS] == [-1, -1]
        again.kill()


def test_deleting_a_topic_is_acknowledged_when_the_removal_of_its_offsets_is_durable() -> None:
    stage, _ = prepared("fsync")
    assert delete(stage, "doomed") == NONE
    for each in stage.node.groups._partitions.values():
        assert each.partition.high_watermark == each.partition.log_end_offset
    stage.kill()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_an_acknowledged_offset_never_goes_back(durability: str) -> None:
    """A crash of the process or the power at every disk call of commits, deletions and expiry."""
    call = 0 if EVERY_CALL else 2 * HALF - 4
    is_over = False
    while not is_over:
        call += 2 if EVERY_CALL else 4
        stage, producer = prepared(durability)
        told = {"plain": 8, "transactional": 8}
        asked = dict(told)
        stage.disk.lose_power_at(call)
        try:
            for offset in range(9, 12):
                asked["plain"] = offset
                assert commit(stage, offset, "kept") == NONE
                told["plain"] = offset
                asked["transactional"] = offset
                producer.send_offsets("transactional", {("kept", 0): offset})
                producer.commit()
                told["transactional"] = offset
            is_over = True
        except Exception:  # noqa: BLE001 - after a crash any failure is expected.
            is_over = False
        stage.lose_power() if durability == "fsync" and call % 4 else stage.kill()
        again = stage.again()
        again.advance(1_000)
        for group in GROUPS:
            assert told[group] <= offset_of(again, group, "kept") <= asked[group], (call, group)
        again.kill()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_deleted_group_stays_deleted_after_a_crash(durability: str) -> None:
    stage, _ = prepared(durability)
    reply = stage.call(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["plain"]))
    assert reply.results[0].error_code == NONE
    again = (stage.lose_power() if durability == "fsync" else stage.kill()).again()
    assert offset_of(again, "plain", "kept") == -1
    again.kill()
