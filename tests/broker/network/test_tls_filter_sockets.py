"""TLS on real sockets: odd clients, slow clients, many clients, new certificates."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.broker.network import connection, tls_filter
from fencepost.broker.network.limits import ConnectionLimits
from fencepost.broker.network.tls_filter import SLICE_BYTES
from fencepost.broker.node import Node
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.network.test_connection_slow_clients import connections_of, fill
from tests.broker.raw import ClosedError, RawClient, frame_of
from tests.broker.requests import FETCH_VERSION, create_topic, fetch_request
from tests.broker.security.certificates import ALICE, Authority, tls_config

METADATA = MetadataRequest(topics=[])
OVERHEAD_BYTES = 4096


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(name="broker", scope="module")
def _broker(authority: Authority) -> Iterator[fencepost.Broker]:
    settings = tls_config(authority, ssl_client_auth="requested") | {
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    }
    with fencepost.Broker(config=settings) as running:
        yield running


def plain_address(broker: fencepost.Broker) -> str:
    def find(node: Node) -> str:
        endpoint = node.metadata.endpoint(1, "PLAINTEXT")
        assert endpoint is not None
        return f"{endpoint.host}:{endpoint.port}"

    return broker.call(find)


def connected(broker: fencepost.Broker, authority: Authority) -> RawClient:
    return RawClient(broker.bootstrap_servers, tls=authority.trusting())


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def wait_until_alone(broker: fencepost.Broker) -> None:
    while broker.call(lambda node: node.connection_count):
        pass


def is_closed(dialled: socket.socket) -> bool:
    """Waits for the end of the connection; bytes before it, such as an alert, do not matter."""
    with contextlib.suppress(ConnectionError):
        while dialled.recv(4096):
            pass
    return True


# -- odd clients


def test_a_client_is_served_as_who_its_certificate_says(
    broker: fencepost.Broker, authority: Authority
) -> None:
    context = authority.trusting(authority.client())
    with RawClient(broker.bootstrap_servers, tls=context) as client:
        assert client.call(ApiKey.METADATA, 9, METADATA).brokers
        found = broker.call(
            lambda node: [
                (c.principal, c.listener, c.listener_protocol) for c in connections_of(node)
            ]
        )
    assert found == [(ALICE, "SSL", "SSL")]


def test_plaintext_on_a_tls_listener_and_the_reverse_end_with_a_sentence(
    broker: fencepost.Broker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.send(ApiKey.METADATA, 9, METADATA)
        with contextlib.suppress(struct.error):
            assert client.is_closed_by_broker()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        RawClient(plain_address(broker), tls=authority.trusting())
    wait_until_alone(broker)
    assert "its bytes are not TLS" in caplog.text
    assert "its bytes are a TLS handshake, but this listener does not use TLS" in caplog.text


def test_a_handshake_that_is_cut_short_leaves_no_connection(
    broker: fencepost.Broker, authority: Authority
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.trusting().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    for size in (0, 1, 5, 100, len(hello)):
        with dial(broker.bootstrap_servers) as dialled:
            dialled.sendall(hello[:size])
            dialled.shutdown(socket.SHUT_WR)
            assert is_closed(dialled)
    wait_until_alone(broker)


def test_a_handshake_that_stalls_is_closed_and_counts_until_then(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_filter, "HANDSHAKE_SECONDS", 0.2)
    with dial(broker.bootstrap_servers) as dialled:
        dialled.sendall(b"\x16\x03\x01")
        while not broker.call(lambda node: node.connection_count):
            pass
        assert is_closed(dialled)
    assert "no complete TLS handshake" in caplog.text


def test_a_client_that_closes_one_half_is_answered_and_then_closed(
    broker: fencepost.Broker, authority: Authority
) -> None:
    with connected(broker, authority) as client:
        assert client.call(ApiKey.METADATA, 9, METADATA).brokers
        client._socket.shutdown(socket.SHUT_WR)
        assert client.is_closed_by_broker()
    wait_until_alone(broker)


# -- slow clients


def test_clients_that_do_not_read_take_a_slice_each_which_counts(
    broker: fencepost.Broker, authority: Authority
) -> None:
    with RawClient(plain_address(broker)) as plain:
        create_topic(plain, "deaf", 1, {})
        fill(plain, "deaf", 20)
    deaf = []
    for _ in range(4):
        client = RawClient(
            broker.bootstrap_servers, tls=authority.trusting(), receive_buffer_bytes=1 << 14
        )
        client.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, fetch_request("deaf"), 1))
        deaf.append(client)

    def ciphertext(node: Node) -> list[int]:
        found = [each.ciphertext_bytes for each in connections_of(node)]
        unread = sum(each._unread_bytes for each in connections_of(node))
        assert node.replies.taken_bytes == sum(found) + unread
        return found

    while not all(found := broker.call(ciphertext)):
        pass
    assert len(found) == 4
    assert max(found) <= SLICE_BYTES + OVERHEAD_BYTES
    with connected(broker, authority) as other:
        assert other.call(ApiKey.METADATA, 9, METADATA).brokers
    for client in deaf:
        reply = client.reply(ApiKey.FETCH, FETCH_VERSION, 1)
        assert len(reply.responses[0].partitions[0].records) >= 20_000_000
        client.close()
    wait_until_alone(broker)
    assert broker.call(lambda node: node.replies.taken_bytes) == 0


def test_clients_that_leave_without_reading_give_everything_back(
    broker: fencepost.Broker, authority: Authority
) -> None:
    with RawClient(plain_address(broker)) as plain:
        create_topic(plain, "leaving", 1, {})
        fill(plain, "leaving", 4)
    for _ in range(3):
        client = RawClient(
            broker.bootstrap_servers, tls=authority.trusting(), receive_buffer_bytes=1 << 14
        )
        client.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, fetch_request("leaving"), 1))
        while not any(broker.call(lambda node: [c.ciphertext_bytes for c in connections_of(node)])):
            pass
        client.close()
    wait_until_alone(broker)
    assert broker.call(lambda node: node.replies.taken_bytes) == 0


def test_a_client_whose_ciphertext_others_wait_for_is_disconnected(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "STUCK_SECONDS", 0.1)
    settings = tls_config(authority) | {
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "queued.max.response.bytes": 1_000,
    }
    with fencepost.Broker(config=settings) as broker:
        with RawClient(plain_address(broker)) as plain:
            create_topic(plain, "deaf", 1, {})
            fill(plain, "deaf", 20)
        deaf = RawClient(
            broker.bootstrap_servers, tls=authority.trusting(), receive_buffer_bytes=1 << 14
        )
        # Views of the file, which take no memory: the budget is full of ciphertext.
        for number in range(10):
            deaf.send_bytes(frame_of(ApiKey.FETCH, FETCH_VERSION, fetch_request("deaf"), number))
        while not broker.call(lambda node: node.replies.is_full):
            pass
        with connected(broker, authority) as other:
            assert other.call(ApiKey.METADATA, 9, METADATA).brokers
        with pytest.raises(ClosedError):
            for _ in range(10):
                deaf.read_frame()
        deaf.close()
    assert "queued.max.response.bytes" in caplog.text


# -- many clients


def test_connections_over_a_limit_are_closed_and_the_others_are_served(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tls_config(authority) | {
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.name.ssl.max.connections": "2",
        "max.connections.per.ip": "4",
    }
    with fencepost.Broker(config=settings) as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(broker, authority)) for _ in range(2)]
        with pytest.raises((ssl.SSLError, ConnectionError, ClosedError)):
            connected(broker, authority)
        plain = [stack.enter_context(RawClient(plain_address(broker))) for _ in range(2)]
        with RawClient(plain_address(broker)) as fifth:
            assert fifth.is_closed_by_broker()
        for client in (*clients, *plain):
            assert client.call(ApiKey.METADATA, 9, METADATA).brokers
    assert "listener SSL has already 2 (max.connections)" in caplog.text
    assert "127.0.0.1 has already 4 (max.connections.per.ip)" in caplog.text


@pytest.mark.parametrize("listener", ["SSL", "PLAINTEXT"])
def test_a_connection_that_comes_too_fast_waits_and_is_served(
    broker: fencepost.Broker,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
) -> None:
    tls = authority.trusting() if listener == "SSL" else None
    address = broker.bootstrap_servers if tls else plain_address(broker)
    monkeypatch.setattr(ConnectionLimits, "wait_seconds", lambda self, name, now: 0.05)
    with RawClient(address, tls=tls) as client:
        assert client.call(ApiKey.METADATA, 9, METADATA).brokers
    monkeypatch.setattr(ConnectionLimits, "wait_seconds", lambda self, name, now: 3600)
    with dial(address) as waiting:
        waiting.sendall(frame_of(ApiKey.METADATA, 9, METADATA))
        waiting.settimeout(0.1)
        with pytest.raises(TimeoutError):  # Neither a reply nor, for TLS, an alert.
            waiting.recv(1)
    monkeypatch.undo()
    with RawClient(address, tls=tls) as client:
        assert client.call(ApiKey.METADATA, 9, METADATA).brokers


# -- new certificates


def test_certificates_change_under_load_and_no_client_fails(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    stopping = threading.Event()
    failures: list[BaseException] = []
    serials: set[str] = set()

    with fencepost.Broker(config=tls_config(authority)) as broker:
        kept = connected(broker, authority)

        def connect_again_and_again() -> None:
            context = authority.trusting()
            try:
                while not stopping.is_set():
                    with RawClient(broker.bootstrap_servers, tls=context) as client:
                        assert client.call(ApiKey.METADATA, 9, METADATA).brokers
                        found = client._socket.getpeercert()  # type: ignore[attr-defined]
                        serials.add(found["serialNumber"])
            except BaseException as problem:  # noqa: BLE001 - shown by the test
                failures.append(problem)

        threads = [threading.Thread(target=connect_again_and_again) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not serials:
            pass
        authority.listener()
        while len(serials) < 2 and not failures:
            stopping.wait(0.05)
        stopping.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(serials) == 2
        assert kept.call(ApiKey.METADATA, 9, METADATA).brokers, "it keeps what it has"
        kept.close()


# -- sessions of TLS 1.2, which would outlive the certificate of their client


def older_client(
    authority: Authority, certificate: str, *, by_ticket: bool = True
) -> ssl.SSLContext:
    """A client that speaks TLS 1.2 alone, and keeps sessions by ticket or by their number."""
    context = authority.trusting(certificate)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not by_ticket:
        context.options |= ssl.OP_NO_TICKET
    return context


def served(
    broker: fencepost.Broker, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLSession | None, bool | None]:
    """The session of a connection that the broker has answered on, and whether it is an old one."""
    with (
        dial(broker.bootstrap_servers) as dialled,
        context.wrap_socket(dialled, server_hostname="127.0.0.1", session=session) as tls,
    ):
        tls.sendall(frame_of(ApiKey.METADATA, 9, METADATA, 1))
        assert tls.recv(4), "it was answered"
        assert tls.version() == "TLSv1.2"
        return tls.session, tls.session_reused


@pytest.mark.parametrize("by_ticket", [True, False])
def test_a_session_of_tls_1_2_is_not_resumed_where_clients_are_asked_for_certificates(
    broker: fencepost.Broker, authority: Authority, by_ticket: bool
) -> None:
    context = older_client(authority, authority.client(), by_ticket=by_ticket)
    session: ssl.SSLSession | None = None
    for _ in range(4):
        session, is_old = served(broker, context, session)
        assert not is_old
        assert session is not None
        assert session.has_ticket is by_ticket


@pytest.mark.parametrize("by_ticket", [True, False])
def test_a_client_whose_certificate_has_expired_cannot_resume_its_session(
    authority: Authority, caplog: pytest.LogCaptureFixture, by_ticket: bool
) -> None:
    with fencepost.Broker(config=tls_config(authority, ssl_client_auth="required")) as broker:
        ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=3)
        certificate = authority.client("brief", until=ends)
        context = older_client(authority, certificate, by_ticket=by_ticket)
        session, _ = served(broker, context)
        while dt.datetime.now(dt.UTC) < ends + dt.timedelta(seconds=1):
            time.sleep(0.05)  # OpenSSL has no other clock than the machine's.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served(broker, context, session)
    assert "certificate has expired" in caplog.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize("more", [[], ["-no_ticket"]])
def test_openssl_finds_no_session_to_resume(
    broker: fencepost.Broker, authority: Authority, tmp_path: Path, more: list[str]
) -> None:
    certificate, session = authority.client(), str(tmp_path / "session")
    for use in ("-sess_out", "-sess_in"):
        command = ["openssl", "s_client", "-tls1_2", "-connect", broker.bootstrap_servers, *more]
        files = ["-cert", certificate, "-key", certificate, "-CAfile", authority.file, use, session]
        shown = subprocess.run(
            [*command, *files], input=b"", capture_output=True, timeout=30, check=False
        ).stdout.decode()
        assert "\nNew, TLSv1.2" in shown
        assert "\nReused" not in shown


def test_without_client_certificates_a_session_of_tls_1_2_may_be_resumed(
    authority: Authority,
) -> None:
    """Nothing about the client is kept in it, and a full handshake costs both sides more."""
    with fencepost.Broker(config=tls_config(authority)) as broker:
        context = older_client(authority, authority.client())
        session, _ = served(broker, context)
        assert served(broker, context, session)[1]
