"""From one broker to several and back: nothing is lost, however the change ends."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import pickle
from collections.abc import Callable, Iterator

import pytest

from fencepost.base.failures import FencepostError
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.broker.storage.broker_layout import NEXT
from fencepost.broker.storage.cluster_checkpoints import CLUSTER, broker_file
from fencepost.broker.storage.directory_check import DirectoryCheck
from fencepost.broker.storage.layout import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY,
    LOG_STARTS,
    RECOVERY_POINTS,
    Layout,
)
from fencepost.broker.storage.parent_layout import ParentLayout
from fencepost.broker.storage.repair import Repair
from fencepost.records.text_files import decode_offsets, decode_properties, encode_offsets
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from tests.broker.storage.cluster_stage import CONFIG, FOLDER, ClusterStage, Process

# Compiled objects cannot be copied.
pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.interpreted]

EVERY_CALL = bool(os.environ.get("FENCEPOST_EVERY_CALL"))
KAFKAS = (RECOVERY_POINTS, LOG_STARTS, FIRST_DIRTY)


def names(disk: UnsyncedDisk) -> list[str]:
    return disk.list_dir(FOLDER)


def busy(stage: ClusterStage) -> ClusterStage:
    """A cluster with logs that begin later, were closed, killed and never written to."""
    stage.start_parent()
    for number, broker_id in enumerate((1, 2, 3, 1, 2)):
        name = stage.create(f"t{number}")
        stage.lead(name, broker_id)
        stage.write(name, 10 + number)
        stage.delete_records(name, 3 + number, sync=True)
        stage.partition(name).log.sync()
    stage.lead(stage.create("empty"), 3)
    for broker in stage.brokers.values():
        broker.save()
    moved = TopicPartition("t3", 0)
    stage.release(moved)
    stage.lead(moved, 2)
    stage.disk.sync_all(FOLDER)
    return stage


def serve_alone(stage: ClusterStage) -> Process:
    """One broker opens everything, and finds what clients rely on."""
    single = stage.load(Layout(stage.disk, FOLDER))
    for name, topic in stage.topics.items():
        topic.leader, topic.epoch = 1, topic.epoch + (topic.leader != 1)
        stage.check(single.open(name, topic), topic)
    return single


def stop_alone(single: Process) -> None:
    single.store.close_all(clean=True, settled=True)


def test_a_directory_goes_from_one_broker_to_three_and_back() -> None:
    stage = ClusterStage()
    name = stage.create("first")
    single = serve_alone(stage)
    stage.brokers[1] = single  # For the client.
    stage.write(name, 20)
    stage.delete_records(name, 4)
    stop_alone(single)
    before = {each: stage.disk.read_file(f"{FOLDER}/{each}") for each in KAFKAS[:2]}
    stage.brokers.clear()
    stage.start_parent()
    assert not stage.partition(name).log.recovered_from, "the last stop was clean"
    assert stage.stop()
    assert not [each for each in names(stage.disk) if each.endswith(".checkpoint")]
    after = {each: stage.disk.read_file(f"{FOLDER}/{each}") for each in KAFKAS[:2]}
    assert decode_offsets(after[LOG_STARTS]) == decode_offsets(before[LOG_STARTS])
    points = decode_offsets(after[RECOVERY_POINTS])
    assert points[name] == decode_offsets(before[RECOVERY_POINTS])[name]
    single = serve_alone(stage)
    assert isinstance(single.layout, Layout)
    assert single.layout.clean
    stop_alone(single)


def test_the_format_becomes_2_with_the_first_cluster_and_stays() -> None:
    stage = ClusterStage()
    stop_alone(serve_alone(stage))

    def found() -> str:
        content = decode_properties(stage.disk.read_file(f"{FOLDER}/meta.properties"))
        assert content["node.id"] == "1"
        return content["fencepost.format"]

    assert found() == "1"
    stage.start_parent()
    assert found() == "2"
    assert stage.stop()
    stop_alone(serve_alone(stage))
    assert found() == "2"


def test_a_clean_stop_of_a_busy_cluster_needs_no_scan_afterwards() -> None:
    stage = busy(ClusterStage())
    assert stage.stop()
    assert CLEAN_SHUTDOWN in names(stage.disk)
    single = serve_alone(stage)
    for partition in single.partitions.by_name.values():
        assert partition.log.recovered_from is None, partition
    stop_alone(single)
    stage.start_parent()
    for topic_name in stage.topics:
        assert stage.partition(topic_name).log.recovered_from is None
    assert stage.stop()


def test_a_reboot_after_a_clean_stop_needs_no_scan() -> None:
    stage = busy(ClusterStage())
    assert stage.stop()
    stage.disk.crash()
    stage.start_parent()
    for name in stage.topics:
        assert stage.partition(name).log.recovered_from is None
        assert not stage.brokers[stage.topics[name].leader].layout.lost_power
    assert stage.stop()


def test_after_a_kill_of_everything_only_released_logs_are_not_scanned() -> None:
    stage = busy(ClusterStage())
    released = TopicPartition("t0", 0)
    stage.release(released)
    stage.kill_all()
    single = serve_alone(stage)
    for name, partition in single.partitions.by_name.items():
        if name.topic.startswith("t"):
            assert (partition.log.recovered_from is None) is (name == released)
    stop_alone(single)


def test_a_cluster_in_which_one_log_was_not_closed_has_not_stopped_cleanly() -> None:
    stage = busy(ClusterStage())
    stage.kill(1)
    assert not stage.stop()
    assert CLEAN_SHUTDOWN not in names(stage.disk)
    assert CLUSTER in names(stage.disk), "the marks of the others still count"
    stage.start_parent()
    assert stage.partition(TopicPartition("t0", 0)).log.recovered_from is not None
    assert stage.partition(TopicPartition("t2", 0)).log.recovered_from is None
    assert stage.stop()


def test_a_partition_without_a_leader_does_not_spoil_a_clean_stop() -> None:
    stage = busy(ClusterStage())
    name = TopicPartition("t1", 0)
    stage.release(name)
    stage.topics[name].leader = NO_NODE
    stage.topics[name].epoch += 1
    assert stage.stop()


def test_a_topic_that_was_deleted_and_created_in_a_cluster_inherits_nothing_from_before_it() -> (
    None
):
    stage = ClusterStage()
    name = stage.create("t")
    single = serve_alone(stage)
    stage.brokers[1] = single
    stage.write(name, 20)
    stage.delete_records(name, 15)
    stop_alone(single)
    stage.brokers.clear()
    stage.start_parent()
    stage.delete(name)
    stage.create("t")
    stage.lead(name, 2)
    stage.write(name, 2)
    stage.kill_all()
    stop_alone(serve_alone(stage))


def test_a_folder_of_a_deleted_topic_is_set_aside_before_its_name_is_used_again() -> None:
    """The rename of the deletion was lost, or never happened."""
    stage = busy(ClusterStage())
    name = TopicPartition("t0", 0)
    del stage.topics[name]
    stage.create("t0")
    stage.topics[name].leader = 1
    stage.kill_all()
    stage.start_parent()
    assert [each for each in names(stage.disk) if each.startswith("t0-0.")]
    stage.write(name)
    assert stage.stop()


def test_folders_are_deleted_by_topic_id_and_unknown_ones_are_kept() -> None:
    stage = busy(ClusterStage())
    name, other = TopicPartition("t0", 0), TopicPartition("t1", 0)
    topic_id = stage.topics[name].topic_id
    torn = TopicPartition("torn", 0)
    stage.disk.make_dir(f"{FOLDER}/{torn}")
    gone = TopicPartition("gone", 0)
    directory = stage.directory
    doomed = [each for one in (name, other, torn, gone) for each in directory.delete(one, topic_id)]
    assert doomed == [f"{FOLDER}/t0-0.1-delete"]
    assert str(other) in names(stage.disk)
    assert "torn-0-stray" in names(stage.disk)
    assert directory.delete(name, topic_id) == []
    assert stage.directory.deleted_folders() == doomed


# -- crashes --------------------------------------------------------------------------------------


def begin(stage: ClusterStage) -> None:
    stage.start_parent()


def end(stage: ClusterStage) -> None:
    stage.stop()


def merge(stage: ClusterStage) -> None:
    serve_alone(stage)


def stopped(stage: ClusterStage) -> None:
    busy(stage)
    assert stage.stop()


def killed(stage: ClusterStage) -> None:
    busy(stage).kill_all()


def alone(stage: ClusterStage) -> None:
    """One broker has used the directory last, and was killed; files of a cluster are left."""
    busy(stage).kill_all()
    serve_alone(stage)
    stage.kill_all()


def running(stage: ClusterStage) -> None:
    busy(stage)


STORIES: list[tuple[Callable[[ClusterStage], None], Callable[[ClusterStage], None]]] = [
    (stopped, begin),
    (killed, begin),
    (alone, begin),
    (running, end),
    (killed, merge),
]


def crashing(
    prepare: Callable[[ClusterStage], None], story: Callable[[ClusterStage], None]
) -> Iterator[tuple[int, ClusterStage]]:
    """The story from the same beginning, with another call to end it each time."""
    first = ClusterStage()
    prepare(first)
    is_idle = not first.brokers and first.parent is None
    kept = pickle.dumps(first) if is_idle else b""  # Quicker to copy than open files.
    for call in itertools.count(1, 1 if EVERY_CALL else 3):
        yield call, pickle.loads(kept) if is_idle else copy.deepcopy(first)


@pytest.mark.parametrize("ending", ["kill", "power"])
@pytest.mark.parametrize(("prepare", "story"), STORIES)
def test_a_crash_at_sampled_disk_calls_of_a_start_or_stop_loses_nothing(
    prepare: Callable[[ClusterStage], None], story: Callable[[ClusterStage], None], ending: str
) -> None:
    for call, stage in crashing(prepare, story):
        epochs = {name: topic.epoch for name, topic in stage.topics.items()}
        leaders = {name: topic.leader for name, topic in stage.topics.items()}
        stage.disk.lose_power_at(call)
        try:
            story(stage)
        except PowerLost:
            is_over = False
        else:
            is_over = True
        stage.brokers.clear()
        stage.parent = None
        if ending == "power":
            stage.disk.crash()
            for name, topic in stage.topics.items():  # The metadata log lost its end, too.
                topic.epoch, topic.leader = epochs[name], leaders[name]
        else:
            stage.disk.kill()
        then = pickle.loads(pickle.dumps(stage))
        stop_alone(serve_alone(stage))
        then.start_parent()
        assert then.stop()
        stop_alone(serve_alone(then))
        if is_over:
            return


@pytest.mark.parametrize(("prepare", "story"), STORIES)
def test_a_failing_disk_call_of_a_start_or_stop_loses_nothing(
    prepare: Callable[[ClusterStage], None], story: Callable[[ClusterStage], None]
) -> None:
    for call, stage in crashing(prepare, story):
        before = stage.disk.calls
        stage.disk.fail_call(call)
        with contextlib.suppress(FencepostError, OSError):
            story(stage)
        is_over = stage.disk.calls - before < call
        stage.kill_all()
        stop_alone(serve_alone(stage))
        if is_over:
            return


# -- who writes what ------------------------------------------------------------------------------


class WatchedDisk(UnsyncedDisk):
    """Notes which process changes which path."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = ""
        self.written: dict[str, set[str]] = {}

    def _note(self, *paths: str) -> None:
        for path in paths:
            self.written.setdefault(path.removeprefix(f"{FOLDER}/"), set()).add(self.writer)

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        self._note(path, path + ".tmp")
        super().write_file(path, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        if not old.endswith(".tmp"):
            self._note(old, new)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._note(path)
        super().remove(path)


def test_no_file_of_the_directory_is_written_by_two_living_processes() -> None:
    disk = WatchedDisk()
    stage = ClusterStage(disk)
    disk.writer = "parent"
    stage.start_parent()
    for number in range(6):
        name = stage.create(f"t{number}")
        broker_id = 1 + number % 3
        disk.writer = f"broker {broker_id}"
        stage.lead(name, broker_id)
        stage.write(name, 10)
        stage.delete_records(name, 2)
        stage.partition(name).log.sync()
        stage.brokers[broker_id].save()
    disk.writer = "parent"
    for broker_id in (1, 2, 3):
        disk.writer = f"broker {broker_id}"
        stage.brokers[broker_id].store.close_all(clean=True, settled=True)
    beside = {path: who for path, who in disk.written.items() if "/" not in path}
    for path, writers in beside.items():
        assert len(writers) == 1, path
        owner = path.split(".")[0].replace("-", " ")
        expected = owner if owner.startswith("broker ") else "parent"
        assert writers == {expected}, path
    assert {broker_file(1), broker_file(2) + NEXT, CLUSTER} <= beside.keys()
    folders = {
        (path.partition("/")[0], who)
        for path, writers in disk.written.items()
        if "/" in path
        for who in writers
    }
    assert len({folder for folder, _ in folders}) == len(folders), "one leader writes each folder"


# -- tools ----------------------------------------------------------------------------------------


def test_check_mentions_the_files_of_a_killed_cluster_and_finds_damage_in_them() -> None:
    stage = busy(ClusterStage())
    stage.kill_all()

    def found() -> dict[str, bool]:
        check = DirectoryCheck(stage.disk, FOLDER, lambda what: None)
        return {each.file: each.is_damage for each in check.run()}

    assert found() == {
        CLUSTER: False,
        broker_file(1): False,
        broker_file(2): False,
        broker_file(3): False,
    }
    path = f"{FOLDER}/{broker_file(2)}"
    content = stage.disk.read_file(path)
    stage.disk.write_file(path, content[:-1] + b"\xff", sync=True)
    assert found()[broker_file(2)] is True
    stage.disk.write_file(path, content, sync=True)
    stop_alone(serve_alone(stage))
    assert found().keys() <= {"__cluster_metadata-0"}, "the stage has no records of topics"


def test_check_and_repair_know_the_offsets_that_a_broker_has_saved() -> None:
    stage = busy(ClusterStage())
    stage.kill_all()
    name = TopicPartition("t1", 0)
    folder = f"{FOLDER}/{name}"
    last = max(each for each in stage.disk.list_dir(folder) if each.endswith(".log"))
    stage.disk.remove(f"{folder}/{last}")
    check = DirectoryCheck(stage.disk, FOLDER, lambda what: None)
    problems = [each.problem for each in check.run() if each.file == str(name)]
    assert problems
    assert "was synced up to" in problems[0]
    repaired = Repair(stage.disk, FOLDER, name).run()
    assert repaired
    assert repaired[-1].end_offset == stage.topics[name].end - 1, "the saved recovery point"


def test_remains_of_an_earlier_cluster_do_not_count() -> None:
    """A crash may leave the files of brokers after `cluster.checkpoint` is removed."""
    stage = busy(ClusterStage())
    name = TopicPartition("t0", 0)
    stage.release(name)
    remains = stage.disk.read_file(f"{FOLDER}/{broker_file(1)}")
    stage.lead(name, 1)
    stage.topics[name].epoch -= 1  # The mark of the remains is of the epoch before the next one.
    stage.brokers[1].partitions.by_name[name].leader_epoch -= 1
    assert stage.stop()
    stage.disk.write_file(f"{FOLDER}/{broker_file(1)}", remains, sync=True)
    single = serve_alone(stage)
    stage.brokers[1] = single
    stage.write(name)
    stage.kill_all()
    stage.start_parent()
    assert stage.partition(name).log.recovered_from is not None, "it was killed while it wrote"
    assert stage.stop()
    assert broker_file(1) not in names(stage.disk)


def test_kafkas_checkpoints_do_not_count_while_brokers_have_their_own() -> None:
    stage = busy(ClusterStage())
    stage.kill_all()
    stale = {TopicPartition("empty", 0): 99, TopicPartition("t1", 0): 99}
    stage.disk.write_file(f"{FOLDER}/{LOG_STARTS}", encode_offsets(stale), sync=True)
    stop_alone(serve_alone(stage))


def test_no_clean_close_counts_after_a_power_loss() -> None:
    stage = busy(ClusterStage())
    name = TopicPartition("t0", 0)
    stage.release(name)
    stage.disk.sync_all(FOLDER)
    stage.kill_all()
    stage.disk.crash()
    single = serve_alone(stage)
    assert single.partitions.by_name[name].log.recovered_from is not None
    stop_alone(single)


def test_a_start_of_the_parent_uses_up_the_mark_of_a_clean_stop() -> None:
    stage = busy(ClusterStage())
    assert stage.stop()
    layout = ParentLayout(stage.disk, FOLDER)
    layout.load()
    assert layout.clean
    layout.begin_cluster(stage.to_open(), sync=False)
    assert CLEAN_SHUTDOWN not in names(stage.disk)
    assert not layout.is_all_closed
    assert CONFIG.segment_bytes < 1000, "small segments, so that logs have several"


def test_a_cluster_whose_brokers_never_opened_anything_stays_cleanly_stopped() -> None:
    """A port was taken, for instance."""
    stage = busy(ClusterStage())
    assert stage.stop()
    parent = stage.load(ParentLayout(stage.disk, FOLDER))
    layout = parent.layout
    assert isinstance(layout, ParentLayout)
    layout.begin_cluster(stage.to_open(), sync=False)
    assert layout.end_cluster(stage.to_open())
    parent.store.close_all(clean=True, settled=True)
    assert CLEAN_SHUTDOWN in names(stage.disk)
    stop_alone(serve_alone(stage))


def test_a_merge_that_fails_at_the_end_leaves_the_stop_unclean_and_loses_nothing() -> None:
    stage = busy(ClusterStage())
    for broker in stage.brokers.values():
        broker.store.close_all(clean=True, settled=True)
    stage.disk.fail_call(8)
    assert not stage.directory.end_cluster(stage.last_led())
    stage.disk.heal()
    stage.kill_all()
    stop_alone(serve_alone(stage))
