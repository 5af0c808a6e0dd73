"""Checkpoints of a coordinator: a load with one reads little, and ends in the same state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.coordinators import checkpoint_keeper
from fencepost.broker.coordinators.checkpoint_keeper import checkpoint_path
from fencepost.coordinator.txn.apply import fold
from fencepost.records.coordinator_checkpoint import (
    SavedRecord,
    decode_checkpoint,
    encode_checkpoint,
)
from fencepost.records.transaction_log import encode_key, encode_value
from tests.broker.transactions.shell import ShellNode

pytestmark = pytest.mark.interpreted

COORDINATOR_LOG = TopicPartition(TRANSACTION_STATE_TOPIC, 0)

numbers = st.integers(-1, 2**62)
records = st.lists(
    st.builds(
        SavedRecord, st.binary(max_size=40), st.none() | st.binary(max_size=80), numbers, numbers
    ),
    max_size=20,
)


@given(st.integers(0, 2**62), records)
def test_a_checkpoint_reads_back(offset: int, found: list[SavedRecord]) -> None:
    assert decode_checkpoint(encode_checkpoint(offset, found)) == (offset, found)


@given(records, st.data())
def test_a_truncated_or_changed_checkpoint_is_refused(
    found: list[SavedRecord], data: st.DataObject
) -> None:
    whole = encode_checkpoint(7, found)
    assert decode_checkpoint(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None
    position = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[position] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_checkpoint(bytes(changed)) is None


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_keeper, "LEAST_RECORDS", 10)
    monkeypatch.setattr(checkpoint_keeper, "MOST_RECORDS", 20)
    monkeypatch.setattr(checkpoint_keeper, "WORTH_SAVING_AT_CLOSE", 5)


def busy(transactions: int, *, fsync: bool = False) -> ShellNode:
    """A node that has committed this many transactions of one id, and left one open."""
    node = ShellNode(fsync=fsync)
    node.load()
    node.init()
    node.sync_all()
    for _ in range(transactions):
        node.add(9_000, 0)
        node.sync_all()
        node.end(9_000, 0)
        node.sync_all()
    node.add(9_000, 0, {"t": (3,)})
    node.sync_all()
    return node


def path(node: ShellNode) -> str:
    return checkpoint_path(node.partitions[COORDINATOR_LOG])


def entries_read(node: ShellNode, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records at which offsets loads begin to read the log."""
    starts: list[int] = []
    partition_class = type(node.partitions[COORDINATOR_LOG])
    real = partition_class.whole_entries

    def entries(self: object, from_offset: int = 0) -> object:
        starts.append(from_offset)
        return real(self, from_offset)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_class, "whole_entries", entries)
    return starts


def assert_loads_like_the_log(node: ShellNode) -> None:
    node.load()
    loaded = node.transactions.coordinators()[0].state
    assert loaded == fold(node.partitions[COORDINATOR_LOG].entries())


def test_a_load_reads_only_the_log_after_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    node = busy(4)
    node.pass_time(0)
    assert node.disk.exists(path(node))
    node.add(9_000, 0, {"t": (2,)})
    again = node.restart()
    starts = entries_read(again, monkeypatch)
    again.load()
    assert starts == [14]
    assert again.txn().partitions == {"t": (2, 3)}


def test_a_state_with_many_ids_is_saved_less_often() -> None:
    node = ShellNode()
    node.load()
    for number in range(12):
        node.init(f"id-{number}")
    node.pass_time(0)
    assert node.disk.exists(path(node))
    keeper = node.transactions.coordinators()[0].checkpoint
    assert keeper.unsaved == 0
    for number in range(11):
        node.init(f"id-{number}")
    node.pass_time(0)
    assert keeper.unsaved == 11
    node.init("id-0")
    node.pass_time(0)
    assert keeper.unsaved == 0


@pytest.mark.parametrize("transactions", [0, 1, 3, 4, 10])
def test_a_load_with_a_checkpoint_ends_in_the_state_of_the_log(transactions: int) -> None:
    node = busy(transactions)
    node.pass_time(0)
    again = node.restart()
    assert_loads_like_the_log(again)


def test_a_transaction_that_is_prepared_in_a_checkpoint_is_completed() -> None:
    node = busy(4)
    node.fail_appends(TopicPartition("t", 3), times=1_000)
    node.end(9_000, 0)
    node.pass_time(0)
    node.transactions.unload(0)
    again = node.restart()
    again.load()
    assert again.markers_in("t", 3) == [(True, 0, 0)]


def test_an_expired_id_does_not_come_back_with_an_old_checkpoint() -> None:
    node = busy(4)
    node.end(9_000, 0)
    node.pass_time(0)
    node.now_ms += 604_800_000
    node.transactions.clock.expire(node.transactions.coordinators()[0])
    again = node.restart()
    again.load()
    assert again.transactions.coordinators()[0].state.transactions == {}


def test_a_damaged_checkpoint_is_deleted_and_the_log_is_read() -> None:
    node = busy(4)
    node.pass_time(0)
    data = node.disk.read_file(path(node))
    node.disk.write_file(path(node), data[:-1] + b"?", sync=True)
    again = node.restart()
    assert_loads_like_the_log(again)
    again.transactions.close()


def test_a_checkpoint_that_is_ahead_of_its_log_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    node = busy(1)
    node.disk.write_file(path(node), encode_checkpoint(1_000, [SavedRecord(b"x", b"y")]), sync=True)
    again = node.restart()
    assert_loads_like_the_log(again)
    assert "does not match its log" in caplog.text
    assert not again.disk.exists(path(again))


@pytest.mark.parametrize("ahead", [1, 2, 1_000])
def test_an_id_known_only_to_a_checkpoint_ahead_of_its_log_is_not_served(ahead: int) -> None:
    """A power loss removed the end of the log, and other records follow now."""
    node = busy(1)
    log = node.partitions[COORDINATOR_LOG]
    ghost = SavedRecord(encode_key("ghost"), encode_value(node.txn()))
    node.disk.write_file(
        path(node), encode_checkpoint(log.log_end_offset + ahead, [ghost]), sync=True
    )
    again = node.restart()
    assert_loads_like_the_log(again)
    assert set(again.transactions.coordinators()[0].state.transactions) == {"a"}
    for _ in range(ahead % 10):
        again.init("b")
    third = again.restart(power_lost=True)
    assert_loads_like_the_log(third)


def test_a_checkpoint_at_the_end_of_its_log_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    node = busy(1)
    log = node.partitions[COORDINATOR_LOG]
    saved = SavedRecord(encode_key("saved"), encode_value(node.txn()))
    node.disk.write_file(path(node), encode_checkpoint(log.log_end_offset, [saved]), sync=True)
    again = node.restart()
    again.load()
    assert set(again.transactions.coordinators()[0].state.transactions) == {"saved"}


def test_a_checkpoint_waits_until_its_records_are_durable() -> None:
    node = busy(2, fsync=True)
    node.add(9_000, 0, {"t": (1,)})
    node.add(9_000, 0, {"t": (1, 2)}, version=2)
    node.pass_time(0)
    assert not node.disk.exists(path(node))
    node.sync()
    assert node.disk.exists(path(node))


def test_no_checkpoint_is_written_for_a_closed_partition() -> None:
    node = busy(4)
    node.partitions.pop(COORDINATOR_LOG).closed = True
    node.pass_time(0)
    assert not node.disk.exists(f"/{COORDINATOR_LOG}/coordinator-checkpoint")


def test_a_close_saves_a_checkpoint_if_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = busy(2)
    node.transactions.close()
    again = node.restart()
    starts = entries_read(again, monkeypatch)
    again.load()
    assert starts == [8]


def test_a_checkpoint_that_cannot_be_written_loses_nothing() -> None:
    node = busy(4)
    node.disk.fill()
    node.pass_time(0)
    node.disk.empty()
    again = node.restart()
    assert_loads_like_the_log(again)
