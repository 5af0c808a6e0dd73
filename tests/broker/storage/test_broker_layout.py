"""One directory, several brokers: what each finds when it opens what another led."""

from __future__ import annotations

import contextlib
import errno

import pytest

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition
from fencepost.broker.storage.broker_layout import BrokerLayout
from fencepost.broker.storage.cluster_checkpoints import CLUSTER, broker_file
from fencepost.partition.partition import Partition
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from tests.broker.controller.topics_stage import StubNode
from tests.broker.storage.cluster_stage import BROKERS, FOLDER, ClusterStage


@pytest.fixture
def stage() -> ClusterStage:
    made = ClusterStage()
    made.start_parent()
    return made


def was_scanned(partition: Partition) -> bool:
    return partition.log.recovered_from is not None


def led(stage: ClusterStage, broker_id: int = 1, count: int = 20) -> TopicPartition:
    """A partition with records."""
    name = stage.create("orders")
    stage.lead(name, broker_id)
    stage.write(name, count)
    return name


def test_a_partition_that_was_released_is_opened_without_a_scan(stage: ClusterStage) -> None:
    name = led(stage)
    stage.release(name)
    assert not was_scanned(stage.lead(name, 2))


def test_a_partition_of_a_killed_broker_is_scanned_from_its_recovery_point(
    stage: ClusterStage,
) -> None:
    name = led(stage)
    stage.partition(name).log.sync()
    stage.brokers[1].save()
    stage.write(name)
    stage.kill(1)
    opened = stage.lead(name, 2)
    assert was_scanned(opened)
    assert opened.log.recovered_from is not None
    assert opened.log.recovered_from > 0, "the beginning was known to be on the disk"


def test_a_clean_close_does_not_count_after_another_broker_has_led(stage: ClusterStage) -> None:
    name = led(stage)
    stage.release(name)
    stage.lead(name, 2)
    stage.write(name)
    stage.kill(2)
    assert was_scanned(stage.lead(name, 1)), "broker 1 closed it once, but broker 2 wrote since"


def test_a_clean_close_does_not_count_after_a_failed_close(stage: ClusterStage) -> None:
    name = led(stage)
    stage.release(name, clean=False)
    assert was_scanned(stage.lead(name, 2))


def test_a_clean_close_does_not_count_after_a_power_loss() -> None:
    """It may have taken back the epochs in which others led."""
    stage = ClusterStage()
    stage.start_parent()
    name = led(stage)
    stage.release(name)
    stage.disk.sync_all(FOLDER)
    stage.brokers.clear()
    stage.disk.crash()
    stage.start_broker(2)
    layout = stage.brokers[2].layout
    assert layout.lost_power
    topic = stage.topics[name]
    assert not layout.saved(name, topic.topic_id, topic.epoch + 1).is_clean


@pytest.mark.parametrize("dies", [False, True])
def test_records_that_were_deleted_stay_deleted_when_the_leader_changes(
    stage: ClusterStage, dies: bool
) -> None:
    name = led(stage)
    stage.delete_records(name, 7)
    if dies:
        stage.kill(1)
    else:
        stage.release(name)
    stage.lead(name, 2)
    stage.delete_records(name, 9)
    stage.kill(2)
    stage.lead(name, 3)
    assert stage.topics[name].start == 9


def test_a_restarted_broker_keeps_what_it_saved_before(stage: ClusterStage) -> None:
    kept = led(stage)
    stage.delete_records(kept, 7)
    stage.kill(1)
    stage.lead(kept, 2)
    stage.kill(2)
    stage.start_broker(1)
    other = stage.create("other")
    stage.lead(other, 1)
    stage.write(other, 5)
    stage.delete_records(other, 2)  # Rewrites the file of broker 1.
    stage.lead(kept, 3)
    assert stage.topics[kept].start == 7


def test_a_save_that_began_before_a_deletion_of_records_does_not_undo_it(
    stage: ClusterStage,
) -> None:
    name = led(stage)
    broker = stage.brokers[1]
    stage.partition(name).log.sync()
    save = broker.layout.prepare_checkpoints(broker.partitions.by_name.values(), sync=True)
    assert save is not None
    save.run()
    stage.delete_records(name, 5)
    assert not broker.layout.complete_save(save)
    stage.kill(1)
    stage.lead(name, 2)


def test_a_deletion_of_records_that_could_not_be_saved_is_not_remembered(
    stage: ClusterStage,
) -> None:
    name = led(stage)
    layout = stage.brokers[1].layout
    stage.disk.fail_call(1)
    with pytest.raises(StorageError, match="cannot be written"):
        layout.save_log_starts({name: 5}, sync=True)
    stage.partition(name).log.sync()
    stage.brokers[1].save()
    stage.kill(1)
    stage.lead(name, 2)
    assert stage.topics[name].start == 0


def test_a_new_topic_of_an_old_name_inherits_nothing(stage: ClusterStage) -> None:
    name = led(stage)
    stage.delete_records(name, 12)
    stage.partition(name).log.sync()
    stage.brokers[1].save()
    stage.kill(1)  # It is dead while the topic is deleted, and its file stays as it is.
    stage.delete(name)
    assert stage.create("orders") == name
    stage.lead(name, 2)
    stage.write(name, 3)
    stage.kill(2)
    stage.lead(name, 3)
    stage.start_broker(1)
    stage.release(name)
    stage.lead(name, 1)


def test_a_restarted_broker_drops_topics_that_are_gone(stage: ClusterStage) -> None:
    name = led(stage)
    stage.delete_records(name, 12)
    stage.kill(1)
    stage.delete(name)
    other = led(stage, 2)
    stage.start_broker(1)
    layout = stage.brokers[1].layout
    assert isinstance(layout, BrokerLayout)
    before = stage.disk.size(f"{FOLDER}/{broker_file(1)}")
    layout.keep_only({each.topic_id for each in stage.topics.values()})
    stage.release(other)
    stage.lead(other, 1)
    stage.delete_records(other, 1)
    assert stage.disk.size(f"{FOLDER}/{broker_file(1)}") <= before


def test_a_folder_of_another_topic_is_not_touched_by_a_broker(stage: ClusterStage) -> None:
    name = led(stage)
    stage.release(name)
    layout = stage.brokers[2].layout
    with pytest.raises(StorageError, match="still belongs to the deleted topic"):
        layout.claim(name, b"another topic id")
    stage.lead(name, 2)


def test_a_partition_that_was_never_written_to_has_no_folder(stage: ClusterStage) -> None:
    name = stage.create("empty")
    stage.lead(name, 1)
    stage.brokers[1].save()
    stage.kill(1)
    stage.lead(name, 2)
    assert str(name) not in stage.disk.list_dir(FOLDER)
    stage.write(name)
    stage.kill(2)
    stage.lead(name, 3)


@pytest.mark.parametrize("spoiled", [b"", b"rubbish", b"x" * 500])
def test_a_damaged_file_of_a_broker_costs_time_and_no_log_start_of_others(
    stage: ClusterStage, spoiled: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    name = led(stage)
    stage.delete_records(name, 7)
    stage.release(name)
    stage.lead(name, 2)
    stage.release(name)
    stage.disk.write_file(f"{FOLDER}/{broker_file(1)}", spoiled, sync=True)
    stage.lead(name, 3)
    assert "broker-1.checkpoint is damaged" in caplog.text
    assert stage.topics[name].start == 7


def test_a_file_that_cannot_be_read_keeps_the_partition_offline_until_it_can(
    stage: ClusterStage,
) -> None:
    """Taken for absent, it would bring back deleted records."""
    name = led(stage)
    stage.delete_records(name, 7)
    stage.kill(1)
    stage.brokers[2].layout.refresh()
    for call in range(1, 4):
        stage.disk.fail_call(call, errno.EIO)
    with pytest.raises(StorageError, match="cannot be read"):
        stage.lead(name, 2)
    stage.disk.heal()
    stage.lead(name, 2)


def test_the_files_of_others_are_read_once_for_a_batch_of_openings(stage: ClusterStage) -> None:
    names = [stage.create(f"t{number}") for number in range(50)]
    for name in names:
        stage.lead(name, 1)
        stage.write(name)
    stage.kill(1)
    broker = stage.brokers[2]
    broker.layout.refresh()
    stage.disk.kinds = []
    reads: list[str] = []
    original = stage.disk.read_file

    def counting(path: str) -> bytes:
        reads.append(path)
        return original(path)

    stage.disk.read_file = counting  # type: ignore[method-assign]
    for name in names:
        stage.topics[name].leader = 2
        stage.topics[name].epoch += 1
        stage.open(name)
    checkpoints = [path for path in reads if path.endswith(".checkpoint")]
    assert sorted(checkpoints) == sorted(
        f"{FOLDER}/{name}" for name in (CLUSTER, broker_file(1), broker_file(3))
    )


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("ending", ["fail", "kill", "power"])
def test_a_save_that_fails_or_is_cut_short_leaves_the_file_before_or_after(
    call: int, ending: str
) -> None:
    stage = ClusterStage()
    stage.start_parent()
    name = led(stage)
    stage.delete_records(name, 3, sync=True)
    stage.partition(name).log.sync()
    stage.disk.sync_all(FOLDER)
    if ending == "fail":
        stage.disk.fail_call(call)
    else:
        stage.disk.lose_power_at(call)
    with contextlib.suppress(StorageError, OSError, PowerLost):
        stage.brokers[1].save()
    stage.disk.heal()
    if ending == "power":
        stage.disk.crash()
    else:
        stage.disk.kill()
    del stage.brokers[1]
    layout = BrokerLayout(stage.disk, FOLDER, 2, BROKERS)
    layout.load()
    saved = layout.saved(name, stage.topics[name].topic_id, stage.topics[name].epoch + 1)
    assert saved.log_start_offset == 3
    assert saved.recovery_point in (0, stage.topics[name].end - 1)


def test_an_absent_directory_of_others_is_no_failure() -> None:
    disk = UnsyncedDisk()
    disk.make_dir(FOLDER)
    layout = BrokerLayout(disk, FOLDER, 1, BROKERS)
    layout.load()
    assert layout.is_new(TopicPartition("t", 0), bytes(16))
    assert layout.saved(TopicPartition("t", 0), bytes(16), 0) == (0, 0, 0, False)


def test_every_batch_of_openings_begins_with_a_look_at_what_others_have_saved() -> None:
    """Otherwise a survivor would miss the log start offsets that the dead leader has saved."""
    node = StubNode().start()
    looks: list[bool] = []
    node.layout.refresh = lambda: looks.append(True)  # type: ignore[method-assign]
    node.effects.open([], lambda: None)
    node.effects.open([], lambda: None)
    assert looks == [True, True]
