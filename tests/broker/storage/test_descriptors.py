"""Few file descriptors and many partitions: nothing goes offline."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.storage.descriptors import UNLIMITED, share_out
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, create_topics, fetch, produce, read_topic
from tools.fencepost_process import FencepostProcess

LIMIT: Final = 256
PARTITIONS: Final = 400


def limited(limit: int) -> Sequence[str]:
    """Runs Python in a process that is limited to that many descriptors."""
    return ("sh", "-c", f'ulimit -n {limit} && exec "$0" "$@"', sys.executable)


def start(data: Path, limit: int = LIMIT) -> FencepostProcess:
    return FencepostProcess(data, python=limited(limit))


def open_descriptors(broker: FencepostProcess) -> int:
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


def delete_topic(client: RawClient | Stage, name: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
    (outcome,) = client.call(ApiKey.DELETE_TOPICS, 6, request).responses
    return int(outcome.error_code)


def offline_partitions(client: RawClient | Stage) -> int:
    topics = client.call(ApiKey.METADATA, 9, MetadataRequest(topics=None)).topics
    return sum(bool(each.error_code) for topic in topics for each in topic.partitions)


# -- a real process --------------------------------------------------------------------------------


def test_more_partitions_than_descriptors_can_be_written_read_and_deleted(tmp_path: Path) -> None:
    with start(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "many", PARTITIONS)
        for index in range(PARTITIONS):
            assert produce(client, "many", batch_of(b"%d" % index), index=index).error_code == 0
        assert open_descriptors(broker) < LIMIT
        assert offline_partitions(client) == 0
        for index in range(0, PARTITIONS, 7):
            assert read_topic(client, "many", index) == [b"%d" % index]
    with start(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        for index in range(0, PARTITIONS, 7):
            assert produce(client, "many", batch_of(b"more"), index=index).base_offset == 1
        assert open_descriptors(broker) < LIMIT
        broker.kill()
    with start(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert offline_partitions(client) == 0
        for index in range(0, PARTITIONS, 7):
            assert read_topic(client, "many", index) == [b"%d" % index, b"more"]
        assert delete_topic(client, "many") == ErrorCode.NONE
        assert open_descriptors(broker) < LIMIT


def test_connections_beyond_the_limit_are_refused_and_the_others_are_served(tmp_path: Path) -> None:
    with start(tmp_path) as broker, contextlib.ExitStack() as stack:
        first = stack.enter_context(RawClient(broker.bootstrap_servers))
        create_topic(first, "served", 80)
        host, _, port = broker.bootstrap_servers.rpartition(":")
        crowd = [stack.enter_context(socket.socket()) for _ in range(2 * LIMIT)]
        for member in crowd:
            member.settimeout(30)
            member.connect((host, int(port)))
        # The newest connection is refused and closed immediately.
        with contextlib.suppress(ConnectionResetError):
            assert crowd[-1].recv(1) == b""
        for index in range(80):
            assert produce(first, "served", batch_of(b"x"), index=index).error_code == 0
        assert offline_partitions(first) == 0
        assert open_descriptors(broker) < LIMIT
        for member in crowd:
            member.close()
        with RawClient(broker.bootstrap_servers) as late:
            assert read_topic(late, "served", 7) == [b"x"]


# -- every open fails once -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_no_operation_on_a_topic_fails_because_one_open_fails(durability: str, error: int) -> None:
    """The first failing open closes other files; otherwise a retry of the client succeeds."""

    def live(stage: Stage) -> None:
        create_topic(stage, "other", 2)
        for index in range(2):
            assert produce(stage, "other", batch_of(b"open"), index=index).error_code == 0

    def work(stage: Stage) -> None:
        (made,) = create_topics(stage, "t", partitions=3)
        assert made.error_code == 0
        for index in range(3):
            assert produce(stage, "t", batch_of(b"v"), index=index).error_code == 0
            assert fetch(stage, "t", index=index).error_code == 0
        assert delete_topic(stage, "other") == 0
        stage.settle()
        assert offline_partitions(stage) == 0

    with Stage(durability=durability) as stage:
        live(stage)
        first = stage.disk.opens
        work(stage)
        opens = stage.disk.opens - first
    assert opens > 0, "the work opened no file"
    for number in range(1, opens + 1):
        with Stage(durability=durability) as stage:
            live(stage)
            stage.disk.fail_open(number, error)
            work(stage)
            assert read_topic(stage, "t", 2) == [b"v"]


# -- shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [64, 128, 256, 1024, 4096, 20_000, UNLIMITED, -1])
@pytest.mark.parametrize("max_connections", [1, 100, 10_000, 2**31 - 1])
def test_all_shares_together_fit_into_the_limit(limit: int, max_connections: int) -> None:
    shares = share_out(limit, max_connections)
    assert min(shares) >= 1
    assert sum(shares) < (limit if limit > 0 else UNLIMITED)
    assert shares.connections <= max_connections


def test_a_typical_limit_leaves_room_for_many_logs_and_connections() -> None:
    shares = share_out(4096, 10_000)
    assert shares.growing > 1_500
    assert shares.connections > 1_500
