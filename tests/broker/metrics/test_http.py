"""The endpoint on a real socket: what it answers, and clients that are slow, rude or many."""

from __future__ import annotations

import contextlib
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.broker.metrics import http
from fencepost.broker.node import Node
from tests.broker.metrics.scraped import get, scrape

PATIENCE_SECONDS = 30.0


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(metrics="127.0.0.1:0") as broker:
        yield broker


@contextlib.contextmanager
def connected(broker: fencepost.Broker) -> Iterator[socket.socket]:
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as line:
        yield line


def exchange(broker: fencepost.Broker, request: bytes) -> bytes:
    """Everything that the endpoint sends until it closes the connection."""
    with connected(broker) as line:
        line.sendall(request)
        return read_all(line)


def read_all(line: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := line.recv(65536):
            received += more
    return received


def test_health_readiness_and_metrics_are_served(broker: fencepost.Broker) -> None:
    assert get(f"{broker.metrics_url}/healthz") == "ok\n"
    assert get(f"{broker.metrics_url}/readyz") == "ready\n"
    assert scrape(broker.metrics_url)["fencepost_ready"] == 1


def test_head_has_the_length_of_get_and_no_body(broker: fencepost.Broker) -> None:
    head = exchange(broker, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET / HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (
            b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\nsome body",
            b"405 Method Not Allowed",
        ),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /healthz\r\n\r\n", b"400 Bad Request"),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"GET /healthz?verbose=1 HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET /x HTTP/1.1\r\nA: " + b"a" * 20_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_every_request_gets_one_reply_and_the_end(
    broker: fencepost.Broker, request_bytes: bytes, status: bytes
) -> None:
    reply = exchange(broker, request_bytes)
    assert reply.startswith(b"HTTP/1.1 " + status)
    assert get(f"{broker.metrics_url}/healthz") == "ok\n"


def test_a_second_request_on_a_connection_is_not_served(broker: fencepost.Broker) -> None:
    reply = exchange(broker, b"GET /healthz HTTP/1.1\r\n\r\n" * 3)
    assert reply.count(b"HTTP/1.1") == 1


def test_a_request_that_never_ends_is_cut_off_and_holds_nobody_up(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    with connected(broker) as slow:
        slow.sendall(b"GET /metrics HT")
        assert get(f"{broker.metrics_url}/healthz") == "ok\n"
        assert read_all(slow) == b""


def test_a_reply_that_nobody_reads_is_dropped(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REPLY_SECONDS", 0.05)

    async def large() -> http.Answer:
        return http.Answer(bytes(64 * 1024 * 1024))

    endpoint = broker._endpoint
    assert endpoint is not None
    endpoint._responder.paths["/large"] = large  # type: ignore[index]
    with connected(broker) as line:
        line.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not endpoint._responder.connections and time.monotonic() < deadline:
            time.sleep(0.001)
        while endpoint._responder.connections and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not endpoint._responder.connections
    assert get(f"{broker.metrics_url}/healthz") == "ok\n"


def test_too_many_connections_are_refused_and_the_rest_is_served(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    with connected(broker) as first, connected(broker) as second:
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            get(f"{broker.metrics_url}/healthz")
        refused.value.close()
        for line in (first, second):
            line.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert read_all(line).endswith(b"ok\n")
    assert get(f"{broker.metrics_url}/healthz") == "ok\n"


def test_a_failing_answer_is_one_reply_and_not_the_end_of_the_broker(
    broker: fencepost.Broker,
) -> None:
    async def broken() -> http.Answer:
        raise ZeroDivisionError

    endpoint = broker._endpoint
    assert endpoint is not None
    endpoint._responder.paths["/broken"] = broken  # type: ignore[index]
    assert exchange(broker, b"GET /broken HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 500")
    assert get(f"{broker.metrics_url}/healthz") == "ok\n"


def test_a_stall_of_the_loop_is_reported_once(broker: fencepost.Broker) -> None:
    def stall(node: Node) -> None:
        time.sleep(0.3)

    broker.call(stall)
    reported = scrape(broker.metrics_url)["fencepost_loop_stall_seconds_max"]
    assert reported > 0.25
    assert scrape(broker.metrics_url)["fencepost_loop_stall_seconds_max"] != reported


def test_the_endpoint_is_gone_after_a_stop_and_at_the_same_port_after_a_start() -> None:
    with fencepost.Broker(metrics="127.0.0.1:0") as broker:
        url = broker.metrics_url
        broker.stop()
        with pytest.raises(urllib.error.URLError, match="refused"):
            get(f"{url}/healthz")
        broker.start()
        assert broker.metrics_url == url
        assert get(f"{url}/readyz") == "ready\n"


def test_a_port_that_is_taken_is_a_sentence_and_the_directory_stays_unused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = fencepost.Broker(metrics=f"127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=r"Metrics cannot be served at .* with metrics="):
            broker.start()
    broker.start()
    assert get(f"http://127.0.0.1:{port}/readyz") == "ready\n"
    broker.close()


def test_metrics_stay_on_this_machine() -> None:
    with pytest.raises(ConfigError, match="reached from other machines"):
        fencepost.Broker(metrics="0.0.0.0:0").start()
    with pytest.raises(ConfigError, match="metrics is 'nowhere'"):
        fencepost.Broker(metrics="nowhere").start()


def test_a_broker_without_metrics_says_so(broker: fencepost.Broker) -> None:
    with fencepost.Broker() as plain, pytest.raises(FencepostError, match="serves no metrics"):
        _ = plain.metrics_url


def test_many_scrapers_share_a_scrape(broker: fencepost.Broker) -> None:
    lines = [
        socket.create_connection(("127.0.0.1", int(broker.metrics_url.rpartition(":")[2])))
        for _ in range(20)
    ]
    for line in lines:
        line.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    for line in lines:
        line.settimeout(PATIENCE_SECONDS)
        assert b"fencepost_ready 1.0" in read_all(line)
        line.close()
