"""Bootstrap servers that do not answer: another one is asked, and an error names each of them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from fencepost.client.blocking import connect
from fencepost.client.calls import FIRST_SETUP_MS, Attempt
from fencepost.client.failures import AuthenticationFailed, NoBrokerAnswers
from fencepost.client.options import Endpoint
from fencepost.client.reaching import ONLY_SERVER_MS, reach
from fencepost.client.routes import Routes
from fencepost.client.steps import Lost, Send
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.find_coordinator import Coordinator, FindCoordinatorResponse
from fencepost.wire.forms.init_producer_id import InitProducerIdResponse
from tests.client.scripted import ONE, TWO, Script
from tests.client.silent_servers import SILENT, closed, mute, unreachable
from tests.client.tcp_broker import SILENCE, TcpBroker

REFUSED = Lost("Connection refused", sent=False, connected=False)
NO_ANSWER = Lost("it did not answer", sent=False)

DEADLINE = {"default.api.timeout.ms": 8_000}
"""The whole time of a call, and less than socket.connection.setup.timeout.ms."""


class Timed(Script):
    """A script in which a request that is lost takes its whole time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.limits: list[tuple[Endpoint, int]] = []

    def start(self, send: Send) -> int:
        self.limits.append((send.endpoint, send.timeout_ms))
        ticket = super().start(send)
        if isinstance(self._answers[ticket], Lost):
            self.clock.now += send.timeout_ms
        return ticket


# The procedure.


def test_the_first_server_that_answers_is_used_from_then_on(script: Script) -> None:
    script.down.add(ONE)
    assert script.run(reach(script.core)) == TWO
    assert script.core.routes.any_broker() == TWO


def test_if_no_server_accepts_a_connection_it_fails_after_one_round_and_names_each() -> None:
    script = Script()
    script.on(ApiKey.API_VERSIONS, REFUSED)
    with pytest.raises(NoBrokerAnswers) as failed:
        script.run(reach(script.core))
    assert str(failed.value) == (
        "No broker can be reached (one:9092: Connection refused; two:9092: Connection refused)"
    )
    assert script.pauses == []


def test_a_server_that_accepts_may_be_busy_so_it_is_asked_until_the_deadline() -> None:
    script = Timed(default_api_timeout_ms=10_000)
    script.on(ApiKey.API_VERSIONS, NO_ANSWER)
    with pytest.raises(
        NoBrokerAnswers, match=r"within 10000 ms \(one:9092: it did not answer; two"
    ):
        script.run(reach(script.core))
    servers, limits = zip(*script.limits, strict=True)
    assert servers[:4] == (ONE, TWO, ONE, TWO)
    assert limits[:4] == (FIRST_SETUP_MS,) * 2 + (2 * FIRST_SETUP_MS,) * 2
    assert script.clock.now <= 1_000 + 10_000


def test_a_server_that_is_slow_is_given_more_time_in_the_next_round() -> None:
    script = Timed()
    slow = [NO_ANSWER] * 4
    script.on(ApiKey.API_VERSIONS, *slow, script._api_versions(None))
    assert script.run(reach(script.core)) == ONE
    assert script.limits[-1] == (ONE, 4 * FIRST_SETUP_MS)


def test_a_wrong_password_is_not_tried_at_the_next_server(script: Script) -> None:
    script.on(ApiKey.API_VERSIONS, AuthenticationFailed("no"))
    with pytest.raises(AuthenticationFailed):
        script.run(reach(script.core))
    assert len(script.sent) == 1


# Sockets.


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("place", ["first", "last", "twice"])
def test_a_silent_server_beside_a_living_one_is_passed_over(kind: str, place: str) -> None:
    with SILENT[kind]() as silent, TcpBroker() as broker:
        servers = {
            "first": f"{silent},{broker.address}",
            "last": f"{broker.address},{silent}",
            "twice": f"{silent},{silent},{broker.address}",
        }[place]
        with connect(servers, DEADLINE) as cluster:
            assert cluster.reach() == Endpoint("127.0.0.1", broker.port)
            assert cluster.describe_cluster().cluster_id == "tcp"
        assert broker.connections == 1


CALLS = {
    "DescribeCluster": lambda cluster: cluster.describe_cluster(),
    "Metadata": lambda cluster: cluster.metadata(),
    "FindCoordinator": lambda cluster: cluster.init_producer_id("refunds-1"),
    "ApiVersions": lambda cluster: cluster.transaction_version(),
}


def coordinates(broker_port: list[int]) -> Any:
    def handle(api: ApiKey, _: Any) -> Any:
        if api is ApiKey.FIND_COORDINATOR:
            found = Coordinator(key="refunds-1", node_id=1, host="127.0.0.1", port=broker_port[0])
            return FindCoordinatorResponse(coordinators=[found])
        return InitProducerIdResponse() if api is ApiKey.INIT_PRODUCER_ID else None

    return handle


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", SILENT)
def test_a_call_that_any_broker_can_answer_asks_the_next_one(kind: str, call: str) -> None:
    port: list[int] = []
    with SILENT[kind]() as silent, TcpBroker(coordinates(port)) as broker:
        port.append(broker.port)
        with connect(f"{silent},{broker.address}", DEADLINE) as cluster:
            CALLS[call](cluster)


def test_a_server_that_greets_and_then_does_not_answer_is_passed_over() -> None:
    def silent(api: ApiKey, _: Any) -> Any:
        return None if api is ApiKey.API_VERSIONS else SILENCE

    with TcpBroker(silent) as first, TcpBroker() as second:
        options = {"default.api.timeout.ms": 2_000}
        with connect(f"{first.address},{second.address}", options) as cluster:
            assert list(cluster.metadata().brokers.values()) == [Endpoint("127.0.0.1", second.port)]
        assert first.seen.count(ApiKey.METADATA) == 1


def test_the_only_server_is_not_hurried() -> None:
    """Nobody else can be asked, so it may take as long as socket.connection.setup.timeout.ms."""
    core = Script().core
    core.routes = Routes((ONE,))
    send = Attempt(core, ApiKey.METADATA, "").send_to_any(ApiKey.METADATA, None)
    assert (send.timeout_ms, send.setup_timeout_ms) == (core.options.request_timeout_ms, None)
    core.routes = Routes((ONE, TWO))
    send = Attempt(core, ApiKey.METADATA, "").send_to_any(ApiKey.METADATA, None)
    assert send.setup_timeout_ms == FIRST_SETUP_MS


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (mute, "it accepts connections, but did not answer within"),
        (unreachable, f"no connection within {ONLY_SERVER_MS} ms"),
        (closed, "Connection refused"),
    ],
)
def test_what_happened_to_each_server_is_told(kind: Any, said: str) -> None:
    with kind() as silent, connect(silent, {"default.api.timeout.ms": 3_000}) as cluster:
        with pytest.raises(NoBrokerAnswers) as failed:
            cluster.reach()
        assert f"{silent}: {said}" in str(failed.value)


def test_all_servers_are_named_with_what_happened_to_each() -> None:
    with mute() as one, unreachable() as two, closed() as three:
        servers = f"{one},{two},{three},no-such-host.invalid:9092"
        with connect(servers, {"default.api.timeout.ms": 1_500}) as cluster:
            with pytest.raises(NoBrokerAnswers) as failed:
                cluster.reach()
            said = str(failed.value)
            assert said.startswith("No broker answered within 1500 ms (")
            for words in (
                f"{one}: it accepts connections",
                f"{two}: no connection within",
                f"{three}: Connection refused",
                "no-such-host.invalid:9092: ",
            ):
                assert words in said


def test_a_host_whose_first_address_never_answers_is_reached_at_its_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IPv6 that leads nowhere is the usual case."""
    with unreachable() as away, TcpBroker() as broker:
        addresses = [("127.0.0.1", int(away.rpartition(":")[2])), ("127.0.0.1", broker.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with connect("kafka.invalid:9092", {"default.api.timeout.ms": 4_000}) as cluster:
            assert cluster.describe_cluster().cluster_id == "tcp"
