"""The data directory: owners of folders, and the state that a stop leaves."""

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
from tests.broker.requests import batch_of, create_topic, produce, read_topic

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


def test_a_folder_that_no_topic_claims_is_set_aside_every_time_that_it_comes_back(
    layout: Layout,
) -> None:
    """A deletion that a loss of power undoes may be undone again after the next deletion."""
    for number in range(3):
        folder = layout.claim(ORDERS, FIRST_ID)
        layout._disk.write_file(f"{folder}/content", b"%d" % number, sync=False)
        layout.set_aside_strays([])
    strays = [name for name in names(layout) if name.endswith("-stray")]
    assert len(strays) == 3
    assert str(ORDERS) not in names(layout)


def test_folders_of_topics_and_of_strangers_are_left_alone(layout: Layout) -> None:
    layout.claim(ORDERS, FIRST_ID)
    layout._disk.make_dir(f"{FOLDER}/lost+found")
    before = names(layout)
    layout.set_aside_strays([ORDERS])
    layout.set_aside_strays([ORDERS])
    assert names(layout) == before


def test_the_rest_of_a_deletion_that_was_interrupted_is_removed_by_the_next_start() -> None:
    stage = Stage(durability="os").start()
    stage.stop()
    for name in ("orders-0-delete", "orders-0.7-delete"):
        stage.disk.make_dir(f"{FOLDER}/{name}")
        stage.disk.write_file(f"{FOLDER}/{name}/{0:020d}.log", b"rest", sync=True)
    again = stage.again()
    again.settle()
    assert not [name for name in again.disk.list_dir(FOLDER) if "orders" in name]
    again.stop()


def test_a_folder_is_deleted_though_others_of_its_name_are_not_removed_yet(layout: Layout) -> None:
    doomed: set[str] = set()
    for _ in range(3):
        layout.claim(ORDERS, FIRST_ID)
        doomed.update(layout.delete(ORDERS))
    assert {f"{FOLDER}/{name}" for name in names(layout)} == doomed
    assert len(doomed) == 3
    assert layout.delete(ORDERS) == [], "there is nothing left to delete"


def test_the_mark_of_a_clean_stop_counts_once(layout: Layout) -> None:
    layout.claim(ORDERS, FIRST_ID)
    layout._disk.write_file(f"{FOLDER}/meta.properties", b"", sync=True)
    layout.mark_clean()
    for clean in (True, False):
        next_life = Layout(layout._disk, FOLDER)
        next_life.load()
        assert next_life.clean is clean
        next_life.claim(ORDERS, FIRST_ID)
        assert not layout._disk.exists(f"{FOLDER}/{CLEAN_SHUTDOWN}")


def test_a_loss_of_power_does_not_bring_the_mark_of_a_clean_stop_back() -> None:
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


def test_a_directory_that_was_only_looked_at_stays_as_it_was(layout: Layout) -> None:
    layout._disk.write_file(f"{FOLDER}/meta.properties", b"", sync=True)
    layout.mark_clean()
    before = names(layout)
    Layout(layout._disk, FOLDER).load()
    assert names(layout) == before


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS])
def test_a_checkpoint_that_cannot_be_read_costs_time_and_nothing_else(name: str) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "kept")
    produce(stage, "kept", batch_of(b"value"))
    stage.stop()
    stage.disk.write_file(f"{FOLDER}/{name}", b"rubbish\nof two lines\n", sync=True)
    again = stage.again()
    assert not again.node.layout.clean
    assert read_topic(again, "kept") == [b"value"]
    again.stop()


def test_a_directory_whose_metadata_log_is_gone_is_refused_and_left_as_it_is() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "name")
    produce(stage, "name", batch_of(b"of another life"))
    stage.stop()
    # The metadata log is lost completely, with its recovery point; the folder of the topic is not.
    stage.disk.remove_tree(f"{FOLDER}/__cluster_metadata-0")
    stage.disk.remove(f"{FOLDER}/{RECOVERY_POINTS}")
    before = stage.disk.list_dir(FOLDER)
    with pytest.raises(StorageError, match="it is missing, but there are 1 partitions"):
        stage.again()
    assert stage.disk.list_dir(FOLDER) == before


@pytest.mark.parametrize("kept_bytes", [0, 100])
def test_metadata_that_were_on_the_disk_and_are_spoiled_stop_the_start_and_no_topic_is_set_aside(
    kept_bytes: int,
) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "name")
    stage.stop()
    path = f"{FOLDER}/__cluster_metadata-0/{0:020}.log"
    spoiled = stage.disk.read_file(path)[:kept_bytes] + b"not a batch of anybody" * 9
    stage.disk.write_file(path, spoiled, sync=True)
    before = stage.disk.list_dir(FOLDER)
    for _ in range(2):  # A second attempt does not wear the refusal down.
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
    (doomed,) = layout.delete(name)
    SystemDisk().remove_tree(doomed)
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith("t")]
