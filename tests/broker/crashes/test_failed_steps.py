"""A disk call of operation A fails once; then operation B runs on the same broker, over all pairs.

Method: the broker and the clients of the crash matrix (`test_crash_matrix.py`), which checks A
alone. Here another operation follows before anything is checked: it must know what A has left half
done. Then the clients continue, and everything is checked again after a kill.

`tests/partition/test_partition_failed_steps.py` does the same for one partition, with every call.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tests.broker.crashes.test_crash_matrix import (
    STORIES,
    TRIES,
    Clients,
    Story,
    calls_of,
    some_of,
    started,
)
from tests.broker.crashes.test_crash_matrix_background import begin_scrub
from tests.broker.node_stage import DiedError
from tests.broker.raw import ClosedError
from tests.broker.requests import alter_topic, create_topics
from tests.halves import EVERY_CALL, half_of
from tests.transactions.wire import NONE

pytestmark = pytest.mark.usefixtures("quiet")

TOPIC = 2
SET = 0
PASSING = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
}


def insist(clients: Clients, attempt: Callable[[], int], done: int = NONE) -> None:
    """Repeats a request of an administrator until it is answered with success."""
    for _ in range(TRIES):
        error = attempt()
        if error in (NONE, done):
            return
        assert error in PASSING, ErrorCode(error)
        clients.stage.advance(1_000)
    raise AssertionError("the disk works again, but the request is still refused")


def create(clients: Clients) -> None:
    """A new topic, and a record in each of its partitions."""
    name = f"new-{len(clients.history)}"
    exists = ErrorCode.TOPIC_ALREADY_EXISTS
    insist(
        clients, lambda: int(create_topics(clients.stage, name, partitions=2)[0].error_code), exists
    )
    clients.write()


def add_partitions(clients: Clients) -> None:
    stage = clients.stage

    def attempt() -> int:
        known = sum(name.topic == "d" for name in stage.node.partitions.by_name)
        topic = CreatePartitionsTopic(name="d", count=known + 1, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)
        return int(stage.call(ApiKey.CREATE_PARTITIONS, 3, request).results[0].error_code)

    insist(clients, attempt)
    clients.write()


def change_settings(clients: Clients) -> None:
    insist(clients, lambda: alter_topic(clients.stage, "t", "max.message.bytes", "100000"))
    clients.write()


def shorten_the_metadata_log(clients: Clients) -> None:
    """A checkpoint of the metadata replaces its log."""
    clients.stage.loop.call_soon(clients.stage.node.controller.on_damage)
    clients.stage.settle()
    change_settings(clients)


def restart(clients: Clients) -> None:
    """A clean stop, which a failing call may spoil, and a start, which is tried again."""
    stage = clients.stage
    stage.stop()
    for attempt in range(3):
        try:
            clients.move_to(stage.again())
            break
        except Exception:
            if attempt == 2:
                raise
            stage.disk.kill()
    clients.stage.advance(10_000)  # A coordinator that could not be loaded is tried again.
    clients.write()


def scrub(clients: Clients) -> None:
    begin_scrub(clients.stage)
    clients.write()
    clients.stage.advance(10_000)


OPERATIONS: tuple[Story, ...] = (
    *STORIES,
    create,
    add_partitions,
    change_settings,
    shorten_the_metadata_log,
    restart,
    scrub,
)


@pytest.mark.parametrize("following", OPERATIONS)
@pytest.mark.parametrize("failing", OPERATIONS)
def test_whatever_runs_after_a_failed_call_at_sampled_disk_calls_loses_nothing(
    failing: Story, following: Story
) -> None:
    pair = failing.__name__, following.__name__
    durability = "fsync" if sum("".join(pair).encode()) % 2 else "os"
    calls = some_of(calls_of(failing, durability))[:-1]
    if not EVERY_CALL:  # Another one with each neighbour, and in the other run.
        mine = half_of(calls, failing.__name__)
        calls = [mine[OPERATIONS.index(following) % len(mine)]]
    for call in calls:
        try:
            run_pair(failing, call, following, durability)
        except Exception as problem:
            text = f"{durability}: call {call} of {pair[0]} failed, then {pair[1]}: {problem!r}"
            raise AssertionError(text) from problem


def run_pair(failing: Story, call: int, following: Story, durability: str) -> None:
    clients = started(durability)
    clients.stage.disk.fail_call(call)
    try:
        failing(clients)
        clients.stage.settle()
    except (DiedError, ClosedError):
        assert clients.stage.fatal, "a connection was closed, but the broker is running"
    clients.stage.disk.heal()
    if clients.stage.fatal:
        assert "sync" in clients.stage.fatal[0], clients.stage.fatal
        clients.move_to(clients.stage.kill().again())
        clients.go_on()
    following(clients)
    clients.stage.advance(2_000)
    clients.go_on()
    clients.check()
    clients.move_to(clients.stage.kill().again())
    clients.stage.advance(1_000)
    clients.check()
    assert clients.stage.fatal == []
    for name, partition in clients.stage.node.partitions.by_name.items():
        assert partition.log.is_sound, name
    clients.stage.abandon()
