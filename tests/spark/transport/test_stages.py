"""Goal: the tasks of each stage find each other at one listener, and no task waits forever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.spark.failures import CountsDisagree, PeerLost
from fencepost.spark.transport.meeting import stages as stages_module
from fencepost.spark.transport.meeting.rendezvous import Peer
from fencepost.spark.transport.meeting.stages import (
    StageRendezvous,
    StagesAddress,
    rendezvous_of,
)

SECONDS = 20.0
LOCAL = ("127.0.0.1", "127.0.0.1")


@pytest.fixture
def stages() -> Iterator[StageRendezvous]:
    found = StageRendezvous(*LOCAL)
    yield found
    found.close()


def meet(address: StagesAddress, stage: int, task: int, tasks: int = 2) -> list[Peer]:
    me = Peer("127.0.0.1", stage * 10 + task, stage)
    return address.meeting(stage, ()).call().meet(task, tasks, me)


def test_the_tasks_of_each_stage_meet_among_themselves(stages: StageRendezvous) -> None:
    with ThreadPoolExecutor(6) as pool:
        calls = {
            (stage, task): pool.submit(meet, stages.address, stage, task, 3)
            for task in range(3)
            for stage in (1, 2)
        }
        for (stage, _), call in calls.items():
            ports = [peer.port for peer in call.result(SECONDS)]
            assert ports == [stage * 10, stage * 10 + 1, stage * 10 + 2]
    deadline = time.monotonic() + SECONDS
    while stages._gatherings:
        assert time.monotonic() < deadline, "it keeps stages that are over"
        time.sleep(0.001)


def test_every_stage_has_a_secret_of_its_own(stages: StageRendezvous) -> None:
    secrets = {stages.address.meeting(stage, ()).secret for stage in range(5)}
    assert len(secrets | {stages.address.secret}) == 6


def test_a_second_run_of_a_task_is_refused(stages: StageRendezvous) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(meet, stages.address, 1, 0)
        while 1 not in stages._gatherings or not stages._gatherings[1].callers:
            time.sleep(0.001)
        with pytest.raises(CountsDisagree, match="runs for a second time"):
            meet(stages.address, 1, 0)
        meet(stages.address, 1, 1)
        assert len(first.result(SECONDS)) == 2


def test_a_task_whose_stage_never_gathers_is_let_go(
    stages: StageRendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages_module, "GATHERING_SECONDS", 0.0)
    with pytest.raises(PeerLost, match="hung up before all tasks were there"):
        meet(stages.address, 1, 0)


def test_strangers_are_turned_away(stages: StageRendezvous) -> None:
    with pytest.raises(PeerLost):
        meet(stages.address._replace(secret=b"another"), 1, 0)


def test_an_application_has_one_rendezvous_which_ends_when_the_next_one_opens_its_own() -> None:
    first = rendezvous_of("app-1", lambda: LOCAL)
    assert rendezvous_of("app-1", lambda: LOCAL) is first
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(meet, first.address, 1, 0)
        while 1 not in first._gatherings:
            time.sleep(0.001)
        second = rendezvous_of("app-2", lambda: LOCAL)
        with pytest.raises(PeerLost):
            waiting.result(SECONDS)
    with pytest.raises(PeerLost, match="cannot be reached"):
        meet(first.address, 1, 0)
    second.close()
    stages_module._open.clear()
