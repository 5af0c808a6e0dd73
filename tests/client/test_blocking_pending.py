"""Calls that begin now and finish later: what is sent when, and where errors appear."""

from __future__ import annotations

import select
import threading
from typing import Any

import pytest

from fencepost.base.system import SystemRandomness
from fencepost.client.blocking import connect
from fencepost.client.failures import RetriesExhausted
from fencepost.client.options import Endpoint, read_options
from fencepost.client.sockets import MonotonicClock, Network
from fencepost.client.steps import Reply, Send
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.client.tcp_broker import HANG_UP, TcpBroker

SECONDS = 30


def test_a_call_that_was_begun_is_sent_while_the_caller_continues() -> None:
    received = threading.Event()

    def receive(api: ApiKey, _: Any) -> Any:
        if api is ApiKey.METADATA:
            received.set()

    with TcpBroker(receive) as broker, connect(broker.address) as cluster:
        begun = cluster.begin_metadata()
        assert received.wait(SECONDS)
        # Other calls work meanwhile, on the same connection.
        assert cluster.describe_cluster().cluster_id == "tcp"
        assert begun.finish().cluster_id == "tcp"
        assert broker.connections == 1


def test_an_error_is_raised_when_the_call_is_finished() -> None:
    quick = {"default.api.timeout.ms": 200, "request.timeout.ms": 100, "retry.backoff.ms": 1}
    with (
        TcpBroker(lambda api, _: HANG_UP if api is ApiKey.METADATA else None) as broker,
        connect(broker.address, quick) as cluster,
    ):
        begun = cluster.begin_metadata()
        with pytest.raises(RetriesExhausted):
            begun.finish()


class HandMovedClock(MonotonicClock):
    """A clock that the test sets."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_a_response_that_arrived_in_time_counts_even_if_it_is_read_late() -> None:
    clock = HandMovedClock()
    with TcpBroker() as broker:
        network = Network(read_options(broker.address, {}), clock, SystemRandomness())
        endpoint = Endpoint("127.0.0.1", broker.port)
        ticket = network.start(Send(endpoint, ApiKey.METADATA, MetadataRequest(), 1_000))
        readable, _, _ = select.select(list(network._links.values()), [], [], SECONDS)
        assert readable
        clock.ahead_ms = 60_000
        (answer,) = network.wait([ticket], 1).values()
        assert isinstance(answer, Reply)
        network.close()
