"""The tap on real sockets: slow, large, broken and many connections."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from fencepost.forensics.tap.relay import READ_BYTES
from fencepost.records.builder import build_pairs
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import encode_response
from fencepost.wire.forms.end_txn import EndTxnResponse
from fencepost.wire.forms.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.forensics.tap.running import read_exactly, running_tap, scripted_broker
from tests.forensics.tap.talk import asked, framed, reply_frame, request_frame
from tools.processes import free_port


def answered(number: int) -> bytes:
    return b"".join(encode_response(ApiKey.END_TXN, 3, number, EndTxnResponse()))


def large_produce(size: int) -> bytes:
    batch = build_pairs([(None, bytes(size))], timestamp_ms=1).data
    data = [PartitionProduceData(index=0, records=bytes(batch))]
    form = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    return asked(1, ApiKey.PRODUCE, form)


def test_bytes_pass_in_order_in_both_directions() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap, tap.connect() as client:
        with broker.accept() as served:
            requests = b"".join(asked(number) for number in range(500))
            client.sendall(requests)
            assert read_exactly(served, len(requests)) == requests
            replies = b"".join(answered(number) for number in range(500))
            served.sendall(replies)
            assert read_exactly(client, len(replies)) == replies
        assert client.recv(1) == b""
    kinds = [line["kind"] for line in tap.lines.lines if line["kind"] in ("request", "reply")]
    assert kinds == ["request"] * 500 + ["reply"] * 500


def test_a_reader_that_stops_holds_its_sender_and_not_the_memory() -> None:
    """A request of 100 MB to a broker that does not read: the client has to wait."""
    frame = large_produce(60_000_000)
    with scripted_broker() as broker, running_tap(broker.port) as tap, tap.connect() as client:
        served = broker.accept()
        before = resident_bytes()
        client.settimeout(1.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < len(frame):
                sent += client.send(memoryview(frame)[sent : sent + 1_000_000])
        assert sent < 40_000_000, "the tap took a request that nobody reads"
        assert resident_bytes() - before < 40_000_000
        with tap.connect() as other, broker.accept() as free:
            other.sendall(asked(1))
            assert read_exactly(free, len(asked(1))) == asked(1), "other connections wait too"
        client.settimeout(30.0)
        sender = threading.Thread(target=client.sendall, args=(memoryview(frame)[sent:],))
        sender.start()
        got = read_exactly(served, len(frame))
        sender.join()
        assert got == frame
        reply = b"".join(encode_response(ApiKey.PRODUCE, 3, 1, ProduceResponse()))
        served.sendall(reply)
        assert read_exactly(client, len(reply)) == reply
        served.close()
    (line,) = [each for each in tap.lines.lines if each.get("size_bytes", 0) > 60_000_000]
    (batch,) = line["body"]["topic_data"][0]["partition_data"][0]["records"]["batches"]
    assert batch["record_count"] == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_does_not_read_holds_its_broker() -> None:
    with (
        scripted_broker() as broker,
        running_tap(broker.port) as tap,
        tap.connect() as client,
        broker.accept() as served,
    ):
        client.sendall(asked(1) + asked(2))
        read_exactly(served, len(asked(1) + asked(2)))
        unreadable = framed(struct.pack(">i", 1) + bytes(40_000_000))
        served.settimeout(1.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < len(unreadable):
                sent += served.send(memoryview(unreadable)[sent : sent + 1_000_000])
        assert sent < 30_000_000 + READ_BYTES
        served.settimeout(30.0)
        sender = threading.Thread(target=served.sendall, args=(unreadable[sent:] + answered(2),))
        sender.start()
        assert read_exactly(client, len(unreadable)) == unreadable
        assert read_exactly(client, len(answered(2))) == answered(2)
        sender.join()


def test_a_half_closed_connection_still_gets_its_replies() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap, tap.connect() as client:
        with broker.accept() as served:
            client.sendall(asked(1))
            client.shutdown(socket.SHUT_WR)
            assert read_exactly(served, len(asked(1)) + 1) == asked(1)
            served.sendall(answered(1))
        assert read_exactly(client, 1_000) == answered(1)
        closed = tap.lines.wait_for(lambda line: line.get("event") == "closed")
    assert closed["unanswered_requests"] == 0


def test_the_last_reply_of_a_broker_that_dies_is_delivered() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap, tap.connect() as client:
        served = broker.accept()
        client.sendall(asked(1) + asked(2))
        read_exactly(served, len(asked(1) + asked(2)))
        served.sendall(answered(1))
        served.close()
        assert read_exactly(client, 1_000) == answered(1)
        client.close()
        closed = tap.lines.wait_for(lambda line: line.get("event") == "closed")
        assert closed["unanswered_requests"] == 1
        with tap.connect() as again, broker.accept() as served:
            again.sendall(asked(3))
            assert read_exactly(served, len(asked(3))) == asked(3)


def test_a_broker_that_resets_its_connection_ends_the_clients() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap, tap.connect() as client:
        served = broker.accept()
        client.sendall(asked(1))
        read_exactly(served, len(asked(1)))
        served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        served.close()
        assert client.recv(10) == b""
        closed = tap.lines.wait_for(lambda line: line.get("event") == "closed")
    assert closed["reason"] == "the broker failed: Connection reset by peer"


def test_a_dead_broker_ends_the_connection_with_a_line() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap:
        broker.close()
        with tap.connect() as client:
            assert client.recv(1) == b""
        failed = tap.lines.wait_for(lambda line: line.get("event") == "failed")
    assert "Connection refused" in failed["reason"]


def test_the_next_address_is_used_if_the_first_is_dead() -> None:
    with (
        scripted_broker() as broker,
        running_tap(free_port(), broker.port) as tap,
        tap.connect() as client,
        broker.accept() as served,
    ):
        client.sendall(asked(1))
        assert read_exactly(served, len(asked(1))) == asked(1)


def test_three_hundred_connections() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap:
        clients = [tap.connect() for _ in range(300)]
        served = [broker.accept() for _ in clients]
        for number, client in enumerate(clients):
            client.sendall(asked(number))
        got = [read_exactly(each, len(asked(0)))[8:12] for each in served]
        for connection, which in zip(served, got, strict=True):
            connection.sendall(answered(int.from_bytes(which, "big")))
        for number, client in enumerate(clients):
            assert read_exactly(client, len(answered(number))) == answered(number)
        for connection in (*clients, *served):
            connection.close()
        tap.lines.wait_for(lambda _: len(tap.lines.events("closed")) == 300)


def test_garbage_passes_and_is_told() -> None:
    with scripted_broker() as broker, running_tap(broker.port) as tap, tap.connect() as client:
        with broker.accept() as served:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read_exactly(served, 18) == b"GET / HTTP/1.1\r\n\r\n"
        told = tap.lines.wait_for(lambda line: line.get("event") == "not_decoded")
    assert "not Kafka's protocol" in told["reason"]


def test_a_reply_with_an_address_opens_a_port_that_leads_there() -> None:
    with scripted_broker() as first, scripted_broker() as second, running_tap(first.port) as tap:
        api = API[ApiKey.FIND_COORDINATOR]
        with tap.connect() as client, first.accept() as served:
            client.sendall(request_frame(api, 2, b"\x00\x01x\x01"))
            read_exactly(served, 4)
            form = api.response(node_id=7, host="127.0.0.1", port=second.port)
            served.sendall(reply_frame(api, 2, form))
            reply = read_exactly(client, len(reply_frame(api, 2, form)))
        local = int.from_bytes(reply[-4:], "big")
        assert local not in (first.port, second.port)
        with socket.create_connection(("127.0.0.1", local)) as client, second.accept() as served:
            client.sendall(asked(1))
            assert read_exactly(served, len(asked(1))) == asked(1)
            line = tap.lines.wait_for(lambda line: line.get("api") == "EndTxn")
        assert line["broker"] == 7


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_tls_to_the_cluster_and_plain_to_the_client(tmp_path: Path) -> None:
    make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=b -keyout key -out crt"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *make.split(), *names], cwd=tmp_path, check=True, capture_output=True
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "crt"))
    frame = large_produce(5_000_000)
    with scripted_broker() as broker, running_tap(broker.port, tls=trusting) as tap:
        client = tap.connect()
        with client, server.wrap_socket(broker.accept(), server_side=True) as served:
            sender = threading.Thread(target=client.sendall, args=(frame + asked(2),))
            sender.start()
            assert read_exactly(served, len(frame)) == frame
            assert read_exactly(served, len(asked(2))) == asked(2)
            sender.join()
            client.shutdown(socket.SHUT_WR)
            reply = b"".join(encode_response(ApiKey.PRODUCE, 3, 1, ProduceResponse()))
            served.sendall(reply)
            assert read_exactly(client, len(reply)) == reply
            served.sendall(answered(2))
            assert read_exactly(client, len(answered(2)) + 1) == answered(2)
    with (
        scripted_broker() as broker,
        running_tap(broker.port, tls=ssl.create_default_context()) as tap,
    ):
        with tap.connect() as client:
            threading.Thread(target=_shake, args=(server, broker.accept())).start()
            assert client.recv(1) == b""
        failed = tap.lines.wait_for(lambda line: line.get("event") == "failed")
    assert "certificate is not trusted" in failed["reason"]


def _shake(server: ssl.SSLContext, connection: socket.socket) -> None:
    try:
        server.wrap_socket(connection, server_side=True).close()
    except (ssl.SSLError, OSError):
        connection.close()
