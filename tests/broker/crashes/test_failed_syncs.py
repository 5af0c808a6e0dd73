"""A sync that fails in any phase ends the process with exit code 70, and marks no stop as clean.

Method: a directory in every state that a start may find. Each sync of a start and of a stop fails
once, one after the other. `test_crash_matrix.py` fails those of a broker that serves.
"""

from __future__ import annotations

import copy
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fencepost.base.failures import FencepostError, SyncError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.base.system import SystemDisk
from fencepost.broker.storage.layout import CLEAN_SHUTDOWN
from fencepost.broker.storage.repair import DAMAGED, REPAIRED, Repair
from fencepost.simulation.disk import UnsyncedDisk
from tests.broker.damage.test_damaged_coordinators import ONE
from tests.broker.damage.test_damaged_directory import flip
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import batch_of, create_topic, produce
from tests.cluster.parent.parent_stage import ParentDiedError, ParentStage
from tests.log.batches import SeededRandomness
from tests.transactions.protocol import TV2
from tests.transactions.wire import NONE, WireProducer, consume

pytestmark = pytest.mark.usefixtures("quiet")

MARK = f"{FOLDER}/{CLEAN_SHUTDOWN}"
OF_A_LOG = ("sync", "sync_all")
OF_NAMES = ("sync_dir",)
OF_NEW_FILES = ("sync_new",)


# -- the states of a directory
# -------------------------------------------------------------------------------------------------


def used(durability: str) -> Stage:
    stage = Stage(durability=durability, settings=ONE).start()
    create_topic(stage, "t", settings={"internal.segment.bytes": "500"})
    producer = WireProducer(stage, "x", TV2).initialise()
    for number in range(6):
        producer.produce("t", b"%d" % number)
        assert producer.end(commit=True) == NONE
    producer.produce("t", b"open")
    return stage


def new(durability: str) -> Stage:
    return Stage(durability=durability, settings=ONE)


def stopped(durability: str) -> Stage:
    stage = used(durability)
    stage.stop()
    return stage


def killed(durability: str) -> Stage:
    return used(durability).kill()


def without_power(durability: str) -> Stage:
    return used(durability).lose_power(SeededRandomness(5))


def torn(durability: str) -> Stage:
    """The last append was cut short by a power loss."""
    stage = used(durability)
    stage.advance(5_000)
    stage.lose_power()
    folder = f"{FOLDER}/t-0"
    last = [name for name in stage.disk.list_dir(folder) if name.endswith(".log")][-1]
    stage.disk.open(f"{folder}/{last}").append((b"half a batch",))
    return stage


def repaired(durability: str) -> Stage:
    """Of a transaction coordinator's log, a batch was lost and its loss accepted."""
    stage = used(durability)
    stage.stop()
    name = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
    folder = f"{FOLDER}/{name}"
    for each in stage.disk.list_dir(folder):
        if "checkpoint" in each and not each.startswith("leader"):
            stage.disk.remove(f"{folder}/{each}")
    (log,) = [each for each in stage.disk.list_dir(folder) if each.endswith(".log")]
    flip(stage, f"{folder}/{log}", 100)
    assert Repair(stage.disk, FOLDER, name).run()
    return stage


STATES: tuple[Callable[[str], Stage], ...] = (new, stopped, killed, without_power, torn, repaired)


@cache
def prepared(state: Callable[[str], Stage], durability: str) -> Stage:
    stage = state(durability)
    stage.abandon()
    return stage


def runs(
    state: Callable[[str], Stage], durability: str, kinds: tuple[str, ...]
) -> Iterator[tuple[int, UnsyncedDisk, Stage]]:
    """A start for each call of these kinds, which fails once; then a clean stop."""
    made = prepared(state, durability)
    for number in range(1, 1_000):
        disk = copy.deepcopy(made.disk)
        disk.fail_for_a_while(number, 1, errno.EIO, kinds=kinds)
        planned = disk._failing  # `heal` takes it from the disk.
        yield number, disk, made.next_run(disk=disk, randomness=copy.deepcopy(made.randomness))
        assert planned is not None
        if planned._count > 0:
            return  # There was no such call.
    raise AssertionError("a start does not make as many calls")


def has_failed(disk: UnsyncedDisk) -> bool:
    assert disk._failing is not None
    return disk._failing._count <= 0


# -- one broker
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("state", STATES)
def test_a_failed_sync_of_a_log_during_a_start_or_stop_ends_the_process_without_a_mark(
    state: Callable[[str], Stage], durability: str
) -> None:
    count = 0
    for number, disk, stage in runs(state, durability, OF_A_LOG):
        try:
            stage.start().stop()
        except SyncError:
            assert stage.fatal, f"sync {number}: the start failed, but the process lived on"
        if not has_failed(disk):
            assert stage.fatal == []
            continue
        count += 1
        assert "did not confirm a sync" in stage.fatal[0], f"sync {number}: {stage.fatal}"
        assert not disk.exists(MARK), f"sync {number}"
        check_next_start(state, stage)
    assert count > (0 if state is new and durability == "os" else 1)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kinds", [OF_NAMES, OF_NEW_FILES])
def test_a_failed_sync_of_a_new_file_or_a_name_loses_nothing_and_leaves_no_half_written_file(
    state: Callable[[str], Stage], durability: str, kinds: tuple[str, ...]
) -> None:
    for number, disk, stage in runs(state, durability, kinds):
        had_mark = disk.exists(MARK)
        try:
            stage.start().stop()
        except SyncError:
            assert stage.fatal, f"sync {number}: the start failed, but the process lived on"
        except FencepostError:
            # A start that never used the directory leaves it as it was.
            assert not disk.exists(MARK) or had_mark, f"sync {number}"
        if stage.fatal:
            assert "did not confirm a sync" in stage.fatal[0]
            assert not disk.exists(MARK), f"sync {number}"
        if kinds == OF_NEW_FILES:
            assert not [each for each in paths(disk) if each.endswith(".tmp")], f"sync {number}"
        check_next_start(state, stage)


def paths(disk: UnsyncedDisk) -> list[str]:
    top = disk.list_dir(FOLDER)
    inside = [
        f"{name}/{each}"
        for name in top
        if name.rpartition("-")[2].isdecimal()
        for each in disk.list_dir(f"{FOLDER}/{name}")
    ]
    return [*top, *inside]


def check_next_start(state: Callable[[str], Stage], stage: Stage) -> None:
    stage.abandon()
    stage.disk.heal()
    stage.disk.kill()
    again = stage.again()
    if state is new:
        create_topic(again, "t")
        assert produce(again, "t", batch_of(b"first")).base_offset == 0
    else:
        values = consume(again, "t").values
        expected = [b"%d" % number for number in range(6)]
        is_whole = again.node.config.durability == "fsync" or state in (stopped, killed)
        assert values == expected if is_whole else values == expected[: len(values)]
    again.stop()
    assert again.disk.exists(MARK)


# -- the parent of a cluster, and its brokers
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_failed_sync_of_the_metadata_log_ends_the_parent_of_a_cluster(durability: str) -> None:
    count = 0
    for number in range(1, 100):
        stage = ParentStage(durability=durability)
        stage.disk.fail_for_a_while(number, 1, errno.EIO, kinds=OF_A_LOG)
        planned = stage.disk._failing
        try:
            stage.start().stop()
        except (SyncError, ParentDiedError):
            stage.die()
        assert planned is not None
        if planned._count > 0:
            assert stage.fatal == []
            assert stage.disk.exists(MARK)
            break
        assert "did not confirm a sync" in stage.fatal[0], number
        assert not stage.disk.exists(MARK), number
        count += 1
    assert count > 1


# -- tools
# -------------------------------------------------------------------------------------------------


def test_a_repair_whose_new_file_is_not_confirmed_drops_it_and_keeps_the_old_one() -> None:
    stage = stopped("os")
    disk, folder = stage.disk, f"{FOLDER}/t-0"
    (first, *_) = [each for each in disk.list_dir(folder) if each.endswith(".log")]
    flip(stage, f"{folder}/{first}", 100)
    before = disk.read_file(f"{folder}/{first}")
    for number in (1, 2):  # The copy of the damaged file, and the repaired one.
        disk.fail_for_a_while(number, 1, errno.EIO, kinds=["sync"])
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            Repair(disk, FOLDER, TopicPartition("t", 0)).run()
        disk.heal()
        assert disk.read_file(f"{folder}/{first}") == before
        names = disk.list_dir(folder)
        assert not [each for each in names if each.endswith((REPAIRED, ".tmp"))]
    assert Repair(disk, FOLDER, TopicPartition("t", 0)).run()
    assert [each for each in disk.list_dir(folder) if each.endswith(DAMAGED)]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_replaced_keeps_its_content_and_leaves_no_other(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = SystemDisk(), str(tmp_path / "checkpoint")
    disk.write_file(path, b"old", sync=True)

    def fail(*given: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.write_file(path, b"new", sync=True)
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]
    assert disk.read_file(path) == b"old"


# -- real processes
# -------------------------------------------------------------------------------------------------

FAILING = """
import errno, os, sys
from fencepost.cli.main import main

left, real = {number}, os.fdatasync

def fdatasync(descriptor):
    global left
    left -= 1
    if left == 0:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(descriptor)

os.fdatasync = fdatasync
sys.argv = ["fencepost", *sys.argv[1:]]
main()
"""


def serve(data: Path, number: int) -> subprocess.CompletedProcess[str]:
    """A broker whose n-th sync of a log fails."""
    command = ["serve", "--listen", "127.0.0.1:0", "--data", str(data)]
    return subprocess.run(
        [sys.executable, "-c", FAILING.format(number=number), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_broker_whose_registration_is_not_confirmed_exits_with_70_and_leaves_no_mark(
    tmp_path: Path,
) -> None:
    ended = serve(tmp_path / "data", 1)
    assert ended.returncode == 70, ended.stderr
    assert "did not confirm a sync" in ended.stderr
    assert not (tmp_path / "data" / CLEAN_SHUTDOWN).exists()


def test_a_user_whose_credentials_are_not_confirmed_is_not_said_to_be_created(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    assert serve(data, 1).returncode == 70  # Makes the directory.
    command = ["user", "add", "a", "--data", str(data), "--password-file", str(tmp_path / "p")]
    (tmp_path / "p").write_text("long-enough-password")
    ended = subprocess.run(
        [sys.executable, "-c", FAILING.format(number=1), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 70, ended
    assert "did not confirm a sync" in ended.stderr
    assert "created" not in ended.stdout
