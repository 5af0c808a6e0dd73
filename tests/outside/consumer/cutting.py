"""A proxy before PostgreSQL that cuts a connection at its COMMIT, as a failing network would."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum
from typing import Final, Self

_CHUNK: Final = 65_536


class Cut(Enum):
    """What becomes of the next COMMIT."""

    BEFORE = "it does not arrive, and the server learns that the connection is gone"
    SILENT = "it does not arrive, and the server learns nothing"
    AFTER = "it arrives, and its answer does not"


class CuttingProxy:
    """Forwards connections to a port; `cut` says what the next COMMIT meets."""

    def __init__(self, port: int) -> None:
        self.cut: Cut | None = None
        self._target = port
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for way in (self._forward, self._answer):
                    threading.Thread(target=way, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while sent := client.recv(_CHUNK):
                if b"COMMIT" in sent and self.cut is not None:
                    cut, self.cut = self.cut, None
                    if cut is Cut.AFTER:
                        # The answer is read by the other thread, which must find no client.
                        client.shutdown(socket.SHUT_RDWR)
                        server.sendall(sent)
                    elif cut is Cut.SILENT:
                        client.shutdown(socket.SHUT_RDWR)
                    else:
                        _end(server)
                        _end(client)
                    return
                server.sendall(sent)
            _end(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while answer := server.recv(_CHUNK):
                with contextlib.suppress(OSError):
                    client.sendall(answer)
            _end(client)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
