"""Clients that do not read, are idle, or are too many: memory is bounded, others are served."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import fencepost
from fencepost.base.limits import FETCH_RESPONSE_MAX_BYTES, MAX_UNSENT_BYTES
from fencepost.broker.network.connection import Connection
from fencepost.broker.network.server import Server
from fencepost.broker.node import Node
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.conftest import Complaints, NewTopic
from tests.broker.network.test_connection import A_MINUTE_MS
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient, frame_of
from tests.broker.requests import FETCH_VERSION, batch_of, create_topic, fetch_request, produce

METADATA = MetadataRequest(topics=[])
ONE_MEGABYTE = b"x" * 1_000_000
LARGEST_BATCH_BYTES = 1_048_588


def server_of(node: Node) -> Server:
    assert node._server is not None
    return node._server


def connections_of(node: Node) -> list[Connection]:
    return list(server_of(node)._connections)


def unsent_bytes(connection: Connection) -> int:
    """All bytes that are kept for a client, in slots and in its transport."""
    transport = connection._transport
    unsent = 0 if transport is None else transport.get_write_buffer_size()
    return unsent + sum(len(c) for slot in connection._slots for c in slot.chunks or ())


def wait_until_stopped(broker: fencepost.Broker) -> int:
    """Waits until the broker stops reading from a client; returns the bytes kept for it."""

    def kept(node: Node) -> int | None:
        for connection in connections_of(node):
            if not connection._reading:
                return unsent_bytes(connection)
        return None

    while (found := broker.call(kept)) is None:
        pass
    return found


def fill(client: RawClient, topic: str, megabytes: int) -> None:
    for _ in range(megabytes):
        assert produce(client, topic, batch_of(ONE_MEGABYTE)).error_code == 0


def test_a_client_that_stops_reading_uses_a_bounded_amount_of_memory(
    broker: fencepost.Broker, other: RawClient, new_topic: NewTopic, complaints: Complaints
) -> None:
    topic = new_topic()
    fill(other, topic, 4)
    with RawClient(broker.bootstrap_servers, receive_buffer_bytes=1 << 16) as deaf:
        requests = 12
        for number in range(requests):
            deaf.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic), number))
        kept = wait_until_stopped(broker)
        assert kept <= MAX_UNSENT_BYTES + 4 * LARGEST_BATCH_BYTES
        assert other.call(ApiKey.METADATA, 9, METADATA).brokers
        # When it reads again, nothing is missing or out of order.
        for number in range(requests):
            reply = deaf.reply(ApiKey.FETCH, FETCH_VERSION, number)
            assert len(reply.responses[0].partitions[0].records) > 4_000_000
    assert complaints() == []


def test_replies_that_wait_behind_a_long_poll_are_also_bounded(
    broker: fencepost.Broker, other: RawClient, new_topic: NewTopic
) -> None:
    quiet, full = new_topic(), new_topic()
    fill(other, full, 10)
    with RawClient(broker.bootstrap_servers) as client:
        poll = fetch_request(quiet, max_wait_ms=A_MINUTE_MS, max_bytes=1_000)
        client.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, poll, 0))
        for number in range(1, 30):
            client.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, fetch_request(full), number))
        kept = wait_until_stopped(broker)
        assert kept <= FETCH_RESPONSE_MAX_BYTES + 11 * LARGEST_BATCH_BYTES
        produce(other, quiet, batch_of(b"go on"))
        for number in range(30):
            assert client.reply(ApiKey.FETCH, FETCH_VERSION, number).responses


def test_polls_with_large_limits_do_not_all_wait_together() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "quiet")
        line = stage.connect()
        request = fetch_request(
            "quiet", max_wait_ms=A_MINUTE_MS, max_bytes=FETCH_RESPONSE_MAX_BYTES
        )
        polls = [line.send(ApiKey.FETCH, FETCH_VERSION, request) for _ in range(10)]
        assert len(line.connection._slots) == 2
        produce(stage, "quiet", batch_of(b"for all"))
        for poll in polls:
            assert line.reply(ApiKey.FETCH, FETCH_VERSION, poll).responses


def test_one_long_poll_does_not_block_the_requests_after_it() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "quiet")
        line = stage.connect()
        request = fetch_request("quiet", max_wait_ms=A_MINUTE_MS, max_bytes=50 << 20)
        line.send(ApiKey.FETCH, FETCH_VERSION, request)
        for _ in range(5):
            line.send(ApiKey.METADATA, 9, METADATA)
        assert len(line.connection._slots) == 6


@contextmanager
def client_that_does_not_read(broker: fencepost.Broker) -> Iterator[None]:
    """It requests more than fits into the buffers between it and the broker."""
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "full")
        fill(client, "full", 4)
    with RawClient(broker.bootstrap_servers, receive_buffer_bytes=4096) as deaf:
        for number in range(50):
            deaf.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, fetch_request("full"), number))
        wait_until_stopped(broker)
        yield


def test_a_client_that_does_not_read_does_not_prevent_a_stop() -> None:
    with fencepost.Broker() as broker, client_that_does_not_read(broker):
        broker.stop()


# -- too many, or idle -----------------------------------------------------------------------------


def test_a_connection_above_the_limit_is_closed_and_the_others_stay(complaints: Complaints) -> None:
    with fencepost.Broker(config={"max.connections": 2}) as broker:
        address = broker.bootstrap_servers
        with RawClient(address) as first, RawClient(address) as second:
            for client in (first, second):
                assert client.call(ApiKey.METADATA, 9, METADATA).brokers
            with RawClient(address) as third:
                assert third.is_closed_by_broker()
            (line,) = complaints()
            assert "max.connections" in line
            assert first.call(ApiKey.METADATA, 9, METADATA).brokers
        wait_until(broker, lambda node: server_of(node).connection_count == 0)
        with RawClient(address) as fourth:
            assert fourth.call(ApiKey.METADATA, 9, METADATA).brokers


def wait_until(broker: fencepost.Broker, holds: Callable[[Node], bool]) -> None:
    while not broker.call(holds):
        pass


def idle_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "fencepost.broker.network.connection" and record.levelno >= logging.INFO
    ]


def test_an_idle_connection_is_closed(
    complaints: Complaints, caplog: pytest.LogCaptureFixture
) -> None:
    with fencepost.Broker(config={"connections.max.idle.ms": 100}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.call(ApiKey.METADATA, 9, METADATA)
            assert client.is_closed_by_broker()
        (line,) = idle_lines(caplog)
        assert "idle" in line
        assert complaints() == []
        with RawClient(broker.bootstrap_servers) as client:
            assert client.call(ApiKey.METADATA, 9, METADATA).brokers


def test_an_idle_client_with_unread_replies_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="fencepost")
    with fencepost.Broker(config={"connections.max.idle.ms": 500}) as broker:
        with client_that_does_not_read(broker):
            wait_until(broker, lambda node: server_of(node).connection_count == 0)
        assert len(idle_lines(caplog)) == 1


def test_a_connection_in_use_is_never_idle() -> None:
    settings = {"connections.max.idle.ms": "1000"}
    with Stage(durability="os", settings=settings) as stage:
        server = stage._server
        assert server is not None
        server._schedule_sweep()
        busy, quiet = stage.connect(), stage.connect()
        for _ in range(5):
            stage.advance(600)
            busy.call(ApiKey.METADATA, 9, METADATA)
        assert (busy.is_closed, quiet.is_closed) == (False, True)
