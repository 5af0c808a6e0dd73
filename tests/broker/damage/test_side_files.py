"""Every file beside a log, damaged in every way: readers see what was written, or an error.

Method: a stopped directory whose log has sealed segments and aborted transactions in each. One file
is torn, emptied, changed, removed, unreadable, or has a folder in its place.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Callable
from functools import cache
from typing import Final

import pytest

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.broker.storage.layout import LOG_STARTS, RECOVERY_POINTS
from fencepost.broker.storage.session import SESSION
from fencepost.log.names import INDEX, LEADER_EPOCHS, SNAPSHOT, TIME_INDEX, TXN_INDEX
from fencepost.records.coordinator_checkpoint import FILE_NAME as COORDINATOR_CHECKPOINT
from fencepost.records.saved_point import FILE_NAME as SAVED_POINT
from fencepost.simulation.disk import UnsyncedDisk
from tests.broker.damage.test_damaged_coordinators import ONE
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import (
    NOW_MS,
    batch_of,
    create_topic,
    delete_records,
    fetch,
    produce,
)
from tests.transactions.protocol import TV2
from tests.transactions.wire import NONE, WireProducer, consume

pytestmark = pytest.mark.usefixtures("quiet")

T: Final = f"{FOLDER}/t-0"
TRANSACTIONS: Final = 60
VALUE: Final = bytes(800)
MANY_IDS: Final = 250


@cache
def written() -> tuple[Stage, list[bytes | None]]:
    """A cleanly stopped directory, and what a read_committed reader gets from it."""
    stage = Stage(durability="os", settings={**ONE, "log.cleaner.enable": "false"}).start()
    create_topic(stage, "t", settings={"internal.segment.bytes": "20000"})
    create_topic(stage, "cut")
    assert produce(stage, "cut", batch_of(b"1", b"2")).error_code == NONE
    assert delete_records(stage, "cut", 1) == NONE
    slow = WireProducer(stage, "slow", TV2).initialise()
    producer = WireProducer(stage, "x", TV2).initialise()
    for number in range(TRANSACTIONS):
        if number % 10 == 5:  # Over the end of a segment, sooner or later.
            slow.produce("t", b"slow" + VALUE)
        producer.produce("t", b"%03d" % number + VALUE, timestamp_ms=NOW_MS + number)
        assert producer.end(commit=number % 3 > 0) == NONE
        if number % 10 == 4 and number > 10:
            assert slow.end(commit=False) == NONE
    assert slow.end(commit=False) == NONE
    for number in range(MANY_IDS):  # So that the coordinator has a checkpoint.
        WireProducer(stage, f"id-{number}").initialise()
    values = consume(stage, "t").values
    assert values == [b"%03d" % n + VALUE for n in range(TRANSACTIONS) if n % 3]
    stage.stop()
    return stage, values


# -- the damage
# -------------------------------------------------------------------------------------------------


def put(disk: UnsyncedDisk, path: str, data: bytes) -> None:
    disk.remove(path)
    disk.open(path, create=True).append((data,))


def tear(disk: UnsyncedDisk, path: str) -> None:
    data = disk.read_file(path)
    put(disk, path, data[: len(data) - 5])


def empty(disk: UnsyncedDisk, path: str) -> None:
    put(disk, path, b"")


def overwrite(disk: UnsyncedDisk, path: str) -> None:
    put(disk, path, b"\xff" * disk.size(path))


def remove(disk: UnsyncedDisk, path: str) -> None:
    disk.remove(path)


def forbid(disk: UnsyncedDisk, path: str) -> None:
    disk.unreadable[path] = errno.EACCES


def put_a_folder(disk: UnsyncedDisk, path: str) -> None:
    disk.remove(path)
    disk.make_dir(path)


Damage = Callable[[UnsyncedDisk, str], None]
DAMAGE: Final[tuple[Damage, ...]] = (tear, empty, overwrite, remove, forbid, put_a_folder)


def files(suffix: str) -> list[str]:
    disk = written()[0].disk
    return [f"{T}/{name}" for name in disk.list_dir(T) if name.endswith(suffix)]


# -- what a start makes of it
# -------------------------------------------------------------------------------------------------


def start_with(damage: Damage, path: str, *, is_killed: bool) -> Stage:
    made = written()[0]
    disk = copy.deepcopy(made.disk)
    damage(disk, path)
    if is_killed:
        disk.remove(f"{FOLDER}/.kafka_cleanshutdown")
    return made.again(disk=disk, randomness=copy.deepcopy(made.randomness))


def check(stage: Stage, more: int = 0) -> Stage:
    """Everything is read, transactions go on, and the next start finds the same."""
    values = written()[1] + [b"more" + VALUE] * more
    assert consume(stage, "t").values == values
    producer = WireProducer(stage, "x", TV2).initialise()
    for commit in (False, True):
        for _ in range(10):
            producer.produce("t", b"more" + VALUE)
            assert producer.end(commit=commit) == NONE
    assert consume(stage, "t").values == values + [b"more" + VALUE] * 10
    assert (stage.fatal, stage.problems) == ([], [])
    return stage


def heal(stage: Stage, path: str) -> None:
    stage.disk.unreadable.clear()
    if damage_is_a_folder(stage, path):
        stage.disk.remove_tree(path)
    stage.advance(10_000)  # A partition that could not be opened is tried again.


def damage_is_a_folder(stage: Stage, path: str) -> bool:
    try:
        stage.disk.size(path)
    except IsADirectoryError:
        return True
    except OSError:
        return False
    return False


def read_what_is_served(stage: Stage) -> None:
    """All of it, or an error: never a record that was aborted, and none is left out in silence."""
    if fetch(stage, "t", 0, isolation_level=1).error_code == NONE:
        assert consume(stage, "t").values == written()[1]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_damaged_file_of_a_segment_hides_and_shows_no_record(
    suffix: str, damage: Damage, place: str, is_killed: bool
) -> None:
    if damage is remove and suffix == TXN_INDEX:
        return  # Only the scrub can tell; below.
    found = files(suffix)
    path = found[{"first": 0, "middle": len(found) // 2, "last": -1}[place]]
    stage = start_with(damage, path, is_killed=is_killed)
    if damage in (forbid, put_a_folder):
        read_what_is_served(stage)
        if place != "last" and suffix != SNAPSHOT:
            check(stage)
            stage.kill()
            return
        heal(stage, path)  # What must be replaced, and cannot be, is refused until then.
    check(stage)
    stage.stop()
    check(stage.again(), more=10).kill()


def flip_the_producer(disk: UnsyncedDisk, path: str) -> None:
    data = bytearray(disk.read_file(path))
    data[9] ^= 1  # The lowest bit of the first entry's producer id.
    put(disk, path, bytes(data))


@pytest.mark.parametrize("damage", [remove, flip_the_producer])
def test_the_scrub_rebuilds_a_transaction_index_that_lacks_an_aborted_transaction(
    damage: Damage,
) -> None:
    """Nothing else can tell that the file is gone, or that it names another producer."""
    stage = start_with(damage, files(TXN_INDEX)[0], is_killed=False)
    assert consume(stage, "t").values != written()[1], "the test damages nothing"
    stage.advance(60_000)
    check(stage)
    stage.stop()
    check(stage.again(), more=10).kill()


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX, TXN_INDEX])
def test_a_file_that_cannot_be_read_for_a_while_costs_an_error_at_most(
    suffix: str, error: int
) -> None:
    path = files(suffix)[0]
    stage = written()[0].again(disk=copy.deepcopy(written()[0].disk))
    stage.disk.unreadable[path] = error
    read_what_is_served(stage)
    stage.disk.unreadable.clear()
    check(stage).kill()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "path",
    [
        f"{T}/{LEADER_EPOCHS}",
        f"{T}/{SAVED_POINT}",
        f"{FOLDER}/{TRANSACTION_STATE_TOPIC}-0/{COORDINATOR_CHECKPOINT}",
        f"{FOLDER}/{RECOVERY_POINTS}",
        f"{FOLDER}/{LOG_STARTS}",
        f"{FOLDER}/{SESSION}",
    ],
)
def test_a_damaged_checkpoint_costs_time_or_is_reported_in_one_sentence(
    path: str, damage: Damage, is_killed: bool
) -> None:
    assert written()[0].disk.exists(path), "the test damages nothing"
    if damage in (forbid, put_a_folder):
        with contextlib.suppress(FencepostError):  # A sentence: the operator can mend it.
            start_with(damage, path, is_killed=is_killed).kill()
        return
    stage = start_with(damage, path, is_killed=is_killed)
    check(stage)
    stage.stop()
    check(stage.again(), more=10).kill()
