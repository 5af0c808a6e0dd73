"""TLS between a socket and its connection.

Theory of operation
-------------------
    socket  <- ciphertext ->  TlsFilter  <- plaintext ->  Connection

The filter is the protocol of the socket and the transport of the connection, which does not know
that it is there; a plain connection has no filter. OpenSSL works on two buffers in memory
(`ssl.MemoryBIO`), so the filter decides when, and how much at once, is encrypted:

- a reply waits as plaintext. If it is a view of a file it takes no memory. `SLICE_BYTES` of it are
  encrypted per turn of the loop, and only while the socket has taken everything before. A loop that
  encrypts 50 MB at once serves no other client until it is done;
- what the socket has not taken is ciphertext in this process, a slice at most. It is taken from the
  budget for replies (`memory.py`), and the connection can be closed for it when others wait;
- both count as unsent bytes of the connection (`MAX_UNSENT_BYTES`), which then reads no further
  requests;
- while the connection does not read, neither does the filter: one read of ciphertext waits.

The handshake comes first. The connection counts among the others from the moment it is accepted;
if the handshake is not complete after `HANDSHAKE_SECONDS` it is closed, however many bytes arrive
meanwhile. A handshake costs a hundred times a small request, so handshakes wait in a line of the
server's, which spends one `Turn` on them in each turn of the loop. Nothing is read from a socket
whose handshake is in the line: a stranger would fill the memory, the longer the line the more.

A resumed session of TLS 1.2 would let a client in without a look at its certificate, which may have
expired. Python can turn off tickets, but not the cache of sessions in an `ssl.SSLContext`. So where
clients are asked for certificates, a handshake that OpenSSL would shorten starts over, before
anything was sent: the client's first message is read again with a context of its own, which knows
no session. No client notices, as every server may forget sessions. TLS 1.3 has nothing to resume:
the broker sends no tickets.

A client that closes without the farewell of TLS (close_notify) is treated like one with it: frames
have sizes, so a request that is cut short is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.base.failures import ConfigError, WireError
from fencepost.base.limits import HANDSHAKE_SECONDS
from fencepost.base.seams import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.broker.network.connection import Connection
    from fencepost.broker.network.server import Server
    from fencepost.broker.security.tls import Certificates

log = logging.getLogger(__name__)

SLICE_BYTES: Final = 64 * 1024
"""Plaintext that is encrypted in one turn of the loop: 0.15 ms."""

RECEIVE_BYTES: Final = 64 * 1024

MAX_HELLO_BYTES: Final = 32 * 1024
"""The first message of a client has some hundred bytes, and at most a few thousand with keys that
withstand quantum computers. OpenSSL would read 128 KB."""

WINDOWS: Final = sys.platform == "win32"


class TlsFilter(asyncio.BufferedProtocol):
    """The TLS of one connection."""

    def __init__(self, server: Server, connection: Connection, certificates: Certificates) -> None:
        self._server = server
        self._connection = connection
        self._certificates = certificates
        self._begin(certificates.current(server.time()))
        self._hello: bytearray | None = bytearray() if certificates.asks_clients else None
        """What the client has sent before it was answered; None if nobody will read it again."""
        # Ciphertext between the two calls of one read. On Windows the read is under way from one
        # call to the other; elsewhere nothing else of the server's loop runs between them.
        self._inbox = memoryview(bytearray(RECEIVE_BYTES)) if WINDOWS else server.tls_inbox
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_established = False
        self._is_closing = False
        self._reads = True
        self._will_decrypt = False
        self._is_over = False
        """Whether the client has said farewell."""
        self._problem: ssl.SSLError | None = None
        # Writing
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._socket_is_full = False
        self._is_encrypting = False
        self._will_encrypt = False
        self._has_paused = False
        self._high_bytes = SLICE_BYTES
        self._low_bytes = SLICE_BYTES // 4

    def _begin(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    # -- called by asyncio, for the socket --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection, and waits for the handshake."""
        self._socket = cast(asyncio.Transport, transport)
        # With a limit of 0 it says at once when it has not taken everything.
        self._socket.set_write_buffer_limits(high=0)
        self._start_timer()
        self._connection.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives back all memory."""
        self._stop_timer()
        self._socket = None
        self._is_closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._count_ciphertext()
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for the next read."""
        return self._inbox

    def buffer_updated(self, nbytes: int) -> None:
        """Goes on with the handshake, or decrypts."""
        if self._is_closing:
            return
        self._incoming.write(self._inbox[:nbytes])
        if self._hello is not None:
            self._hello += self._inbox[:nbytes]
            if len(self._hello) > MAX_HELLO_BYTES:
                self._refuse(f"its first message has more than {MAX_HELLO_BYTES} bytes")
                return
        if self._is_established:
            self._decrypt()
        elif self._reads:
            self._get_in_line()

    def eof_received(self) -> bool:
        """Closes the connection; returns whether the socket stays open for what is unsent."""
        if not self._is_established:
            return False
        self._connection.eof_received()
        self.close()
        return True

    def pause_writing(self) -> None:
        """The socket has not taken everything."""
        self._socket_is_full = True

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        self._socket_is_full = False
        self._count_ciphertext()
        self._encrypt()

    # -- the handshake ----------------------------------------------------------------------------

    def _start_timer(self) -> None:
        self._timer = self._server.call_later(HANDSHAKE_SECONDS, self._end_handshake)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_handshake(self) -> None:
        if not self._reads:  # It waits for its turn (max.connection.creation.rate).
            self._start_timer()
            return
        self._refuse(f"no complete TLS handshake in {HANDSHAKE_SECONDS:.0f} s")

    def _get_in_line(self) -> None:
        """Waits for its turn. What the client sends meanwhile stays in the kernel."""
        if self._socket is not None:
            self._socket.pause_reading()
        self._server.shake_hands_soon(self)

    def shake_hands(self) -> None:
        """Takes the next step of the handshake; called by the server in its turn."""
        if self._is_closing or self._socket is None or self._is_established:
            return
        if self._reads and not self._socket.is_closing():
            self._socket.resume_reading()
        try:
            self._take_step()
        except ssl.SSLWantReadError:
            self._send_ciphertext()
            return
        except ConfigError as problem:
            self._refuse(f"it resumes a session, and no new one can be made: {problem}")
            return
        except ssl.SSLError as problem:
            self._send_ciphertext()  # The alert that tells the client.
            self._refuse(_why(problem))
            return
        self._stop_timer()
        self._is_established = True
        self._send_ciphertext()
        if self._connection.listener_protocol == "SSL" and not self._identify():
            return
        self._decrypt()  # The first request may have come with the end of the handshake.

    def _take_step(self) -> None:
        """Goes on as far as OpenSSL can; starts over instead of resuming a session."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            hello = self._hello
            if hello is None or not self._outgoing.pending:
                raise  # Its first message is not complete.
            self._hello = None
            if not self._tls.session_reused:
                raise
            self._begin(self._certificates.for_one_connection())
            self._incoming.write(hello)
            self._tls.do_handshake()

    def _identify(self) -> bool:
        """Notes who the client is; False if it may not go on."""
        try:
            principal = self._certificates.principal(self._tls.getpeercert(binary_form=True))
        except WireError as problem:
            self._refuse(f"its certificate cannot be used: {problem}")
            return False
        if principal is None:
            self._refuse("no rule of ssl.principal.mapping.rules fits the name in its certificate")
            return False
        self._connection.principal = principal
        return True

    def _refuse(self, reason: str) -> None:
        """Closes the socket after what was sent last, and says why in the log."""
        if self._socket is None or self._is_closing:
            return
        log.warning("closing the connection of %s: %s", self._connection.client_name, reason)
        self._is_closing = True
        self._drop_waiting()
        self._socket.close()

    # -- reading ----------------------------------------------------------------------------------

    def _decrypt(self) -> None:
        """Hands on what has arrived, until the connection stops reading."""
        connection = self._connection
        self._will_decrypt = False
        while self._reads and not self._is_closing and self._has_more:
            filled = self._read_into(connection.get_buffer(-1))
            if filled:
                connection.buffer_updated(filled)
            if self._problem is not None:
                self._send_ciphertext()
                self._refuse(_why(self._problem))
            elif self._is_over:
                connection.eof_received()
                self.close()
            elif not filled:
                break
        if self._outgoing.pending:  # New keys, for instance.
            self._send_ciphertext()
            self._tell()

    @property
    def _has_more(self) -> bool:
        return bool(self._incoming.pending or self._tls.pending())

    def _read_into(self, place: memoryview) -> int:
        """Decrypts into the buffer; returns how many bytes there are."""
        tls, size, filled = self._tls, len(place), 0
        try:
            # One call decrypts 16 KB at most, and a large request is handled by the read.
            while filled < size and self._has_more:
                count = cast(int, tls.read(size - filled, cast(bytearray, place[filled:])))
                if not count:
                    self._is_over = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._is_over = True
        except ssl.SSLError as problem:
            self._problem = problem
        return filled

    # -- writing ----------------------------------------------------------------------------------

    def _encrypt(self) -> None:
        """Encrypts one slice of what waits, if the socket takes more; the next in the next turn."""
        if self._is_encrypting:
            return  # Called by a connection that goes on: the call below it tells it the rest.
        self._is_encrypting = True
        try:
            if self._waiting and not self._socket_is_full and self._socket is not None:
                self._encrypt_slice()
            self._tell()
        except ssl.SSLError as problem:
            self._refuse(_why(problem))
        finally:
            self._is_encrypting = False
        if self._waiting:
            if not self._socket_is_full and not self._will_encrypt and self._socket is not None:
                self._will_encrypt = True
                self._server.call_soon(self._encrypt_more)
        elif self._is_closing:
            self._say_farewell()

    def _encrypt_more(self) -> None:
        self._will_encrypt = False
        self._encrypt()

    def _encrypt_slice(self) -> None:
        left, waiting = SLICE_BYTES, self._waiting
        if len(waiting) > 1 and len(waiting[0]) < SLICE_BYTES // 4:
            self._join_small()
        while waiting and left:
            first = waiting[0]
            part = first if len(first) <= left else first[:left]
            written = self._tls.write(part)
            left -= written
            self._waiting_bytes -= written
            if written == len(first):
                waiting.popleft()
            else:
                waiting[0] = first[written:]
        self._send_ciphertext()

    def _join_small(self) -> None:
        """Joins the first small parts: each would be a TLS record of its own."""
        parts, size = [], 0
        while self._waiting and size + len(self._waiting[0]) <= SLICE_BYTES:
            size += len(self._waiting[0])
            parts.append(self._waiting.popleft())
        self._waiting.appendleft(memoryview(b"".join(parts)))

    def _send_ciphertext(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())
            self._count_ciphertext()

    def _count_ciphertext(self) -> None:
        """Takes what the socket has not taken from the budget for replies, or gives it back."""
        connection = self._connection
        size = 0
        if self._socket_is_full and self._socket is not None:
            size = self._socket.get_write_buffer_size()
        more = size - connection.ciphertext_bytes
        if more:
            connection.ciphertext_bytes = size
            if more > 0:
                self._server.replies.take(more)
            else:
                self._server.replies.give(-more)

    def _tell(self) -> None:
        """Tells the connection whether its client is behind."""
        unsent = self.get_write_buffer_size()
        if not self._has_paused:
            if unsent > self._high_bytes:
                self._has_paused = True
                self._connection.pause_writing()
        elif unsent <= self._low_bytes:
            self._has_paused = False
            self._connection.resume_writing()

    def _say_farewell(self) -> None:
        """Everything is encrypted: says that nothing follows, and closes the socket."""
        if self._socket is None or self._socket.is_closing():
            return
        if self._is_established:
            with suppress(ssl.SSLError):  # It would wait for the client's farewell.
                self._tls.unwrap()
            self._send_ciphertext()
        self._socket.close()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    # -- called by the connection and the server, as a transport ----------------------------------

    def writelines(self, chunks: Iterable[Buffer]) -> None:
        """Encrypts and sends, now or when the socket takes more."""
        if self._is_closing:
            return
        for chunk in chunks:
            size = len(chunk)
            if size:
                self._waiting.append(memoryview(chunk))
                self._waiting_bytes += size
        self._encrypt()

    def pause_reading(self) -> None:
        """Stops reading and decrypting."""
        self._reads = False
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Reads on; what has arrived before is decrypted in the next turn."""
        self._reads = True
        if self._socket is None or self._is_closing:
            return
        self._socket.resume_reading()
        if not self._is_established:
            if self._incoming.pending:
                self._get_in_line()
        elif not self._will_decrypt:
            self._will_decrypt = True
            self._server.call_soon(self._decrypt)

    def close(self) -> None:
        """Closes the connection when everything is sent."""
        if not self._is_closing:
            self._is_closing = True
            if self._socket is not None:
                self._socket.pause_reading()
            self._encrypt()

    def abort(self) -> None:
        """Closes the connection now."""
        self._is_closing = True
        self._drop_waiting()
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._is_closing or self._socket is None or self._socket.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets how many bytes may be unsent before the connection is told."""
        self._high_bytes = SLICE_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken, encrypted or not."""
        size = self._waiting_bytes
        if self._socket_is_full and self._socket is not None:
            size += self._socket.get_write_buffer_size()
        return size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket knows about itself."""
        return default if self._socket is None else self._socket.get_extra_info(name, default)


_REASONS: Final = {
    "HTTP_REQUEST": "it speaks HTTP; this listener needs TLS",
    "WRONG_VERSION_NUMBER": "its bytes are not TLS; set security.protocol to SSL in the client",
    "UNSUPPORTED_PROTOCOL": "it knows no version of TLS that is enabled (ssl.enabled.protocols)",
    "NO_SHARED_CIPHER": "it has no cipher suite in common with this listener",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate (ssl.client.auth)",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that the certificate of this listener is expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the certificate of this listener",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the certificate of this listener",
}


def _why(problem: ssl.SSLError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {problem.verify_message}"
    reason = problem.reason or ""
    return _REASONS.get(reason) or f"TLS failed: {reason.lower().replace('_', ' ') or problem}"
