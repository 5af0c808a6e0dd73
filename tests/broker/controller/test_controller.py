"""The controller: the metadata log, the effects of its records, and when replies are sent."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.broker.controller.controller import Outcome
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.coordinator.metadata.events import AlterSettings, CreatePartitions
from fencepost.records.metadata_log import TOPIC_RESOURCE
from tests.broker.controller.topics_stage import StubNode, bump_leader_epochs

pytestmark = pytest.mark.usefixtures("one_step_per_turn")


def errors(outcomes: list[Outcome]) -> list[ErrorCode]:
    for outcome in outcomes:
        assert (outcome.error is ErrorCode.NONE) == (outcome.message is None)
    return [outcome.error for outcome in outcomes]


# -- identity


def test_the_cluster_keeps_its_id(node: StubNode) -> None:
    cluster_id = node.follower.cluster_id
    assert len(cluster_id) == 22
    assert node.restarted().follower.cluster_id == cluster_id


def test_meta_properties_are_kafkas_plus_the_fencepost_format(node: StubNode) -> None:
    lines = node.disk.read_file("/data/meta.properties").decode().splitlines()
    assert lines[0] == "version=1"
    assert f"cluster.id={node.follower.cluster_id}" in lines
    assert {"node.id=1", "fencepost.format=1"} <= set(lines)
    assert any(line.startswith("directory.id=") for line in lines)


def test_the_directory_of_another_node_is_refused(node: StubNode) -> None:
    with pytest.raises(ConfigError, match=r"belongs to node 1.*node\.id=1"):
        node.restarted(node_id="2")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version=1\ncluster.id=a\nnode.id=1\n", "Apache Kafka"),
        (b"version=1\ncluster.id=a\nnode.id=1\nfencepost.format=3\n", "format 3"),
        (b"version=1\nnode.id=1\nfencepost.format=1\n", "cluster.id"),
        (b"version=1\ncluster.id=a\nnode.id=x\nfencepost.format=1\n", "cannot be read"),
        (b"nonsense", "cannot be read"),
    ],
)
def test_the_directory_of_another_program_or_format_is_refused(content: bytes, reason: str) -> None:
    node = StubNode()
    node.disk.make_dir("/data")
    node.disk.write_file("/data/meta.properties", content, sync=True)
    with pytest.raises(ConfigError, match=reason):
        node.start()


def test_a_directory_without_meta_properties_is_refused(node: StubNode) -> None:
    node.disk.remove("/data/meta.properties")
    with pytest.raises(ConfigError, match=r"no meta\.properties"):
        node.restarted()


@pytest.mark.parametrize("name", ["notes.txt", "old-delete", "orders-0"])
def test_a_directory_with_foreign_files_is_refused(name: str) -> None:
    node = StubNode()
    node.disk.make_dir(f"/data/{name}")
    with pytest.raises(ConfigError, match=rf"not empty \({name}\).*empty or new directory"):
        node.start()
    assert node.disk.list_dir("/data") == [name], "nothing was created, moved or deleted"


@pytest.mark.parametrize("name", [".lock", ".gitkeep", "meta.properties.tmp", "lost+found"])
def test_leftovers_of_a_first_start_or_a_file_system_are_allowed_in_a_new_directory(
    name: str,
) -> None:
    node = StubNode()
    node.disk.make_dir("/data")
    node.disk.write_file(f"/data/{name}", b"", sync=True)
    node.start()
    assert node.disk.exists("/data/meta.properties")


# -- topics


def test_a_new_topic_is_writable_when_the_reply_is_sent(node: StubNode) -> None:
    (outcome,) = node.create(NewTopic("orders", 3))
    assert outcome.error is ErrorCode.NONE
    assert outcome.partition_count == 3
    assert node.metadata.topic_id("orders") == outcome.topic_id
    for index in range(3):
        partition = node.partition("orders", index)
        assert partition is not None
        assert partition.topic_id == outcome.topic_id


def test_a_topic_without_a_partition_count_gets_the_default() -> None:
    node = StubNode({"num.partitions": "4"}).start()
    (outcome,) = node.create("orders")
    assert outcome.partition_count == 4


def test_a_deleted_topic_is_removed_with_its_files(node: StubNode) -> None:
    node.made("orders", 2)
    heard: list[Outcome] = []
    node.controller.delete(["orders", "absent"], heard.extend)
    while node.turn():
        pass
    assert errors(heard) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert node.partition("orders", 0) is None
    assert not node.disk.exists("/data/orders-0")
    assert not node.disk.exists("/data/orders-1")
    assert node.groups.deleted_topics == ["orders"]


def test_new_partitions_are_writable_when_the_reply_is_sent(node: StubNode) -> None:
    node.made("orders", 1, retention_ms="7")
    heard: list[Outcome] = []
    request = [CreatePartitions("orders", 3)]
    node.controller.create_partitions(request, heard.extend, validate_only=True)
    assert node.metadata.partition_count("orders") == 1
    node.controller.create_partitions(request, heard.extend, validate_only=False)
    assert errors(heard) == [ErrorCode.NONE, ErrorCode.NONE]
    partition = node.partition("orders", 2)
    assert partition is not None
    assert partition.log.config.retention_ms == 7


# -- restarts


def test_every_topic_and_its_records_survive_a_restart(node: StubNode) -> None:
    node.made("orders", 2, retention_ms="-1")
    node.fill("orders", 3, 1)
    again = node.restarted()
    assert again.metadata.topics == node.metadata.topics
    assert again.metadata.settings == node.metadata.settings
    partition = again.partition("orders", 1)
    assert partition is not None
    assert partition.log_end_offset == 3
    assert partition.leader_epoch == 0
    assert partition.log.config.retention_ms == -1


def test_an_unclean_start_raises_every_leader_epoch(node: StubNode) -> None:
    node.made("orders", 2)
    again = node.restarted(clean=False)
    assert [p.leader_epoch for p in again.metadata.topics["orders"].partitions] == [1, 1]
    partition = again.partition("orders", 1)
    assert partition is not None
    assert partition.leader_epoch == 1
    assert again.restarted().metadata.topics["orders"].partitions[0].leader_epoch == 1


def test_a_broker_with_a_new_address_is_registered_there() -> None:
    node = StubNode().start(port=1)
    node.stop()
    again = StubNode(disk=node.disk, randomness=node.randomness)
    again.start(port=2)
    endpoint = again.metadata.endpoint(1, "PLAINTEXT")
    assert endpoint is not None
    assert endpoint.port == 2


def test_a_changed_number_of_internal_partitions_is_refused() -> None:
    node = StubNode({"offsets.topic.num.partitions": "3"}).start()
    node.internal_topics.ensure("__consumer_offsets")
    with pytest.raises(ConfigError, match=r"is 4.*has 3.*offsets\.topic\.num\.partitions=3"):
        node.restarted(offsets_topic_num_partitions="4")


def test_a_log_without_a_topic_is_set_aside(node: StubNode) -> None:
    node.made("orders")
    stranger = node.layout.claim(TopicPartition("lost", 0), b"another topic id")
    assert node.disk.exists(stranger)
    node.restarted()
    assert not node.disk.exists(stranger)
    assert node.disk.exists(f"{stranger}-stray")


# -- internal topics


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("__consumer_offsets", "offsets.topic.num.partitions"),
        ("__transaction_state", "transaction.state.log.num.partitions"),
    ],
)
def test_an_internal_topic_is_created_on_first_use(name: str, setting: str) -> None:
    node = StubNode({setting: "3"}).start()
    node.internal_topics.ensure(name)
    node.internal_topics.ensure(name)
    topic = node.metadata.topics[name]
    assert len(topic.partitions) == 3
    partition = node.partition(name, 2)
    assert partition is not None
    assert partition.log.config.is_compacted
    assert partition.log.config.segment_bytes == 104_857_600


def test_coordinators_load_their_new_partitions_once() -> None:
    node = StubNode({"offsets.topic.num.partitions": "2"}).start()
    node.internal_topics.ensure("__consumer_offsets")
    assert node.groups.loaded == [0, 1]
    assert node.transactions.loaded == []
    # At a start they are loaded when everything is open.
    assert node.restarted().groups.loaded == [0, 1]


def test_an_internal_topic_always_has_the_partition_count_of_its_setting() -> None:
    node = StubNode({"offsets.topic.num.partitions": "3"}).start()
    outcomes = node.create(
        NewTopic("__consumer_offsets", 4), NewTopic("__consumer_offsets", assignments=[(0, [1])])
    )
    assert errors(outcomes) == [ErrorCode.INVALID_PARTITIONS] * 2
    assert errors(node.create("__consumer_offsets")) == [ErrorCode.NONE]
    assert node.metadata.partition_count("__consumer_offsets") == 3


def test_a_small_segment_of_an_internal_topic_is_allowed() -> None:
    node = StubNode({"transaction.state.log.segment.bytes": "1000"}).start()
    node.internal_topics.ensure("__transaction_state")
    partition = node.partition("__transaction_state", 0)
    assert partition is not None
    assert partition.log.config.segment_bytes == 1000


# -- settings


def test_a_changed_topic_setting_applies_immediately(node: StubNode) -> None:
    node.made("orders")
    node.made("other")
    heard: list[ErrorCode] = []
    node.controller.alter_settings(
        [AlterSettings(2, "orders", {"retention.ms": "5"})], heard.extend
    )
    assert heard == [ErrorCode.NONE]
    orders, other = node.partition("orders", 0), node.partition("other", 0)
    assert orders is not None
    assert other is not None
    assert orders.log.config.retention_ms == 5
    assert other.log.config.retention_ms == 604_800_000


def test_a_changed_broker_setting_applies_to_every_topic_and_survives_a_restart() -> None:
    node = StubNode().start()
    node.made("orders")
    node.made("own", retention_ms="9")
    event = AlterSettings(4, "", {"log.retention.ms": "5", "message.max.bytes": "77"})
    node.controller.alter_settings([event], lambda _: None)
    for each in (node, node.restarted()):
        orders, own = each.partition("orders", 0), each.partition("own", 0)
        assert orders is not None
        assert own is not None
        assert (orders.log.config.retention_ms, own.log.config.retention_ms) == (5, 9)
        assert each.config.message_max_bytes == 77


# -- producer ids


def allocate(node: StubNode, count: int) -> list[int | None]:
    heard: list[int | None] = []
    for _ in range(count):
        node.producer_ids.allocate(heard.append)
    return heard


def test_producer_ids_continue_from_block_to_block(node: StubNode) -> None:
    assert allocate(node, 1002) == list(range(1002))
    assert node.metadata.next_producer_id == 2000


def test_a_block_is_durable_before_its_first_id_is_given_out() -> None:
    node = StubNode({"durability": "fsync"}).start()
    heard: list[int | None] = []
    node.producer_ids.allocate(heard.append)
    node.producer_ids.allocate(heard.append)
    assert heard == []
    node.sync()
    assert heard == [0, 1]
    node.disk.crash()
    node.partitions.by_name.clear()
    again = node.restarted(clean=False)
    again.producer_ids.allocate(heard.append)
    again.sync()
    assert heard == [0, 1, 1000]


def test_more_requests_may_wait_for_a_block_than_it_has_ids() -> None:
    node = StubNode({"durability": "fsync"}).start()
    heard: list[int | None] = []
    for _ in range(2001):
        node.producer_ids.allocate(heard.append)
    for _ in range(3):
        node.sync()
    assert heard == list(range(2001))


# -- durability and a failing disk


def test_a_topic_is_not_writable_before_it_is_durable() -> None:
    node = StubNode({"durability": "fsync"}).start()
    heard: list[Outcome] = []
    node.controller.create([NewTopic("orders", 1)], heard.extend, validate_only=False)
    assert "orders" in node.metadata.topics
    assert node.partition("orders", 0) is None
    assert heard == []
    node.sync()
    assert node.partition("orders", 0) is not None
    assert errors(heard) == [ErrorCode.NONE]


def test_acknowledged_changes_survive_a_power_loss() -> None:
    node = StubNode({"durability": "fsync"}).start()
    node.made("kept", 2, retention_ms="5")
    node.controller.create([NewTopic("lost", 1)], lambda _: None, validate_only=False)
    node.disk.crash()
    node.partitions.by_name.clear()
    again = node.restarted(clean=False)
    assert sorted(again.metadata.topics) == ["kept"]
    assert again.follower.cluster_id == node.follower.cluster_id
    assert again.metadata.settings_of(2, "kept") == {"retention.ms": "5"}
    assert again.metadata.topics["kept"].partitions[0].leader_epoch == 1


def test_a_recreated_topic_waits_until_the_deletion_is_durable() -> None:
    node = StubNode({"durability": "fsync"}).start()
    node.made("orders")
    node.fill("orders", 2)
    heard: list[Outcome] = []
    node.controller.delete(["orders"], heard.extend)
    node.controller.create([NewTopic("orders", 1)], heard.extend, validate_only=False)
    old = node.partition("orders", 0)
    assert old is not None
    node.sync()
    assert errors(heard) == [ErrorCode.NONE], (
        "the new topic is decided on now, and waits for its own records"
    )
    assert node.partition("orders", 0) is None
    node.sync()
    assert errors(heard) == [ErrorCode.NONE, ErrorCode.NONE]
    new = node.partition("orders", 0)
    assert new is not None
    assert new is not old
    assert new.log_end_offset == 0


def test_partitions_are_deleted_over_several_turns_and_a_recreated_topic_waits_for_all() -> None:
    node = StubNode().start()
    node.made("wide", 250)
    heard: list[Outcome] = []
    node.controller.delete(["wide"], heard.extend)
    assert heard == []
    assert 0 < len(node.partitions.by_name) < 250
    node.controller.create([NewTopic("wide", 3)], heard.extend, validate_only=False)
    assert heard == []
    while node.turn():
        pass
    assert errors(heard) == [ErrorCode.NONE, ErrorCode.NONE]
    assert len(node.partitions.by_name) == 1 + 3


def test_a_setting_changed_while_partitions_are_being_opened_applies_to_all_of_them() -> None:
    node = StubNode().start()
    node.controller.create([NewTopic("wide", 250)], lambda _: None, validate_only=False)
    change = AlterSettings(TOPIC_RESOURCE, "wide", {"retention.ms": "1234"})
    node.controller.alter_settings([change], lambda _: None)
    while node.turn():
        pass
    found = {
        node.partitions.by_name[TopicPartition("wide", index)].log.config.retention_ms
        for index in range(250)
    }
    assert found == {1234}


def test_after_a_stop_during_a_creation_the_next_start_opens_all_partitions(node: StubNode) -> None:
    heard: list[Outcome] = []
    node.controller.create([NewTopic("wide", 250)], heard.extend, validate_only=False)
    node.halt()
    while node.turn():
        pass
    assert heard == []
    again = node.restarted()
    assert len(again.partitions.by_name) == 1 + 250


def test_a_topic_deleted_before_it_is_durable_is_never_opened() -> None:
    node = StubNode({"durability": "fsync"}).start()
    node.controller.create([NewTopic("orders", 1)], lambda _: None, validate_only=False)
    node.controller.delete(["orders"], lambda _: None)
    node.sync()
    assert node.partition("orders", 0) is None
    assert errors(node.create("orders")) == [ErrorCode.NONE]
    assert node.partition("orders", 0) is not None


def test_on_a_full_disk_changes_are_refused_and_nothing_changes(node: StubNode) -> None:
    node.made("orders")
    before = node.metadata.version
    node.disk.fill()
    heard: list[Outcome] = []
    node.controller.delete(["orders"], heard.extend)
    assert errors([*node.create("more"), *heard]) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert allocate(node, 1) == [None]
    with pytest.raises(StorageError):
        node.internal_topics.ensure("__consumer_offsets")
    assert node.metadata.version == before
    node.disk.empty()
    assert errors(node.create("more")) == [ErrorCode.NONE]
    assert allocate(node, 1) == [0]


def test_a_partition_that_could_not_be_opened_is_retried(node: StubNode) -> None:
    node.store.is_refusing = True
    node.made("orders", 2)
    assert node.partition("orders", 0) is None
    assert len(node.runtime.timers) == 1
    node.runtime.fire_timers()
    assert node.partition("orders", 0) is None
    node.store.is_refusing = False
    node.runtime.fire_timers()
    assert node.partition("orders", 0) is not None
    assert node.partition("orders", 1) is not None
    assert node.runtime.timers == []


def test_a_partition_that_could_not_be_opened_is_not_retried_after_its_topic_is_deleted() -> None:
    node = StubNode().start()
    node.store.is_refusing = True
    node.made("orders")
    node.controller.delete(["orders"], lambda _: None)
    node.store.is_refusing = False
    node.runtime.fire_timers()
    assert node.partition("orders", 0) is None
    assert node.runtime.timers == []


def test_many_partitions_are_opened_over_several_turns(node: StubNode) -> None:
    heard: list[Outcome] = []
    node.controller.create(
        [NewTopic("wide", 250), NewTopic("a")], heard.extend, validate_only=False
    )
    open_after = [len(node.partitions.by_name) - 1]
    while node.turn():
        open_after.append(len(node.partitions.by_name) - 1)
    assert open_after == list(range(100, 252))
    assert errors(heard) == [ErrorCode.NONE] * 2


def test_a_broker_that_is_not_the_controller_refuses_changes(node: StubNode) -> None:
    node.follower.controller_id = 2
    (outcome,) = node.create("orders")
    assert outcome.error is ErrorCode.NOT_CONTROLLER
    assert node.metadata.topics == {}


def test_raised_leader_epochs_apply_to_open_partitions(node: StubNode) -> None:
    node.made("orders", 2)
    heard: list[ErrorCode] = []
    bump_leader_epochs(node.controller, [TopicPartition("orders", 1)], heard.append)
    assert heard == [ErrorCode.NONE]
    untouched, raised = node.partition("orders", 0), node.partition("orders", 1)
    assert untouched is not None
    assert raised is not None
    assert (untouched.leader_epoch, raised.leader_epoch) == (0, 1)


def test_topic_ids_look_like_random_uuids_and_never_like_options(node: StubNode) -> None:
    outcomes = node.create(*(f"t{number}" for number in range(100)))
    ids = [outcome.topic_id for outcome in outcomes]
    assert len(set(ids)) == 100
    assert all(each[6] >> 4 == 4 and each[8] >> 6 == 2 for each in ids)
    assert not any(topic_id_text(each).startswith("-") for each in ids)


def test_a_request_for_many_topics_is_decided_over_several_turns(node: StubNode) -> None:
    heard: list[Outcome] = []
    wanted = [NewTopic(f"wide-{number}", 600) for number in range(4)]
    node.controller.create(wanted, heard.extend, validate_only=False)
    assert "wide-3" not in node.metadata.topics
    node.controller.delete(["wide-0"], heard.extend)  # Before it was opened.
    node.controller.create([NewTopic("wide-3", 1)], heard.extend, validate_only=False)
    while node.turn():
        pass
    found = {outcome.name: outcome.error for outcome in heard}
    assert found["wide-1"] == found["wide-2"] == ErrorCode.NONE
    assert sorted(errors(heard)) == sorted([ErrorCode.NONE] * 5 + [ErrorCode.TOPIC_ALREADY_EXISTS])
    assert len(node.partitions.by_name) == 1 + 600 + 600 + 1


# -- changes that are encoded over several turns


def begin_large(node: StubNode, is_grown: bool) -> list[Outcome]:
    """A change of 3,000 records that waits for its second turn."""
    heard: list[Outcome] = []
    if is_grown:
        node.made("wide", 1)
        request = [CreatePartitions("wide", 3001)]
        assert not node.controller.create_partitions(request, heard.extend, validate_only=False)
    else:
        wanted = [NewTopic("wide", 3000)]
        assert not node.controller.create(wanted, heard.extend, validate_only=False)
    return heard


def turn_all(node: StubNode) -> None:
    while node.turn():
        pass


@pytest.mark.parametrize("is_grown", [False, True])
def test_a_large_change_becomes_visible_all_at_once(node: StubNode, is_grown: bool) -> None:
    heard = begin_large(node, is_grown)
    counts = {node.metadata.partition_count("wide")}
    while node.turn():
        counts.add(node.metadata.partition_count("wide"))
    assert counts == ({1, 3001} if is_grown else {0, 3000})
    assert errors(heard) == [ErrorCode.NONE]
    again = node.restarted(clean=False)
    assert again.metadata.partition_count("wide") == max(counts)


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_large_topic_is_refused_if_another_request_takes_its_name(turns: int) -> None:
    node = StubNode().start()
    heard = begin_large(node, is_grown=False)
    for _ in range(turns):
        node.turn()
    other: list[Outcome] = []
    node.controller.create([NewTopic("wide", 2)], other.extend, validate_only=False)
    turn_all(node)
    assert errors(other) == [ErrorCode.NONE]
    assert errors(heard) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert node.metadata.partition_count("wide") == 2


def test_a_large_topic_waits_for_the_removal_of_a_short_lived_topic_of_the_same_name() -> None:
    node = StubNode({"durability": "fsync"}).start()
    heard = begin_large(node, is_grown=False)
    gone: list[Outcome] = []
    node.controller.create([NewTopic("wide", 2)], gone.extend, validate_only=False)
    node.sync()
    node.controller.delete(["wide"], gone.extend)
    turn_all(node)
    assert "wide" not in node.metadata.topics
    for _ in range(4):
        node.sync()
        turn_all(node)
    assert errors(gone) == [ErrorCode.NONE] * 2
    assert errors(heard) == [ErrorCode.NONE]
    assert node.metadata.partition_count("wide") == 3000


def test_partitions_for_a_topic_deleted_meanwhile_are_refused(node: StubNode) -> None:
    heard = begin_large(node, is_grown=True)
    node.controller.delete(["wide"], lambda _: None)
    turn_all(node)
    assert errors(heard) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_large_change_is_not_delayed_forever_by_others(node: StubNode) -> None:
    heard = begin_large(node, is_grown=False)
    number = 0
    while "wide" not in node.metadata.topics:
        number += 1
        assert number < 1_000
        node.controller.create([NewTopic(f"t{number}", 1)], lambda _: None, validate_only=False)
        node.turn()
    turn_all(node)
    assert errors(heard) == [ErrorCode.NONE]


def test_a_stop_while_a_large_change_is_encoded_writes_nothing(node: StubNode) -> None:
    heard = begin_large(node, is_grown=False)
    node.halt()
    turn_all(node)
    assert heard == []
    assert "wide" not in node.restarted().metadata.topics


def test_on_a_full_disk_a_large_change_is_refused(node: StubNode) -> None:
    heard = begin_large(node, is_grown=False)
    node.disk.fill()
    turn_all(node)
    assert errors(heard) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert "wide" not in node.metadata.topics
