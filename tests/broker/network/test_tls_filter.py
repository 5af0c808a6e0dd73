"""TLS between a socket and its connection, without either: a socket that takes what a test allows.

`FakeSocket` is the transport of a socket whose other end is a client's OpenSSL. `FakeConnection` is
the protocol behind the filter.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.limits import MAX_UNSENT_BYTES
from fencepost.broker.network import tls_filter
from fencepost.broker.network.memory import MemoryBudget
from fencepost.broker.network.tls_filter import SLICE_BYTES, TlsFilter
from fencepost.broker.security.tls import Certificates, read_tls_settings
from fencepost.broker.settings.config import BrokerConfig
from tests.broker.security.certificates import ALICE, Authority, tls_config

OVERHEAD_BYTES = 4096
"""More than TLS adds to a slice, in all its records."""


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeServer:
    def __init__(self) -> None:
        self.replies = MemoryBudget(0)
        self.soon: deque[Callable[[], None]] = deque()
        self.timers: list[FakeTimer] = []
        self.tls_inbox = memoryview(bytearray(tls_filter.RECEIVE_BYTES))

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(callback))
        return self.timers[-1]

    def shake_hands_soon(self, tls: TlsFilter) -> None:
        tls.shake_hands()

    def turn(self) -> None:
        """One turn of the loop."""
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def pass_time(self) -> None:
        for timer in list(self.timers):
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()


class FakeSocket:
    """Takes `room` bytes at once, and keeps the rest as a transport does."""

    def __init__(self) -> None:
        self.room = 1 << 40
        self.sent = bytearray()
        self.kept = bytearray()
        self.writes: list[int] = []
        self.protocol: TlsFilter | None = None
        self.is_reading = True
        self.closures: list[str] = []
        self._is_full = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self.kept += data
        self._pass_on()

    def take(self, room: int) -> None:
        """The client reads; the kernel takes so much more."""
        self.room += room
        self._pass_on()

    def _pass_on(self) -> None:
        assert self.protocol is not None
        taken = min(self.room, len(self.kept))
        self.sent += self.kept[:taken]
        del self.kept[:taken]
        self.room -= taken
        if self.kept and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()
        elif self._is_full and not self.kept:
            self._is_full = False
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.closures.append("closed")

    def abort(self) -> None:
        self.kept.clear()
        self.closures.append("aborted")

    def is_closing(self) -> bool:
        return bool(self.closures)

    @property
    def closed(self) -> str | None:
        """How it was closed, at last."""
        return self.closures[-1] if self.closures else None


class FakeConnection:
    """Keeps what arrives; `asked` to stop and go on as a transport asks its protocol."""

    def __init__(self) -> None:
        self.listener_protocol = "SSL"
        self.principal = "User:ANONYMOUS"
        self.client_name = "client"
        self.ciphertext_bytes = 0
        self.received = bytearray()
        self.is_behind = False
        self.is_lost = False
        self.ended = False
        self.transport: Any = None
        self.stop_after: int | None = None
        self._buffer = bytearray(1000)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        if self.stop_after is not None and len(self.received) >= self.stop_after:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def pause_writing(self) -> None:
        assert not self.is_behind
        self.is_behind = True

    def resume_writing(self) -> None:
        assert self.is_behind
        self.is_behind = False


class Client:
    """A client's OpenSSL, and the filter that it talks to."""

    def __init__(
        self,
        certificates: Certificates,
        context: ssl.SSLContext,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.server = FakeServer()
        self.connection = FakeConnection()
        self.socket = FakeSocket()
        self.filter = TlsFilter(cast(Any, self.server), cast(Any, self.connection), certificates)
        self.socket.protocol = self.filter
        self.filter.connection_made(cast(Any, self.socket))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname="127.0.0.1", session=session
        )

    def give(self, data: bytes) -> None:
        """Bytes arrive at the socket, as many as one read has at once."""
        while data and not self.filter.is_closing():
            place = self.filter.get_buffer(-1)
            count = min(len(place), len(data))
            place[:count] = data[:count]
            self.filter.buffer_updated(count)
            data = data[count:]

    def exchange(self) -> None:
        """What each side has sent arrives at the other."""
        self.give(self._outgoing.read())
        self._incoming.write(bytes(self.socket.sent))
        self.socket.sent.clear()

    def shake_hands(self) -> Client:
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            self.exchange()
        return self

    def first_bytes(self) -> bytes:
        """A ClientHello."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        self.tls.write(data)
        self.exchange()

    def read(self) -> bytes:
        self.exchange()
        found = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while part := self.tls.read(1 << 20):
                found += part
        return bytes(found)

    @property
    def taken_bytes(self) -> int:
        return self.server.replies.taken_bytes


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def certificates_of(authority: Authority, **changes: str) -> Certificates:
    config = BrokerConfig(
        {name: str(value) for name, value in tls_config(authority, **changes).items()}
    )
    return Certificates(read_tls_settings(config, "SSL"))


@pytest.fixture(name="client")
def _client(authority: Authority) -> Iterator[Client]:
    found = Client(certificates_of(authority), authority.trusting())
    yield found
    found.filter.connection_lost(None)
    assert found.taken_bytes == 0
    assert found.connection.is_lost


# -- requests and replies


def test_what_a_client_sends_arrives_and_what_it_is_sent_too(client: Client) -> None:
    client.shake_hands().send(b"request" * 10_000)
    assert client.connection.received == b"request" * 10_000
    client.filter.writelines([b"re", bytearray(b"p"), memoryview(b"ly"), b""])
    assert client.read() == b"reply"


def test_small_parts_of_a_reply_are_one_record(client: Client) -> None:
    client.shake_hands().read()
    client.filter.writelines([b"x"] * 100)
    assert client.socket.writes[-1] < 200


def test_a_first_request_behind_the_handshake_is_served(client: Client) -> None:
    for _ in range(2):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.tls.do_handshake()
        if client.tls.version() and client.tls.cipher():
            client.tls.write(b"request")
        client.exchange()
    assert client.connection.received == b"request"


def test_a_session_is_not_resumed_however_its_first_message_is_cut(authority: Authority) -> None:
    found = certificates_of(authority, ssl_client_auth="required")
    context = authority.trusting(authority.client())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session = Client(found, context).shake_hands().tls.session
    for size in (1, 5, 100, 1 << 20):
        client = Client(found, context, session)
        hello = client.first_bytes()
        for start in range(0, len(hello), size):
            client.give(hello[start : start + size])
        client.exchange()
        client.shake_hands().send(b"request")
        assert not client.tls.session_reused
        assert client.connection.received == b"request"
        assert client.connection.principal == ALICE


def test_a_first_message_that_is_too_long_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(certificates_of(authority, ssl_client_auth="required"), authority.trusting())
    first = b"\x01\x01\x00\x00" + bytes(10_000)  # A ClientHello of 64 KB, in three records.
    for part in (first, bytes(10_000), bytes(20_000)):
        for start in range(0, len(part), 10_004):
            piece = part[start : start + 10_004]
            client.give(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece)
    assert client.socket.closed == "closed"
    assert "its first message has more than 32768 bytes" in caplog.text


def test_a_session_that_cannot_start_over_is_refused_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    found = certificates_of(authority, ssl_client_auth="required")
    context = authority.trusting(authority.client())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session = Client(found, context).shake_hands().tls.session
    Path(found.settings.keystore.path or "").unlink()
    client = Client(found, context, session)
    client.give(client.first_bytes())
    assert client.socket.closed == "closed"
    assert not client.socket.sent
    assert "it resumes a session, and no new one can be made: ssl.keystore.location" in caplog.text


# -- slices


def test_a_large_reply_is_encrypted_a_slice_in_each_turn(client: Client) -> None:
    client.shake_hands().read()
    client.socket.writes.clear()
    reply = bytes(range(256)) * 4096
    client.filter.writelines([b"head", reply])
    turns = 1
    while client.server.soon:
        assert len(client.socket.writes) == turns
        client.server.turn()
        turns += 1
    assert turns >= len(reply) // SLICE_BYTES
    assert max(client.socket.writes) <= SLICE_BYTES + OVERHEAD_BYTES
    assert client.read() == b"head" + reply


def test_nothing_is_encrypted_while_the_socket_has_not_taken_the_slice_before(
    client: Client,
) -> None:
    client.shake_hands().read()
    client.socket.writes.clear()
    client.socket.room = 1000
    reply = b"x" * 1_000_000
    client.filter.writelines([reply])
    for _ in range(3):
        client.server.turn()
        client.filter.writelines([b"more"])
    assert len(client.socket.writes) == 1
    client.socket.take(SLICE_BYTES * 2)
    client.server.turn()
    assert len(client.socket.writes) > 1
    client.socket.take(1 << 30)
    while client.server.soon:
        client.server.turn()
    assert client.read() == reply + b"more" * 3


def test_ciphertext_that_the_socket_has_not_taken_is_taken_from_the_budget(
    client: Client,
) -> None:
    client.shake_hands().read()
    client.socket.room = 1000
    client.filter.writelines([b"x" * 1_000_000])
    kept = len(client.socket.kept)
    assert SLICE_BYTES - 1000 < kept <= SLICE_BYTES + OVERHEAD_BYTES
    assert client.taken_bytes == client.connection.ciphertext_bytes == kept
    assert client.connection.is_behind
    client.socket.take(1 << 30)
    while client.server.soon:
        client.server.turn()
    assert client.taken_bytes == client.connection.ciphertext_bytes == 0
    assert not client.connection.is_behind


def test_plaintext_and_ciphertext_count_as_unsent(client: Client) -> None:
    client.shake_hands().read()
    client.socket.room = 0
    client.filter.writelines([b"x" * 1_000_000])
    size = client.filter.get_write_buffer_size()
    assert 1_000_000 <= size <= 1_000_000 + OVERHEAD_BYTES


def test_a_connection_that_is_lost_gives_back_what_it_has_taken(client: Client) -> None:
    client.shake_hands().read()
    client.socket.room = 0
    client.filter.writelines([b"x" * 1_000_000])
    assert client.taken_bytes > 0
    client.filter.connection_lost(OSError("gone"))
    assert client.taken_bytes == 0
    client.server.turn()


def test_a_connection_that_does_not_read_gets_nothing_until_it_reads_on(client: Client) -> None:
    client.shake_hands()
    client.connection.stop_after = 2000
    client.send(b"y" * 20_000)
    assert len(client.connection.received) == 2000
    assert not client.socket.is_reading
    client.connection.stop_after = None
    client.filter.resume_reading()
    assert len(client.connection.received) == 2000, "in the next turn, not within the call"
    client.server.turn()
    assert client.connection.received == b"y" * 20_000
    assert client.socket.is_reading


# -- the end


def test_a_close_sends_everything_and_the_farewell(client: Client) -> None:
    client.shake_hands().read()
    client.socket.room = 10
    client.filter.writelines([b"x" * 200_000])
    client.filter.close()
    assert not client.socket.is_closing()
    client.socket.take(1 << 30)
    while client.server.soon:
        client.server.turn()
    assert client.socket.closed == "closed"
    client.exchange()
    received = bytearray()
    while part := client.tls.read(1 << 20):
        received += part
    assert len(received) == 200_000


def test_a_farewell_and_an_end_without_one_close_the_connection(authority: Authority) -> None:
    for says_farewell in (True, False):
        client = Client(certificates_of(authority), authority.trusting()).shake_hands()
        client.send(b"last")
        if says_farewell:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.unwrap()
            client.exchange()
        else:
            assert client.filter.eof_received()
        assert client.connection.received == b"last"
        assert client.connection.ended
        assert client.socket.closed == "closed"


def test_an_abort_drops_what_waits(client: Client) -> None:
    client.shake_hands()
    client.socket.room = 0
    client.filter.writelines([b"x" * 1_000_000])
    client.filter.abort()
    assert client.socket.closed == "aborted"
    assert client.filter.is_closing()
    client.filter.writelines([b"more"])
    client.server.turn()
    assert client.filter.get_write_buffer_size() == 0


# -- handshakes


def test_a_handshake_has_a_time_limit_however_many_bytes_arrive(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for byte in client.first_bytes()[:-1]:
        client.give(bytes([byte]))
    assert not client.socket.is_closing()
    client.server.pass_time()
    assert client.socket.closed == "closed"
    assert "no complete TLS handshake in 10 s" in caplog.text


def test_nothing_is_read_while_a_handshake_waits_in_line(authority: Authority) -> None:
    client = Client(certificates_of(authority), authority.trusting())
    line: deque[TlsFilter] = deque()
    client.server.shake_hands_soon = line.append  # type: ignore[method-assign, assignment]
    client.give(client.first_bytes())
    is_reading = [client.socket.is_reading]  # A longer line would be more memory.
    line.popleft().shake_hands()
    is_reading.append(client.socket.is_reading)
    client._incoming.write(bytes(client.socket.sent))
    client.tls.do_handshake()
    client.tls.write(b"a request")
    client.give(client._outgoing.read())
    is_reading.append(client.socket.is_reading)
    line.popleft().shake_hands()
    assert is_reading == [False, True, False]
    assert client.socket.is_reading
    assert client.connection.received == b"a request"


def test_a_complete_handshake_has_no_time_limit(client: Client) -> None:
    client.shake_hands()
    client.server.pass_time()
    client.send(b"request")
    assert client.connection.received == b"request"


def test_a_client_that_waits_for_its_turn_is_not_timed(client: Client) -> None:
    client.filter.pause_reading()
    client.give(client.first_bytes())  # On its way before the pause.
    assert client.socket.writes == []
    client.server.pass_time()
    assert not client.socket.is_closing()
    client.filter.resume_reading()
    client.shake_hands().send(b"request")
    assert client.connection.received == b"request"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\0\0\0\x10\0\x12\0\3\0\0\0\1\0\0\0\0\0\0\0\0", "its bytes are not TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP"),
    ],
)
def test_bytes_that_are_not_tls_close_the_connection_with_a_reason(
    client: Client, caplog: pytest.LogCaptureFixture, sent: bytes, reason: str
) -> None:
    client.give(sent)
    assert client.socket.closed == "closed"
    assert reason in caplog.text
    assert client.connection.received == b""


def test_the_client_is_who_its_certificate_says(authority: Authority) -> None:
    found = certificates_of(authority, ssl_client_auth="required")
    client = Client(found, authority.trusting(authority.client())).shake_hands()
    assert client.connection.principal == ALICE


def test_behind_sasl_the_certificate_does_not_name_the_client(authority: Authority) -> None:
    found = certificates_of(authority, ssl_client_auth="required")
    client = Client(found, authority.trusting(authority.client()))
    client.connection.listener_protocol = "SASL_SSL"
    assert client.shake_hands().connection.principal == "User:ANONYMOUS"


def test_a_client_without_its_certificate_sends_no_request(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(certificates_of(authority, ssl_client_auth="required"), authority.trusting())
    client.shake_hands()
    with contextlib.suppress(ssl.SSLError):
        client.send(b"request")
    assert client.connection.received == b""
    assert client.socket.closed == "closed"
    assert "it has no certificate (ssl.client.auth)" in caplog.text


def test_a_name_without_a_rule_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    found = certificates_of(
        authority, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=bob$/bob/"
    )
    client = Client(found, authority.trusting(authority.client())).shake_hands()
    with contextlib.suppress(ssl.SSLError):
        client.send(b"request")
    assert client.connection.received == b""
    assert "no rule of ssl.principal.mapping.rules fits" in caplog.text


def test_a_name_of_which_a_rule_leaves_nothing_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    found = certificates_of(
        authority, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=.*$//"
    )
    client = Client(found, authority.trusting(authority.client())).shake_hands()
    with contextlib.suppress(ssl.SSLError):
        client.send(b"request")
    assert client.connection.received == b""
    assert "its certificate cannot be used: a rule of ssl.principal.mapping" in caplog.text


def test_a_connection_takes_the_certificates_of_its_moment(authority: Authority) -> None:
    class Later(FakeServer):
        def time(self) -> float:
            return 10.0

    found = certificates_of(authority)
    before = found.current(0.0)
    authority.listener()
    client = Client(found, authority.trusting())
    later = TlsFilter(cast(Any, Later()), cast(Any, FakeConnection()), found)
    assert client.filter._tls.context is before
    assert later._tls.context is found.current(10.0) is not before
    assert client.shake_hands().tls.version(), "the old one is complete with what it began with"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_before_the_handshake_is_done_at_most_close_the_connection(
    data: st.DataObject, hostile: Callable[[], Client]
) -> None:
    logging.disable(logging.CRITICAL)
    try:
        client = hostile()
        hello = client.first_bytes()
        cut = data.draw(st.integers(0, len(hello)))
        noise = data.draw(st.binary(max_size=300))
        flips = data.draw(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 255)), max_size=3))
        sent = bytearray(hello[:cut] + noise + hello[cut:])
        for at, change in flips:
            sent[at % len(sent)] ^= change
        for at in range(0, len(sent), max(1, len(sent) // data.draw(st.integers(1, 5)))):
            client.give(bytes(sent[at : at + max(1, len(sent) // 5)]))
        assert client.connection.received == b""
        client.server.pass_time()
        assert client.filter.is_closing()
        client.filter.connection_lost(None)
        assert client.taken_bytes == 0
    finally:
        logging.disable(logging.NOTSET)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_bytes_after_the_handshake_close_the_connection(
    data: st.DataObject, hostile: Callable[[], Client]
) -> None:
    logging.disable(logging.CRITICAL)
    try:
        client = hostile().shake_hands()
        client.tls.write(b"a request that is not damaged")
        sent = bytearray(client._outgoing.read())
        at = data.draw(st.integers(5, len(sent) - 1))
        sent[at] ^= data.draw(st.integers(1, 255))
        client.give(bytes(sent))
        assert client.connection.received == b""
        assert client.socket.closed == "closed"
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(name="hostile", scope="module")
def _hostile(authority: Authority) -> Callable[[], Client]:
    found = certificates_of(authority)
    context = authority.trusting()
    return lambda: Client(found, context)


def test_the_shared_inbox_is_not_used_where_a_read_takes_two_calls(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_filter, "WINDOWS", True)
    found, context = certificates_of(authority), authority.trusting()
    one, other = Client(found, context), Client(found, context)
    assert one.filter.get_buffer(-1).obj is not other.filter.get_buffer(-1).obj


def test_brokers_of_one_process_read_at_the_same_time(authority: Authority) -> None:
    """Their loops run in threads: one reads between the two calls of another."""
    found, context = certificates_of(authority), authority.trusting()
    clients = [Client(found, context).shake_hands() for _ in range(2)]
    counts = []
    for number, client in enumerate(clients):
        client.tls.write(b"%d" % number * 1000)
        ciphertext = client._outgoing.read()
        place = client.filter.get_buffer(-1)
        place[: len(ciphertext)] = ciphertext
        counts.append(len(ciphertext))
    for client, count in zip(clients, counts, strict=True):
        client.filter.buffer_updated(count)
    assert [bytes(each.connection.received) for each in clients] == [b"0" * 1000, b"1" * 1000]
