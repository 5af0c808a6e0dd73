"""Plain sockets against a broker that misbehaves: what is lost, what is retried, what is raised."""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.system import SystemRandomness
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ClosedByBroker, RetriesExhausted
from fencepost.client.options import Endpoint, read_options
from fencepost.client.sockets import Link, MonotonicClock, Network
from fencepost.client.steps import Lost, Reply, Send
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from fencepost.wire.forms.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateResponse
from fencepost.wire.forms.sasl_handshake import SaslHandshakeResponse
from fencepost.wire.framing import INBOX_BYTES
from tests.client.tcp_broker import GARBAGE, HANG_UP, SILENCE, TcpBroker

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = {"default.api.timeout.ms": 400, "request.timeout.ms": 100, "retry.backoff.ms": 1}
PATIENT = {"request.timeout.ms": 200, "retry.backoff.ms": 1}


def first(answer: object) -> Callable[[ApiKey, Any], Any]:
    """Returns a handler that answers only the first DescribeCluster like this."""
    answers = iter([answer])

    def handle(api: ApiKey, _: Any) -> Any:
        return next(answers, None) if api is ApiKey.DESCRIBE_CLUSTER else None

    return handle


def test_a_request_is_answered() -> None:
    with TcpBroker() as broker, connect(broker.address) as cluster:
        assert cluster.describe_cluster().cluster_id == "tcp"
        assert cluster.metadata().brokers == {1: Endpoint("127.0.0.1", broker.port)}
        assert broker.connections == 1


def test_a_response_may_arrive_byte_by_byte() -> None:
    with TcpBroker(dribble=True) as broker, connect(broker.address) as cluster:
        assert cluster.describe_cluster().cluster_id == "tcp"


def test_a_large_response_is_read() -> None:
    brokers = [DescribeClusterBroker(broker_id=i, host="h" * 1000) for i in range(5_000)]
    answer = first(DescribeClusterResponse(cluster_id="large", brokers=brokers))
    with TcpBroker(answer) as broker, connect(broker.address) as cluster:
        assert len(cluster.describe_cluster().brokers) == 5_000


def test_a_large_request_is_sent() -> None:
    sizes: list[int] = []

    def count(api: ApiKey, form: Any) -> Any:
        if api is ApiKey.METADATA:
            sizes.append(len(form.topics))
            return MetadataResponse(topics=[MetadataResponseTopic(name="t")])
        return None

    with TcpBroker(count) as broker, connect(broker.address) as cluster:
        cluster.metadata([f"{i}-{'t' * 240}" for i in range(40_000)])
    assert sizes == [40_000]


def test_a_request_that_the_broker_cannot_parse_is_not_retried_until_the_deadline() -> None:
    """A broker closes the connection after a malformed request: there is no code for it."""
    asked: list[ApiKey] = []

    def hang_up(api: ApiKey, _: Any) -> Any:
        asked.append(api)
        return HANG_UP if api is ApiKey.LIST_TRANSACTIONS else None

    with (
        TcpBroker(hang_up) as broker,
        connect(broker.address) as cluster,
        pytest.raises(ClosedByBroker, match="3 times instead of answering ListTransactions"),
    ):
        cluster.list_transactions()
    assert asked.count(ApiKey.LIST_TRANSACTIONS) == 3


@pytest.mark.parametrize("trouble", [SILENCE, HANG_UP, GARBAGE])
def test_a_broken_connection_is_replaced(trouble: object) -> None:
    with TcpBroker(first(trouble)) as broker, connect(broker.address, PATIENT) as cluster:
        assert cluster.describe_cluster().cluster_id == "tcp"
        assert broker.connections == 2


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (SILENCE, "no answer within the request timeout"),
        (HANG_UP, "closed the connection"),
        (GARBAGE, "a frame of 1213486160 bytes"),
    ],
)
def test_the_error_for_a_broker_that_never_recovers_says_what_failed(
    trouble: object, words: str
) -> None:
    def always(api: ApiKey, _: Any) -> Any:
        return trouble if api is ApiKey.DESCRIBE_CLUSTER else None

    with TcpBroker(always) as broker, connect(broker.address, QUICK) as cluster:
        with pytest.raises((RetriesExhausted, ClosedByBroker), match=words) as caught:
            cluster.describe_cluster()
        assert broker.address in str(caught.value)


@pytest.mark.parametrize("trouble", [HANG_UP, GARBAGE])
def test_a_failed_handshake_ends_with_a_hint(trouble: object) -> None:
    with (
        TcpBroker(lambda *_: trouble) as broker,
        connect(broker.address, QUICK) as cluster,
        pytest.raises(RetriesExhausted, match=r"check that this port uses security\.protocol"),
    ):
        cluster.describe_cluster()


def test_a_closed_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        connect(f"127.0.0.1:{port}", QUICK) as cluster,
        pytest.raises(RetriesExhausted, match=r"(?i)connection refused"),
    ):
        cluster.describe_cluster()


def test_an_unknown_host_is_reported() -> None:
    with (
        connect("no-such-host.invalid:9092", QUICK) as cluster,
        pytest.raises(RetriesExhausted, match=r"no-such-host\.invalid:9092: \S+"),
    ):
        cluster.describe_cluster()


def test_the_second_bootstrap_server_is_used_if_the_first_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with TcpBroker() as broker, connect(f"127.0.0.1:{port},{broker.address}") as cluster:
        assert cluster.describe_cluster().cluster_id == "tcp"


def test_a_connection_closed_while_idle_costs_no_retry() -> None:
    """The broker has closed the idle connection: the request is sent once, on a new one."""
    with TcpBroker() as broker, connect(broker.address) as cluster:
        cluster.describe_cluster()
        broker.hang_up()
        cluster.describe_cluster()
        assert broker.seen.count(ApiKey.DESCRIBE_CLUSTER) == 2


def test_a_closed_client_reconnects_on_use() -> None:
    with TcpBroker() as broker, connect(broker.address) as cluster:
        cluster.describe_cluster()
        cluster.close()
        cluster.describe_cluster()
        assert broker.connections == 2


def test_threads_can_share_a_client() -> None:
    with TcpBroker() as broker, connect(broker.address) as cluster:
        names: list[str | None] = []

        def ask(shared: Cluster) -> None:
            names.extend(shared.describe_cluster().cluster_id for _ in range(20))

        threads = [threading.Thread(target=ask, args=(cluster,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert names == ["tcp"] * 80
        assert broker.connections == 1


# The driver itself.


def network(broker: TcpBroker, **options: Any) -> tuple[Network, Send]:
    settings = read_options(broker.address, {k.replace("_", "."): v for k, v in options.items()})
    request = DescribeClusterRequest()
    send = Send(Endpoint("127.0.0.1", broker.port), ApiKey.DESCRIBE_CLUSTER, request, 5_000)
    return Network(settings, MonotonicClock(), SystemRandomness()), send


def test_requests_are_pipelined_and_answered_in_order() -> None:
    with TcpBroker() as broker:
        driver, send = network(broker)
        tickets = [driver.start(send) for _ in range(50)]
        answers: dict[int, Any] = {}
        while len(answers) < 50:
            answers.update(driver.wait(tickets, 1000))
        assert all(isinstance(answer, Reply) for answer in answers.values())
        driver.close()


def test_a_broken_connection_loses_all_its_requests() -> None:
    with TcpBroker(first(HANG_UP)) as broker:
        driver, send = network(broker)
        tickets = [driver.start(send) for _ in range(3)]
        answers: dict[int, Any] = {}
        while len(answers) < 3:
            answers.update(driver.wait(tickets, 1000))
        assert all(isinstance(answer, Lost) and answer.sent for answer in answers.values())
        driver.close()


def test_a_request_that_was_never_sent_is_reported_as_unsent() -> None:
    with TcpBroker() as broker:
        driver, send = network(broker)
    ticket = driver.start(send)
    answer = driver.wait([ticket], 0)[ticket]
    assert isinstance(answer, Lost)
    assert not answer.sent


def test_a_response_that_is_no_longer_wanted_is_dropped() -> None:
    with TcpBroker() as broker:
        driver, send = network(broker)
        given_up, wanted = driver.start(send), driver.start(send)
        driver.forget([given_up])
        while wanted not in driver.wait([wanted], 1000):
            pass
        assert repr(driver) == "<network: 1 links, 0 unanswered>"
        driver.close()


def test_a_forked_process_does_not_use_its_parents_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TcpBroker() as broker:
        driver, send = network(broker)
        before = driver.start(send)
        # As in a forked child: the same objects, another process id.
        monkeypatch.setattr("os.getpid", lambda: -1)
        after = driver.start(send)
        assert isinstance(driver.wait([before], 0)[before], Lost)
        assert isinstance(driver.wait([after], 5000)[after], Reply)
        assert broker.connections == 2
        driver.close()


def test_an_expired_login_is_renewed_on_a_new_connection() -> None:
    def sasl(api: ApiKey, _: Any) -> Any:
        if api is ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        if api is ApiKey.SASL_AUTHENTICATE:
            return SaslAuthenticateResponse(session_lifetime_ms=1)
        return None

    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    with TcpBroker(sasl) as broker, connect(broker.address, login) as cluster:
        for _ in range(3):
            cluster.describe_cluster()
        assert broker.connections == 3
        assert broker.seen.count(ApiKey.SASL_AUTHENTICATE) == 3


def test_a_response_sent_before_the_broker_closes_is_read() -> None:
    """The response fills the buffer, so the next read finds the end; with TLS this is always so."""
    link = Link(Endpoint("127.0.0.1", 1), read_options("127.0.0.1:1"), SystemRandomness())
    link._socket, broker = socket.socketpair()
    broker.sendall((INBOX_BYTES - 4).to_bytes(4, "big") + bytes(INBOX_BYTES - 4))
    broker.close()
    assert [len(frame) for frame in link.receive()] == [INBOX_BYTES - 4]
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        link.receive()
    link.close()


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
        readable, _, _ = select.select(list(network._links.values()), [], [], 30)
        assert readable
        clock.ahead_ms = 60_000
        (answer,) = network.wait([ticket], 1).values()
        assert isinstance(answer, Reply)
        network.close()
