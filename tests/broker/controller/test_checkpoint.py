"""The metadata log stays short: a checkpoint replaces its history."""

from __future__ import annotations

import contextlib

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import CorruptError, SyncError, WireError
from fencepost.broker.controller import checkpoint as metadata_checkpoint
from fencepost.broker.controller.checkpoint import METADATA_LOG_CONFIG
from fencepost.broker.controller.controller import Outcome
from fencepost.coordinator.metadata.apply import apply
from fencepost.coordinator.metadata.events import AlterSettings
from fencepost.coordinator.metadata.snapshot import snapshot
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.log.durability import PendingSync
from fencepost.records.batch import BatchError
from fencepost.records.metadata_checkpoint import (
    checkpoint_name,
    checkpoint_offset,
    decode_checkpoint,
    encode_checkpoint,
)
from fencepost.records.metadata_log import MetadataRecord, NoOpRecord, TopicRecord
from fencepost.simulation.disk import PowerLost
from tests.broker.controller.topics_stage import StubNode

FOLDER = "/data/__cluster_metadata-0"


@pytest.fixture
def short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_checkpoint, "LEAST_RECORDS", 20)


def churn(node: StubNode, times: int) -> None:
    for number in range(times):
        node.made(f"passing-{number}")
        heard: list[Outcome] = []
        node.controller.delete([f"passing-{number}"], heard.extend)
        if node.partitions.fsync:
            node.sync()
        assert [outcome.error for outcome in heard] == [ErrorCode.NONE]


def shape(node: StubNode) -> dict[str, tuple[bytes, int]]:
    """Without leader epochs: a start after a crash raises them."""
    topics = node.metadata.topics.values()
    return {topic.name: (topic.topic_id, len(topic.partitions)) for topic in topics}


def checkpoints(node: StubNode) -> list[str]:
    return [name for name in node.disk.list_dir(FOLDER) if name.endswith(".checkpoint")]


@pytest.mark.usefixtures("short_history")
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_checkpoint_replaces_a_long_history_with_the_same_state(
    durability: str, clean: bool
) -> None:
    node = StubNode({"durability": durability}).start()
    node.made("orders", 3, retention_ms="5")
    churn(node, 30)
    assert len(checkpoints(node)) == 1
    metadata_log = node.log.partition
    assert metadata_log.log_end_offset - metadata_log.log_start_offset < 40
    if not clean:
        node.disk.kill()
    again = node.restarted(clean=clean)
    assert sorted(again.metadata.topics) == ["orders"]
    assert again.metadata.topic_id("orders") == node.metadata.topic_id("orders")
    assert again.metadata.settings == node.metadata.settings
    churn(again, 30)
    assert len(checkpoints(again)) == 1
    assert sorted(again.restarted().metadata.topics) == ["orders"]


@pytest.mark.usefixtures("short_history")
def test_a_power_loss_around_a_checkpoint_loses_nothing_acknowledged() -> None:
    for calls in range(1, 1200, 19):
        node = StubNode({"durability": "fsync"}).start()
        node.made("orders")
        node.disk.lose_power_at(calls)
        made = ["orders"]
        with contextlib.suppress(PowerLost):
            for number in range(40):
                node.made(f"t{number}")
                made.append(f"t{number}")
        node.disk.crash()
        node.partitions.by_name.clear()
        again = StubNode(node.config.static, disk=node.disk, randomness=node.randomness).start()
        assert set(made) <= set(again.metadata.topics)


@pytest.mark.usefixtures("short_history")
def test_a_damaged_checkpoint_stops_the_start(node: StubNode) -> None:
    churn(node, 30)
    (name,) = checkpoints(node)
    content = bytearray(node.disk.read_file(f"{FOLDER}/{name}"))
    content[70] ^= 1
    node.disk.write_file(f"{FOLDER}/{name}", bytes(content), sync=True)
    with pytest.raises(CorruptError, match=name):
        node.restarted()


@pytest.mark.usefixtures("short_history")
def test_a_missing_checkpoint_stops_the_start(node: StubNode) -> None:
    churn(node, 30)
    (name,) = checkpoints(node)
    node.disk.remove(f"{FOLDER}/{name}")
    with pytest.raises(
        CorruptError, match="are missing: neither the log nor a checkpoint has them"
    ):
        node.restarted()


@pytest.mark.usefixtures("short_history")
def test_a_checkpoint_that_cannot_be_written_leaves_the_log_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = StubNode().start()

    def no_room(path: str, data: bytes, *, sync: bool) -> None:
        raise OSError(28, "No space left on device")

    original = node.disk.write_file
    monkeypatch.setattr(
        node.disk,
        "write_file",
        lambda path, data, *, sync: (no_room if ".checkpoint" in path else original)(
            path, data, sync=sync
        ),
    )
    churn(node, 30)
    assert checkpoints(node) == []
    assert node.fatal_reasons == []
    monkeypatch.undo()
    node.made("the-next-change")
    assert len(checkpoints(node)) == 1


@pytest.mark.usefixtures("short_history")
def test_a_failed_sync_of_the_metadata_log_stops_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = StubNode().start()

    def broken(self: PendingSync) -> None:
        raise SyncError("the disk did not confirm a sync")

    monkeypatch.setattr(PendingSync, "run", broken)
    churn(node, 30)
    assert node.fatal_reasons
    assert checkpoints(node) == []


@pytest.mark.usefixtures("short_history")
@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_changes_made_while_a_checkpoint_is_written_are_not_lost(
    durability: str, steps: int
) -> None:
    """Killed before the checkpoint is written, before the log is truncated, and afterwards."""
    node = StubNode({"durability": durability}).start()
    node.background.is_held = True
    node.made("orders", 3, retention_ms="5")
    churn(node, 30)
    assert len(node.background.held) == 1, "one checkpoint at a time"
    node.made("meanwhile", 2)
    node.controller.alter_settings(
        [AlterSettings(2, "orders", {"retention.ms": "7"})], lambda _: None
    )
    if durability == "fsync":
        node.sync()
    for _ in range(steps):
        assert node.background.step()
    assert len(checkpoints(node)) == (steps > 0)
    assert (node.log.partition.log_start_offset > 0) == (steps == 2)
    node.disk.kill()
    again = node.restarted(clean=False)
    assert shape(again) == shape(node)
    assert again.metadata.settings == node.metadata.settings
    churn(again, 30)
    assert len(checkpoints(again)) == 1


@pytest.mark.usefixtures("short_history")
def test_a_checkpoint_has_the_state_at_its_offset(node: StubNode) -> None:
    node.background.is_held = True
    node.made("orders", 3)
    churn(node, 30)
    node.made("meanwhile", 2)
    node.background.step()
    (name,) = checkpoints(node)
    records = list(decode_checkpoint(node.disk.read_file(f"{FOLDER}/{name}")))
    assert not any(isinstance(r, TopicRecord) and r.name == "meanwhile" for r in records)
    assert any(isinstance(r, TopicRecord) and r.name == "orders" for r in records)


def test_retention_never_removes_metadata_records(node: StubNode) -> None:
    assert node.log.partition.log.config == METADATA_LOG_CONFIG
    assert METADATA_LOG_CONFIG.retention_ms == -1
    assert METADATA_LOG_CONFIG.retention_bytes == -1
    assert not METADATA_LOG_CONFIG.cleanup_policy


# -- the file


def test_a_checkpoint_reads_back() -> None:
    records: list[MetadataRecord] = [
        TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big"))
        for number in range(2500)
    ]
    data = encode_checkpoint(records, timestamp_ms=5, epoch=3)
    assert list(decode_checkpoint(data)) == records


def test_an_empty_state_has_a_checkpoint() -> None:
    data = encode_checkpoint([], timestamp_ms=5, epoch=0)
    assert list(decode_checkpoint(data)) == []


@pytest.mark.parametrize("cut", [0, 1, 60, 70, -1, -60, -100])
def test_a_truncated_checkpoint_is_refused(cut: int) -> None:
    data = encode_checkpoint([NoOpRecord()], timestamp_ms=5, epoch=0)
    with pytest.raises((BatchError, WireError)):
        list(decode_checkpoint(data[:cut]))


def test_checkpoint_files_have_kafkas_names() -> None:
    assert checkpoint_name(12, 3) == "00000000000000000012-0000000003.checkpoint"
    assert checkpoint_offset("00000000000000000012-0000000003.checkpoint") == 12
    assert checkpoint_offset("00000000000000000012.snapshot") is None


def test_a_thousand_partitions_fit_into_a_checkpoint(node: StubNode) -> None:
    node.made("wide", 1000)
    data = encode_checkpoint(snapshot(node.metadata), timestamp_ms=1, epoch=0)
    state = MetadataState()
    for record in decode_checkpoint(data):
        apply(state, record)
    assert state == node.metadata
