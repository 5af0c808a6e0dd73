"""The data directory: owners of folders, and the state that a stop leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.base.system import SystemDisk
from fencepost.broker.storage.layout import CLEAN_SHUTDOWN, LOG_STARTS, RECOVERY_POINTS, Layout
from fencepost.simulation.disk import UnsyncedDisk
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import (
    batch_of,
    create_topic,
    delete_records,
    delete_topic,
    produce,
    read_topic,
)

ORDERS = TopicPartition("orders", 0)
FIRST_ID, SECOND_ID = bytes(15) + b"\x07", bytes(15) + b"\x08"


@pytest.fixture
def layout() -> Layout:
    made = Layout(UnsyncedDisk(), FOLDER)
    made.load()
    return made


def names(layout: Layout) -> list[str]:
    return [name for name in layout._disk.list_dir(FOLDER) if not name.startswith(".")]


def test_a_folder_of_another_topic_is_set_aside_and_kept(layout: Layout) -> None:
    folder = layout.claim(ORDERS, FIRST_ID)
    layout._disk.write_file(f"{folder}/content", b"of the first", sync=False)
    assert layout.claim(ORDERS, SECOND_ID) == folder
    assert not layout._disk.exists(f"{folder}/content")
    assert layout._disk.exists(f"{folder}.{topic_id_text(FIRST_ID)}-stray/content")


def test_an_unclaimed_folder_is_set_aside_every_time_it_reappears(layout: Layout) -> None:
    """A power loss may undo a deletion, and undo it again after the next one."""
    for number in range(3):
        folder = layout.claim(ORDERS, FIRST_ID)
        layout._disk.write_file(f"{folder}/content", b"%d" % number, sync=False)
        layout.set_aside_strays([])
    strays = [name for name in names(layout) if name.endswith("-stray")]
    assert len(strays) == 3
    assert str(ORDERS) not in names(layout)


def test_folders_of_known_topics_and_foreign_folders_are_not_moved(layout: Layout) -> None:
    layout.claim(ORDERS, FIRST_ID)
    layout._disk.make_dir(f"{FOLDER}/lost+found")
    before = names(layout)
    layout.set_aside_strays([ORDERS])
    layout.set_aside_strays([ORDERS])
    assert names(layout) == before


def test_the_remains_of_an_interrupted_deletion_are_removed_by_the_next_start() -> None:
    stage = Stage(durability="os").start()
    stage.stop()
    for name in ("orders-0-delete", "orders-0.7-delete"):
        stage.disk.make_dir(f"{FOLDER}/{name}")
        stage.disk.write_file(f"{FOLDER}/{name}/{0:020d}.log", b"rest", sync=True)
    again = stage.again()
    again.settle()
    assert not [name for name in again.disk.list_dir(FOLDER) if "orders" in name]
    again.stop()


def test_a_folder_can_be_deleted_while_earlier_ones_of_its_name_are_being_removed(
    layout: Layout,
) -> None:
    doomed: set[str] = set()
    for _ in range(3):
        layout.claim(ORDERS, FIRST_ID)
        doomed.update(layout.delete(ORDERS, FIRST_ID))
    assert {f"{FOLDER}/{name}" for name in names(layout)} == doomed
    assert len(doomed) == 3
    assert layout.delete(ORDERS, FIRST_ID) == [], "there is nothing left to delete"


def test_a_clean_shutdown_marker_is_used_once(layout: Layout) -> None:
    layout.claim(ORDERS, FIRST_ID)
    layout._disk.write_file(f"{FOLDER}/meta.properties", b"", sync=True)
    layout.mark_clean()
    for clean in (True, False):
        next_life = Layout(layout._disk, FOLDER)
        next_life.load()
        assert next_life.clean is clean
        next_life.claim(ORDERS, FIRST_ID)
        assert not layout._disk.exists(f"{FOLDER}/{CLEAN_SHUTDOWN}")


def test_a_power_loss_does_not_restore_the_clean_shutdown_marker() -> None:
    """Otherwise the next start would trust logs that this process has written to."""
    disk = UnsyncedDisk()
    disk.make_dir(FOLDER)
    disk.write_file(f"{FOLDER}/meta.properties", b"", sync=True)
    Layout(disk, FOLDER).mark_clean()
    life = Layout(disk, FOLDER)
    life.load()
    assert life.clean
    life.claim(ORDERS, FIRST_ID)
    disk.crash()
    after = Layout(disk, FOLDER)
    after.load()
    assert not after.clean


def test_reading_a_directory_does_not_change_it(layout: Layout) -> None:
    layout._disk.write_file(f"{FOLDER}/meta.properties", b"", sync=True)
    layout.mark_clean()
    before = names(layout)
    Layout(layout._disk, FOLDER).load()
    assert names(layout) == before


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS])
def test_an_unreadable_checkpoint_only_makes_the_start_slower(name: str) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "kept")
    produce(stage, "kept", batch_of(b"value"))
    stage.stop()
    stage.disk.write_file(f"{FOLDER}/{name}", b"rubbish\nof two lines\n", sync=True)
    again = stage.again()
    assert not again.node.layout.clean
    assert read_topic(again, "kept") == [b"value"]
    again.stop()


def test_a_directory_without_its_metadata_log_is_refused_and_not_changed() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "name")
    produce(stage, "name", batch_of(b"of another life"))
    stage.stop()
    # The metadata log is lost with its recovery point; the folder of the topic is not.
    stage.disk.remove_tree(f"{FOLDER}/__cluster_metadata-0")
    stage.disk.remove(f"{FOLDER}/{RECOVERY_POINTS}")
    before = stage.disk.list_dir(FOLDER)
    with pytest.raises(StorageError, match="it is missing, but there are 1 partitions"):
        stage.again()
    assert stage.disk.list_dir(FOLDER) == before


@pytest.mark.parametrize("kept_bytes", [0, 100])
def test_a_damaged_metadata_log_prevents_the_start_and_no_topic_is_set_aside(
    kept_bytes: int,
) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "name")
    stage.stop()
    path = f"{FOLDER}/__cluster_metadata-0/{0:020}.log"
    spoiled = stage.disk.read_file(path)[:kept_bytes] + b"not a batch of anybody" * 9
    stage.disk.write_file(path, spoiled, sync=True)
    before = stage.disk.list_dir(FOLDER)
    for _ in range(2):  # The second attempt is refused as well.
        with pytest.raises(
            StorageError, match=r"damaged.*Restore __cluster_metadata-0 from a backup"
        ):
            stage.again()
        assert stage.disk.list_dir(FOLDER) == before


def test_a_topic_with_the_longest_name_is_deleted_with_its_files(tmp_path: Path) -> None:
    layout = Layout(SystemDisk(), str(tmp_path))
    layout.load()
    name = TopicPartition("t" * 249, 999)
    layout.claim(name, bytes(15) + b"\x07")
    (doomed,) = layout.delete(name, bytes(15) + b"\x07")
    SystemDisk().remove_tree(doomed)
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith("t")]


def test_a_new_topic_of_an_old_name_starts_at_0_after_a_kill_before_its_first_write() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "orders")
    produce(stage, "orders", batch_of(b"one", b"two", b"three"))
    assert delete_records(stage, "orders", 2) == 0
    delete_topic(stage, "orders")
    create_topic(stage, "orders")
    stage.kill()
    again = stage.again()
    assert produce(again, "orders", batch_of(b"new")).base_offset == 0
    assert read_topic(again, "orders") == [b"new"]
    again.stop()
