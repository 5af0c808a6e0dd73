"""How two processes of a job recognise each other, without sending their secret.

The driver makes a secret for each attempt of a job and passes it to the tasks with the plan. Anyone
may connect to the ports of a job, and on a network anyone may listen. So both sides prove that they
have the secret:

    caller   -> listener   32 random bytes
    listener -> caller     32 random bytes, HMAC(secret, "listener", both)
    caller   -> listener   HMAC(secret, "caller", both)

The random bytes are new on every connection, so a recorded handshake is worthless, and the two
words keep one side from being answered with its own proof. What follows on the connection is
neither encrypted nor signed: `engine/hosts.py` decides between which hosts that is allowed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from typing import Final

from fencepost.spark.failures import PeerLost

HANDSHAKE_SECONDS: Final = 30.0
"""How long the other side may take. A stranger that says nothing is disconnected then."""

_BYTES: Final = 32
_CALLER, _LISTENER = b"caller", b"listener"


def make_secret() -> bytes:
    """A secret for one attempt of a job."""
    return secrets.token_bytes(_BYTES)


def connect(address: tuple[str, int], secret: bytes) -> socket.socket:
    """A connection to a process of this job, with a timeout; PeerLost or OSError."""
    connection = socket.create_connection(address, HANDSHAKE_SECONDS)
    try:
        greet(connection, secret)
    except BaseException:
        connection.close()
        raise
    return connection


def greet(connection: socket.socket, secret: bytes) -> None:
    """The caller's side; PeerLost if the listener does not have the secret."""
    mine = secrets.token_bytes(_BYTES)
    connection.sendall(mine)
    theirs, proof = read_exactly(connection, _BYTES), read_exactly(connection, _BYTES)
    both = mine + theirs
    if not hmac.compare_digest(proof, _proof(secret, _LISTENER, both)):
        raise PeerLost("another program listens there, which does not know this job")
    connection.sendall(_proof(secret, _CALLER, both))


def admit(connection: socket.socket, secret: bytes) -> bool:
    """The listener's side: whether the caller is a process of this job."""
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        theirs, mine = read_exactly(connection, _BYTES), secrets.token_bytes(_BYTES)
        both = theirs + mine
        connection.sendall(mine + _proof(secret, _LISTENER, both))
        proof = read_exactly(connection, _BYTES)
        connection.settimeout(None)
    except (OSError, PeerLost):
        return False
    return hmac.compare_digest(proof, _proof(secret, _CALLER, bytes(both)))


def read_exactly(connection: socket.socket, size: int) -> bytearray:
    """So many bytes; PeerLost if the other side closes the connection before."""
    data = bytearray(size)
    fill(connection, memoryview(data))
    return data


def fill(connection: socket.socket, room: memoryview) -> None:
    """Reads until the memory is full."""
    while room:
        count = connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if not count:
            raise PeerLost("the other side has closed the connection before its end")
        room = room[count:]


def _proof(secret: bytes, side: bytes, both: bytes | bytearray) -> bytes:
    return hmac.new(secret, side + both, hashlib.sha256).digest()
