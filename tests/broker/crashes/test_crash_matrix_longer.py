"""Disks that fail for a while, calls of one kind that fail, and starts that crash.

Method: the stories and the clients of the crash matrix. Every reply must be true; a broker
continues when the disk works again, or stops with a message that names the sync or the disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable
from typing import Final

import pytest

from fencepost.base.failures import FencepostError
from fencepost.simulation.disk import PowerLost
from tests.broker.controller.topics_stage import CountingRandomness
from tests.broker.crashes.test_crash_matrix import (
    STORIES,
    Clients,
    calls_of,
    go_on_after_a_loss,
    roll,
    some_of,
    started,
    transactions,
)
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.halves import EVERY_CALL, half_of

pytestmark = pytest.mark.usefixtures("quiet")

SOME_CALLS: Final = 50
SOME_SPELLS: Final = (("os", 1, 12), ("fsync", 4, 1))
"""The durability, the first failing call, and the number of failing calls."""
KINDS: Final = {
    "reads": (errno.EIO, ("read", "view", "read_file", "size")),
    "opens": (errno.EMFILE, ("open", "read_file", "list_dir", "sync_dir", "remove_tree")),
    "not permitted": (errno.EACCES, ("open", "read_file", "list_dir", "exists")),
    "read-only": (
        errno.EROFS,
        ("rename", "remove", "make_dir", "append", "truncate", "remove_tree"),
    ),
    "renames": (errno.EIO, ("rename",)),
    "removals": (errno.EACCES, ("remove", "remove_tree")),
    "names": (errno.EIO, ("sync_dir",)),
    "truncations": (errno.EIO, ("truncate",)),
}


def suffer(clients: Clients, story: Callable[[Clients], None]) -> None:
    """Runs the story on a disk that fails for a while; then the clients continue."""
    stage = clients.stage
    try:
        story(clients)
        stage.advance(2_000)
    except (DiedError, ClosedError):
        assert stage.fatal, "a connection was closed, but the broker is running"
    stage.disk.heal()
    if stage.fatal:
        assert "sync" in stage.fatal[0], stage.fatal
        clients.move_to(stage.kill().again())
    else:
        stage.advance(10_000)
    clients.go_on()
    clients.check()
    clients.move_to(clients.stage.kill().again())
    clients.stage.advance(1_000)
    clients.check()
    assert clients.stage.fatal == []
    clients.stage.abandon()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC"])
def test_a_disk_that_fails_for_a_while_loses_nothing(
    story: Callable[[Clients], None], durability: str, failure: str
) -> None:
    error = errno.EIO if failure == "EIO" else errno.ENOSPC
    kinds = () if failure == "EIO" else ("append", "make_dir", "rename")
    calls = some_of(calls_of(story, durability))[:: 1 if EVERY_CALL else 4]
    for call in half_of(calls, story.__name__, durability, failure):
        clients = started(durability)
        clients.stage.disk.fail_for_a_while(call, SOME_CALLS, error, kinds=kinds)
        try:
            suffer(clients, story)
        except Exception as problem:
            raise AssertionError(f"{story.__name__}, from call {call} on: {problem!r}") from problem


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("failure", KINDS)
def test_failures_of_one_kind_of_call_lose_nothing(
    story: Callable[[Clients], None], failure: str
) -> None:
    error, kinds = KINDS[failure]
    every = itertools.product(("os", "fsync"), range(1, 40), (1, 12))
    some = half_of(SOME_SPELLS, story.__name__, failure)
    for durability, first, count in every if EVERY_CALL else some:
        clients = started(durability)
        clients.stage.disk.fail_for_a_while(first, count, error, kinds=kinds)
        try:
            suffer(clients, story)
        except Exception as problem:
            which = f"{failure} {first} to {first + count - 1}"
            raise AssertionError(
                f"{story.__name__}, {durability}, {which}: {problem!r}"
            ) from problem


# -- interrupted starts ----------------------------------------------------------------------------


def calls_of_a_start(stage: Stage) -> list[str]:
    """The kinds of calls, in order."""
    kinds = stage.disk.kinds = []
    again = stage.again()
    again.advance(2_000)
    stage.disk.kinds = None
    again.kill()
    return kinds


def crashed(durability: str, crash: str, call: int) -> Clients:
    """Clients whose broker died in the middle of a transaction and has not been restarted."""
    clients = started(durability)
    clients.stage.disk.lose_power_at(call)
    try:
        roll(clients)
        transactions(clients)
    except Exception:  # noqa: BLE001 - after a crash any failure is expected.
        died_at = clients.stage.disk._power_lost_at
        assert died_at is not None
        assert clients.stage.disk.calls >= died_at, "the story failed before the crash"
    stage = clients.stage
    stage.kill() if crash == "kill" else stage.lose_power(CountingRandomness())
    return clients


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("first", ["kill", "lose_power"])
@pytest.mark.parametrize("second", ["kill", "lose_power"])
def test_a_crash_during_recovery_is_recovered_by_the_next_start(
    durability: str, first: str, second: str
) -> None:
    calls = calls_of_a_start(crashed(durability, first, 60).stage)
    for call in half_of(some_of(calls), durability, first, second):
        clients = crashed(durability, first, 60)
        dead = clients.stage
        dead.disk.lose_power_at(call)
        with contextlib.suppress(PowerLost, FencepostError):
            half = dead.again()
            half.advance(2_000)
            half.abandon()
        dead.disk.kill() if second == "kill" else dead.disk.crash(CountingRandomness())
        try:
            clients.move_to(dead.again())
            if durability == "os" and "lose_power" in (first, second):
                go_on_after_a_loss(clients)
            else:
                clients.go_on()
                clients.check()
        except Exception as problem:
            raise AssertionError(f"{first}, then {second} at call {call}: {problem!r}") from problem
        clients.stage.abandon()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
@pytest.mark.parametrize("failure", ["EIO", "EMFILE", "ENOSPC", "EROFS"])
def test_a_start_with_one_failing_disk_call_succeeds_or_can_be_repeated(
    durability: str, crash: str, failure: str
) -> None:
    calls = calls_of_a_start(crashed(durability, crash, 60).stage)
    for call in half_of(some_of(calls), durability, crash, failure):
        clients = crashed(durability, crash, 60)
        dead = clients.stage
        dead.disk.fail_for_a_while(call, 1, getattr(errno, failure))
        try:
            try:
                again = dead.again()
                again.advance(10_000)
            except FencepostError:
                dead.disk.kill()
                again = dead.again()
            if again.fatal:
                again = again.kill().again()
            elif again.node.effects.has_offline:  # Until the next start.
                again.stop()
                again = again.again()
            clients.move_to(again)
            if (durability, crash) == ("os", "lose_power"):
                go_on_after_a_loss(clients)
            else:
                clients.go_on()
                clients.check()
        except Exception as problem:
            raise AssertionError(f"{failure} at call {call} of a start: {problem!r}") from problem
        clients.stage.abandon()
