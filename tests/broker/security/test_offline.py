"""Users of a stopped directory: after clean stops, kills and power losses; crashes on the way."""

from __future__ import annotations

import copy
import errno
from typing import cast

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.base.seams import Disk
from fencepost.broker.security.offline import alter_offline, users_offline
from fencepost.coordinator.metadata.users import Removal, Upsertion
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import NOW_MS, batch_of, create_topic, produce, read_topic
from tests.broker.security.logging_in import log_in, setting, upsertion

pytestmark = pytest.mark.usefixtures("quiet")

SALT = b"0123456789abcdef"
SECURED = {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT"}


class StandingClock:
    def now_ms(self) -> int:
        return NOW_MS


def alter(disk: UnsyncedDisk, *changes: Upsertion | Removal) -> list[ErrorCode]:
    outcomes = alter_offline(StandingClock(), cast("Disk", disk), FOLDER, changes)
    return [ErrorCode.NONE if each.refusal is None else each.refusal.error for each in outcomes]


def users(disk: UnsyncedDisk) -> dict[str, dict[int, int]]:
    return users_offline(StandingClock(), cast("Disk", disk), FOLDER)


def carol() -> Upsertion:
    each = upsertion("carol", "crayon")
    return Upsertion("carol", each.mechanism, each.salt, each.salted_password, each.iterations)


def stopped(how: str, durability: str) -> UnsyncedDisk:
    """The disk of a broker with a record of a topic and the user alice."""
    stage = Stage(durability=durability).start()
    create_topic(stage, "orders")
    produce(stage, "orders", batch_of(b"one"))
    request = setting([upsertion("alice", "pencil")])
    stage.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
    stage.settle()
    if how == "stop":
        stage.stop()
    elif how == "kill":
        stage.kill()
    else:
        stage.lose_power()
    return stage.disk


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_a_directory_is_as_clean_after_a_change_as_before(how: str, durability: str) -> None:
    disk = stopped(how, durability)
    assert users(disk) == {"alice": {1: 4096}}
    before = disk.exists(f"{FOLDER}/.kafka_cleanshutdown")
    assert alter(disk, carol(), Removal("alice", 1)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert alter(disk, Removal("alice", 1)) == [ErrorCode.RESOURCE_NOT_FOUND]
    assert users(disk) == {"carol": {1: 4096}}
    assert disk.exists(f"{FOLDER}/.kafka_cleanshutdown") is before is (how == "stop")
    again = Stage(durability=durability, disk=disk).start()
    if how != "power" or durability == "fsync":
        assert read_topic(again, "orders") == [b"one"]
    again.stop()
    secured = again.again(settings=SECURED)
    assert log_in(secured.connect(), "carol", "crayon").error_code == 0
    assert log_in(secured.connect(), "alice", "pencil").error_code
    secured.abandon()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_crash_at_any_disk_call_leaves_the_change_or_the_state_before(how: str) -> None:
    prepared = stopped(how, "os")
    disk = copy.deepcopy(prepared)
    before = disk.calls
    alter(disk, carol())
    count = disk.calls - before
    for number in range(1, count + 1):
        disk = copy.deepcopy(prepared)
        disk.lose_power_at(number)
        with pytest.raises((PowerLost, FencepostError, OSError)):
            alter(disk, carol())
            raise PowerLost
        disk.crash() if how == "stop" else disk.kill()
        again = Stage(durability="os", disk=disk).start()
        assert set(again.node.metadata.users) in ({"alice"}, {"alice", "carol"})
        assert read_topic(again, "orders") == [b"one"]
        again.abandon()


def test_a_disk_call_that_fails_leaves_a_directory_that_can_be_used() -> None:
    prepared = stopped("stop", "os")
    disk = copy.deepcopy(prepared)
    before = disk.calls
    alter(disk, carol())
    for number in range(1, disk.calls - before + 1):
        disk = copy.deepcopy(prepared)
        disk.fail_call(number, errno.EIO)
        try:
            answered = alter(disk, carol()) == [ErrorCode.NONE]
        except (FencepostError, OSError):
            answered = False
        again = Stage(durability="os", disk=disk).start()
        assert not answered or "carol" in again.node.metadata.users
        assert read_topic(again, "orders") == [b"one"]
        again.abandon()
