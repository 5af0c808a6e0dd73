"""`fencepost repair`: what it leaves, and crashes and failures at every one of its disk calls.

Method: a directory with damage of every kind. An uninterrupted repair gives the expected files.
Then the process dies, the power is lost, or the disk fails at the n-th call of a repair, for every
n. A second repair must leave the same files, and each damaged file must be kept somewhere.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
from functools import cache
from typing import Final

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, SyncError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.storage.directory_check import DirectoryCheck
from fencepost.broker.storage.repair import LOSS, Repair
from fencepost.log.names import LOG
from fencepost.records.batch import SealedBatch, split_batches
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from tests.broker.crashes.test_crash_matrix import some_of
from tests.broker.damage.test_damaged_coordinators import ONE, fenced, initialise
from tests.broker.damage.test_damaged_directory import flip
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import batch_of, create_topic, fetch, produce, read_topic
from tests.log.batches import SeededRandomness
from tests.transactions.wire import NONE, WireProducer

pytestmark = pytest.mark.usefixtures("quiet")

DATA: Final = TopicPartition("t", 0)
TRANSACTIONS: Final = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
RECORDS: Final = 60
EPOCH_AT: Final = 12
SMALL: Final = {**ONE, "transaction.state.log.segment.bytes": "600", "log.cleaner.enable": "false"}


def logs(disk: UnsyncedDisk, name: TopicPartition) -> list[str]:
    folder = f"{FOLDER}/{name}"
    return [f"{folder}/{each}" for each in disk.list_dir(folder) if each.endswith(LOG)]


def batches(disk: UnsyncedDisk, path: str) -> list[SealedBatch]:
    return split_batches(disk.read_file(path))


def start_of(disk: UnsyncedDisk, path: str, number: int) -> int:
    return sum(batch.size_bytes for batch in batches(disk, path)[:number])


def written() -> Stage:
    """A stopped directory whose log has several segments, and batches of six leader epochs."""
    stage = Stage(durability="os", settings=SMALL).start()
    create_topic(stage, "t", settings={"internal.segment.bytes": "1000"})
    for number in range(RECORDS):
        if number % 10 == 9:  # After a crash the leader epoch rises.
            stage = stage.kill().again()
        assert produce(stage, "t", batch_of(b"%d" % number)).error_code == NONE
    stage.stop()
    return stage


@cache
def damaged(name: TopicPartition) -> Stage:
    """A stopped directory with damage of every kind, in the data or in the transaction log."""
    if name == DATA:
        stage = written()
    else:
        stage, _ = fenced(settings=SMALL)
        for _ in range(8):
            WireProducer(stage, "filler").initialise()
        stage.stop()
    first, moved, missing, rotten = logs(stage.disk, name)[:4]
    middle = len(batches(stage.disk, first)) // 2
    flip(stage, first, start_of(stage.disk, first, middle) + 70)
    flip(stage, moved, start_of(stage.disk, moved, 1) + 3)
    stage.disk.remove(missing)
    flip(stage, rotten, start_of(stage.disk, rotten, 1) + 65)
    if name == DATA:
        flip(
            stage,
            rotten,
            start_of(stage.disk, rotten, len(batches(stage.disk, rotten)) - 1) + EPOCH_AT,
        )
    return stage


def contents(disk: UnsyncedDisk, name: TopicPartition) -> dict[str, bytes]:
    return {path: disk.read_file(path) for path in logs(disk, name)}


def repair(disk: UnsyncedDisk, name: TopicPartition) -> int:
    """Returns the number of ranges that were repaired."""
    return len(Repair(disk, FOLDER, name).run())


@cache
def expected(name: TopicPartition) -> dict[str, bytes]:
    disk = copy.deepcopy(damaged(name).disk)
    assert repair(disk, name) >= 4
    return contents(disk, name)


def calls_of(name: TopicPartition) -> list[str]:
    disk = copy.deepcopy(damaged(name).disk)
    kinds = disk.kinds = []
    repair(disk, name)
    return kinds


def check_finished(disk: UnsyncedDisk, name: TopicPartition) -> None:
    """The files are as after one repair, and the damaged ones are kept."""
    assert contents(disk, name) == expected(name)
    folder = f"{FOLDER}/{name}"
    names = disk.list_dir(folder)
    assert not [each for each in names if each.endswith((".tmp", ".repaired"))]
    kept = [disk.read_file(f"{folder}/{each}") for each in names if ".damaged" in each]
    for path, before in contents(damaged(name).disk, name).items():
        assert before == expected(name)[path] or before in kept, f"{path} is kept nowhere"
    assert disk.exists(f"{folder}/{LOSS}") == (name == TRANSACTIONS)
    assert repair(disk, name) == 0


@pytest.mark.parametrize("name", [DATA, TRANSACTIONS])
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_a_repair_that_dies_at_any_call_is_finished_by_the_next(
    name: TopicPartition, crash: str
) -> None:
    for call in range(1, len(calls_of(name)) + 2):
        disk = copy.deepcopy(damaged(name).disk)
        disk.lose_power_at(call)
        with contextlib.suppress(PowerLost):
            repair(disk, name)
        if crash == "kill":
            disk.kill()
        else:
            disk.crash(SeededRandomness(call) if call % 2 else None)
        try:
            repair(disk, name)
            check_finished(disk, name)
        except Exception as problem:
            raise AssertionError(f"{crash} at call {call}: {problem!r}") from problem


@pytest.mark.parametrize("name", [DATA, TRANSACTIONS])
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "short write"])
def test_a_repair_that_fails_at_any_call_leaves_each_file_as_it_was_or_repaired(
    name: TopicPartition, failure: str
) -> None:
    error = errno.EIO if failure == "EIO" else errno.ENOSPC
    for call in range(1, len(calls_of(name)) + 1):
        disk = copy.deepcopy(damaged(name).disk)
        disk.fail_call(call, error, short=failure == "short write")
        with pytest.raises((OSError, ConfigError, SyncError), match=os.strerror(error)):
            repair(disk, name)
        disk.heal()
        before = contents(damaged(name).disk, name)
        for path, data in contents(disk, name).items():
            assert data in (before.get(path), expected(name)[path]), f"call {call}: {path}"
        repair(disk, name)
        check_finished(disk, name)


@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_a_start_after_a_repair_that_died_serves_no_record_twice_and_hides_no_loss(
    crash: str,
) -> None:
    """Whatever state the repair left: each offset is read, or refused, or was replaced."""
    for call in some_of(calls_of(DATA)):
        disk = copy.deepcopy(damaged(DATA).disk)
        disk.lose_power_at(call)
        with contextlib.suppress(PowerLost):
            repair(disk, DATA)
        disk.kill() if crash == "kill" else disk.crash(SeededRandomness(call))
        stage = Stage(durability="os", settings=SMALL, disk=disk).start()
        stage.advance(60_000)  # The scrub has been over everything.
        seen = [offset for offset in range(RECORDS) if fetch(stage, "t", offset).error_code == NONE]
        refused = set(range(RECORDS)) - set(seen)
        repaired = {
            path for path, data in contents(disk, DATA).items() if data == expected(DATA)[path]
        }
        if len(repaired) == len(expected(DATA)):
            assert not refused, call
        else:
            assert refused, f"call {call}: damage is not reported"
        assert produce(stage, "t", batch_of(b"next")).base_offset == RECORDS
        stage.kill()


# -- leader epochs
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [DATA, TRANSACTIONS])
def test_the_leader_epochs_of_a_repaired_log_never_decrease(name: TopicPartition) -> None:
    epochs = [
        batch.leader_epoch
        for _, data in sorted(expected(name).items())
        for batch in split_batches(data)
    ]
    assert epochs == sorted(epochs)


@pytest.mark.parametrize("lost", range(1, 9))
def test_an_empty_batch_has_the_leader_epoch_of_the_batch_before_it(lost: int) -> None:
    """In a segment with two epochs."""
    stage = written()
    path = next(
        path
        for path in logs(stage.disk, DATA)
        if len({batch.leader_epoch for batch in batches(stage.disk, path)}) > 1
    )
    before = batches(stage.disk, path)
    lost = min(lost, len(before) - 1)
    flip(stage, path, start_of(stage.disk, path, lost) + 65)
    assert repair(stage.disk, DATA) == 1
    after = batches(stage.disk, path)
    assert after[lost].record_count == 0
    assert after[lost].leader_epoch == before[lost - 1].leader_epoch
    epochs = [batch.leader_epoch for batch in after]
    assert epochs == sorted(epochs)


@pytest.mark.parametrize("number", range(6))
def test_a_flipped_leader_epoch_is_reported_served_right_and_corrected(number: int) -> None:
    stage = written()
    path = logs(stage.disk, DATA)[1]
    whole = stage.disk.read_file(path)
    wanted = [batch.leader_epoch for batch in batches(stage.disk, path)]
    position = start_of(stage.disk, path, number)
    flip(stage, path, position + EPOCH_AT + 3)
    (finding,) = DirectoryCheck(stage.disk, FOLDER, lambda _: None).run()
    assert f"but were written in {wanted[number]}" in finding.problem
    assert "fencepost repair" in finding.advice

    again = stage.again()
    again.advance(60_000)  # The scrub finds it.
    first = batches(stage.disk, path)[0].base_offset
    got = fetch(again, "t", first)
    assert [each.leader_epoch for each in split_batches(got.records)][: len(wanted)] == wanted
    assert read_topic(again, "t") == [b"%d" % each for each in range(RECORDS)]
    again.stop()

    assert repair(stage.disk, DATA) == 1
    assert stage.disk.read_file(path) == whole
    assert list(DirectoryCheck(stage.disk, FOLDER, lambda _: None).run()) == []


def test_a_repaired_transaction_log_is_served_again() -> None:
    stage = damaged(TRANSACTIONS)
    disk = copy.deepcopy(stage.disk)
    repair(disk, TRANSACTIONS)
    again = Stage(settings=SMALL, disk=disk).start()
    again.settle()
    assert initialise(again, "a") == ErrorCode.NONE
    again.stop()
