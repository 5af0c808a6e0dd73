"""`fencepost tap`: a proxy that decodes what clients and brokers say to each other.

Theory of operation. A client connects to a local port and the tap to the broker behind it. Bytes
are passed on as they come. Only addresses in replies are changed, so that the client finds every
broker through the tap: each broker has a local port (`addresses.py`).

    socket -> relay.py -> decoding/ -> relay.py -> socket
                              |
                              v
                         lines (records/trace.py) -> sinks.py, table.py

`decoding/` does no I/O: it takes bytes and the time, and returns bytes and lines. `relay.py` (one
connection), `dialing.py` (to a broker), `proxy.py` (all of them) and `run.py` (until Ctrl-C) are
the shell.

Rules:
- Requests are never changed, and never wait: the tap looks at a copy after it has sent them.
- A small reply that may hold addresses waits until it is complete. A large Fetch reply streams
  through; its node endpoints (KIP-951), which come last, are renumbered to an unknown tag, because
  its size has been sent before. The client then asks for metadata, as older ones do.
- Nothing is opened but batch headers, and a record's bytes are never kept. With --bytes, the first
  bytes of requests are, without records and logins (`decoding/kept_bytes.py`).
- Memory is bounded: one receive buffer for all connections, and per direction at most one read that
  its receiver has not accepted yet, and one reply that waits.
- What cannot be decoded (an unknown API or version, bytes that are not Kafka's) is passed on
  unchanged, and a line says so.

`tap show` (`swimlane/`) reads what `tap` or `serve --trace` wrote, and draws the history of one
transactional id. `wording.py` puts an exchange into words, there and in the live table.
"""
