"""A request that resumes after a wait may find its partition deleted, or recreated.

Method: the requests meet in the turns of a loop that never waits, so each test decides exactly what
happens in between.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.coordinators import log_loader
from fencepost.broker.groups.partition import GroupPartition
from fencepost.records.coordinator_checkpoint import FILE_NAME
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from tests.broker.node_stage import FOLDER, Line, Stage
from tests.broker.requests import (
    batch_of,
    commit_offset,
    create_topic,
    create_topics,
    fetch,
    produce,
    read_topic,
)
from tests.transactions.requests import (
    commit_offsets_request,
    end_request,
    init_request,
    marker_request,
    offset_fetch_request,
    produce_request,
)

pytestmark = pytest.mark.usefixtures("one_step_per_turn")

TV2_PRODUCE = 12


def initialised(stage: Stage, transactional_id: str = "x") -> Any:
    """The id and epoch of a transactional producer."""
    for key, key_type in ((transactional_id, 1), ("g", 0)):
        find = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        stage.call(ApiKey.FIND_COORDINATOR, 4, find)
    stage.settle()  # Now the internal topics are durable and loaded.
    reply = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(transactional_id))
    assert reply.error_code == ErrorCode.NONE, reply
    return SimpleNamespace(
        transactional_id=transactional_id, producer_id=reply.producer_id, epoch=reply.producer_epoch
    )


def write_request(sender: Any, *topics: str, value: bytes = b"value", sequence: int = 0) -> Any:
    batch = batch_of(
        value,
        producer_id=sender.producer_id,
        epoch=sender.epoch,
        sequence=sequence,
        transactional=True,
    )
    batches = {(topic, 0): bytearray(batch) for topic in topics}
    return produce_request(batches, transactional_id=sender.transactional_id)


def send_deletion(line: Line, topic: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
    return line.send(ApiKey.DELETE_TOPICS, 6, request)


def errors_of(reply: Any) -> dict[str, int]:
    return {
        topic.name: partition.error_code
        for topic in reply.responses
        for partition in topic.partition_responses
    }


def assert_alive(stage: Stage) -> None:
    """Checks that the broker still syncs, and that transactions still work."""
    create_topic(stage, "after")
    assert produce(stage, "after", batch_of(b"seen")).error_code == ErrorCode.NONE
    assert read_topic(stage, "after") == [b"seen"]
    sender = initialised(stage, "after")
    written = stage.call(ApiKey.PRODUCE, TV2_PRODUCE, write_request(sender, "after"))
    assert errors_of(written) == {"after": ErrorCode.NONE}
    ended = stage.call(ApiKey.END_TXN, 5, end_request(sender, commit=True))
    assert ended.error_code == ErrorCode.NONE


# -- Produce that waits for the transaction coordinator --------------------------------------------


@pytest.mark.parametrize("turns", range(-6, 6))
@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("written_before", [False, True])
def test_a_topic_deleted_while_its_first_transactional_write_waits_is_not_written_to(
    turns: int, recreated: bool, written_before: bool
) -> None:
    """The write is sent `turns` turns of the loop after the deletion, or before it if negative."""
    with Stage() as stage:
        create_topic(stage, "doomed")
        create_topic(stage, "kept")
        if written_before:
            produce(stage, "doomed", batch_of(b"before"))
        sender = initialised(stage)
        line, admin = stage.connect(), stage.connect()
        request = write_request(sender, "doomed", "kept")
        if turns < 0:
            written = line.send(ApiKey.PRODUCE, TV2_PRODUCE, request)
        for _ in range(-turns - 1):
            stage.loop.turn()
        deletion = send_deletion(admin, "doomed")
        for _ in range(turns):
            stage.loop.turn()
        if turns >= 0:
            written = line.send(ApiKey.PRODUCE, TV2_PRODUCE, request)
        assert not admin.reply(ApiKey.DELETE_TOPICS, 6, deletion).responses[0].error_code
        if recreated:
            create_topic(stage, "doomed")
        errors = errors_of(line.reply(ApiKey.PRODUCE, TV2_PRODUCE, written))
        assert errors["kept"] == ErrorCode.NONE
        assert errors["doomed"] in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if recreated:
            assert fetch(stage, "doomed").high_watermark == 0
        ended = stage.call(ApiKey.END_TXN, 5, end_request(sender, commit=True))
        assert ended.error_code == ErrorCode.NONE
        assert read_topic(stage, "kept") == [b"value"]
        if recreated:
            assert read_topic(stage, "doomed") == []
        assert_alive(stage)


def test_a_producer_gets_an_error_if_its_topic_is_deleted_during_verification() -> None:
    """The order that once stopped all syncs: the partition is deleted before the append."""
    with Stage() as stage:
        create_topic(stage, "doomed")
        produce(stage, "doomed", batch_of(b"before"))
        sender = initialised(stage)
        line, admin = stage.connect(), stage.connect()
        deletion = send_deletion(admin, "doomed")
        written = line.send(ApiKey.PRODUCE, TV2_PRODUCE, write_request(sender, "doomed"))
        reply = line.reply(ApiKey.PRODUCE, TV2_PRODUCE, written)
        (partition,) = reply.responses[0].partition_responses
        assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (partition.base_offset, partition.log_start_offset) == (-1, -1)
        assert "was deleted" in partition.error_message
        admin.reply(ApiKey.DELETE_TOPICS, 6, deletion)
        assert_alive(stage)


# -- Produce that waits for durability -------------------------------------------------------------


@pytest.mark.parametrize("recreated", [False, True])
def test_a_batch_whose_topic_is_deleted_before_it_is_durable_is_not_acknowledged(
    recreated: bool,
) -> None:
    """The other partition of the request is written."""
    with Stage() as stage:
        create_topic(stage, "doomed")
        create_topic(stage, "kept")
        line, admin = stage.connect(), stage.connect()
        deletion = send_deletion(admin, "doomed")
        # The deletion is being synced, so this batch needs the next sync.
        while not stage.node.partitions._last_sync or stage.node.partitions._last_sync.done():
            stage.loop.turn()
        batches = {("doomed", 0): batch_of(b"gone"), ("kept", 0): batch_of(b"here")}
        request = produce_request(batches, transactional_id=None)
        written = line.send(ApiKey.PRODUCE, 11, request)
        admin.reply(ApiKey.DELETE_TOPICS, 6, deletion)
        if recreated:
            create_topic(stage, "doomed")
        errors = errors_of(line.reply(ApiKey.PRODUCE, 11, written))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors == {"doomed": unknown, "kept": ErrorCode.NONE}
        assert read_topic(stage, "kept") == [b"here"]
        if recreated:
            assert read_topic(stage, "doomed") == []
        assert_alive(stage)


# -- offsets and markers ---------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
def test_offsets_of_a_topic_deleted_during_verification_do_not_pass_to_a_recreated_topic(
    turns: int,
) -> None:
    """The topic is deleted while the commit waits for its producer's last transaction to end."""
    with Stage() as stage:
        create_topic(stage, "doomed")
        create_topic(stage, "kept")
        sender = initialised(stage)
        stage.call(ApiKey.PRODUCE, TV2_PRODUCE, write_request(sender, "kept"))
        enders, line, admin = stage.connect(), stage.connect(), stage.connect()
        ending = enders.send(ApiKey.END_TXN, 5, end_request(sender, commit=True))
        sender.epoch += 1
        offsets = {("doomed", 0): 7, ("kept", 0): 8}
        request = commit_offsets_request(sender, "g", offsets)
        committed = line.send(ApiKey.TXN_OFFSET_COMMIT, 5, request)
        for _ in range(turns):
            stage.loop.turn()
        deletion = send_deletion(admin, "doomed")
        # Right behind it, so that the new topic is there before the commit goes on.
        again = CreatableTopic(name="doomed", num_partitions=1, replication_factor=-1)
        creation = CreateTopicsRequest(topics=[again], timeout_ms=30_000)
        created = admin.send(ApiKey.CREATE_TOPICS, 7, creation)
        admin.reply(ApiKey.DELETE_TOPICS, 6, deletion)
        is_answered = committed in line.replies
        assert not admin.reply(ApiKey.CREATE_TOPICS, 7, created).topics[0].error_code
        assert enders.reply(ApiKey.END_TXN, 5, ending).error_code == ErrorCode.NONE
        reply = line.reply(ApiKey.TXN_OFFSET_COMMIT, 5, committed)
        errors = {topic.name: topic.partitions[0].error_code for topic in reply.topics}
        assert errors["kept"] == ErrorCode.NONE
        assert is_answered or errors["doomed"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ended = stage.call(ApiKey.END_TXN, 5, end_request(sender, commit=True))
        assert ended.error_code == ErrorCode.NONE
        assert offset_of(stage, "doomed") == -1
        assert offset_of(stage, "kept") == 8
        assert_alive(stage)


def offset_of(stage: Stage, topic: str) -> int:
    reply = stage.call(ApiKey.OFFSET_FETCH, 8, offset_fetch_request("g", topic, stable=True))
    offset: int = reply.groups[0].topics[0].partitions[0].committed_offset
    return offset


def test_a_marker_whose_topic_is_deleted_before_it_is_durable_is_not_acknowledged() -> None:
    with Stage() as stage:
        create_topic(stage, "doomed")
        sender = initialised(stage)
        line, admin = stage.connect(), stage.connect()
        deletion = send_deletion(admin, "doomed")
        while not stage.node.partitions._last_sync or stage.node.partitions._last_sync.done():
            stage.loop.turn()
        marker = marker_request(sender, {"doomed": [0]}, commit=False)
        written = line.send(ApiKey.WRITE_TXN_MARKERS, 1, marker)
        admin.reply(ApiKey.DELETE_TOPICS, 6, deletion)
        reply = line.reply(ApiKey.WRITE_TXN_MARKERS, 1, written)
        (partition,) = reply.markers[0].topics[0].partitions
        assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert_alive(stage)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_transaction_ends_even_if_one_of_its_topics_is_deleted_meanwhile(
    turns: int, durability: str
) -> None:
    with Stage(durability=durability) as stage:
        create_topic(stage, "doomed")
        create_topic(stage, "kept")
        sender = initialised(stage)
        written = stage.call(ApiKey.PRODUCE, TV2_PRODUCE, write_request(sender, "doomed", "kept"))
        assert set(errors_of(written).values()) == {ErrorCode.NONE}
        line, admin = stage.connect(), stage.connect()
        ending = line.send(ApiKey.END_TXN, 5, end_request(sender, commit=True))
        for _ in range(turns):
            stage.loop.turn()
        deletion = send_deletion(admin, "doomed")
        assert line.reply(ApiKey.END_TXN, 5, ending).error_code == ErrorCode.NONE
        admin.reply(ApiKey.DELETE_TOPICS, 6, deletion)
        create_topic(stage, "doomed")
        assert fetch(stage, "kept").last_stable_offset == 2
        partition = stage.partition("doomed", 0)
        assert partition.last_stable_offset == partition.high_watermark
        assert_alive(stage)


# -- work in slices --------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_before", range(20))
def test_a_round_of_compaction_does_not_affect_a_recreated_topic(steps_before: int) -> None:
    """The topic is deleted and recreated during the round; its folder has the same name."""
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    settings = {**compacted, "internal.segment.bytes": "200"}
    with Stage(durability="os") as stage:
        create_topic(stage, "t", settings=settings)
        for number in range(20):
            produce(stage, "t", batch_of(b"old %d" % number, key=b"key"))
        steps = stage.node.housekeeping._compact()
        for _ in range(steps_before):
            next(steps, None)
        admin = stage.connect()
        admin.reply(ApiKey.DELETE_TOPICS, 6, send_deletion(admin, "t"))
        create_topic(stage, "t", settings=settings)
        values = [b"new %d" % number for number in range(20)]
        for value in values:
            produce(stage, "t", batch_of(value, key=value))
        for _ in steps:
            pass
        assert read_topic(stage, "t") == values
        litter = [n for n in stage.disk.list_dir(f"{FOLDER}/t-0") if n.endswith(".cleaned")]
        assert litter == []
    again = stage.kill().again()
    assert read_topic(again, "t") == values
    again.stop()


def test_offsets_of_a_topic_deleted_during_a_load_do_not_pass_to_a_recreated_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_loader, "ENTRIES_PER_TURN", 2)
    stage = Stage(durability="os").start()
    create_topic(stage, "doomed")
    initialised(stage)
    for _ in range(20):
        commit_offset(stage, "g", "doomed", 7)
    assert offset_of(stage, "doomed") == 7
    served = stage.node.groups.find("g")
    assert isinstance(served, GroupPartition)
    log = served.partition.log.folder
    stage.stop()
    stage.disk.remove(f"{log}/{FILE_NAME}")
    again = stage.again()
    assert again.node.groups.find("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    again.node.controller.delete(["doomed"], lambda _: None)
    assert again.node.groups.find("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    again.settle()
    create_topic(again, "doomed")
    assert offset_of(again, "doomed") == -1
    again.stop()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("is_grown", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_topic_recreated_before_its_logs_were_opened_is_the_new_one(
    durability: str, is_grown: bool, turns: int
) -> None:
    """Opening many partitions takes many turns; the topic of the last ones changes in between."""
    wanted = {"many": 400, "doomed": 10}
    with Stage(durability=durability) as stage:
        line = stage.connect()
        if is_grown:
            create_topics(stage, *wanted)
            grown = [
                CreatePartitionsTopic(name=n, count=c, assignments=None) for n, c in wanted.items()
            ]
            api, version = ApiKey.CREATE_PARTITIONS, 3
            sent = line.send(api, version, CreatePartitionsRequest(topics=grown, timeout_ms=30_000))
        else:
            new = [
                CreatableTopic(name=name, num_partitions=count, replication_factor=-1)
                for name, count in wanted.items()
            ]
            api, version = ApiKey.CREATE_TOPICS, 7
            sent = line.send(api, version, CreateTopicsRequest(topics=new, timeout_ms=30_000))
        for _ in range(turns):
            stage.loop.turn()
        admin = stage.connect()
        deletion = admin.reply(ApiKey.DELETE_TOPICS, 6, send_deletion(admin, "doomed"))
        assert deletion.responses[0].error_code == ErrorCode.NONE
        create_topic(stage, "doomed")
        stage.settle()
        assert sent in line.replies
        assert not stage.problems
        assert produce(stage, "doomed", batch_of(b"new")).error_code == ErrorCode.NONE
        assert read_topic(stage, "doomed") == [b"new"]
        assert produce(stage, "many", batch_of(), index=399).error_code == ErrorCode.NONE
        assert stage.node.partitions.get("doomed", 1) is None


def test_the_offset_tombstones_of_a_deleted_topic_become_durable() -> None:
    with Stage(durability="fsync") as stage:
        create_topic(stage, "doomed")
        initialised(stage)
        commit_offset(stage, "g", "doomed", 7)
        admin = stage.connect()
        admin.reply(ApiKey.DELETE_TOPICS, 6, send_deletion(admin, "doomed"))
        stage.settle()
        for index in range(2):
            offsets = stage.partition("__consumer_offsets", index)
            assert offsets.high_watermark == offsets.log_end_offset
