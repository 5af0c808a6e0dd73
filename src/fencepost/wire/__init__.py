"""The wire protocol: bytes to forms and back, for every message and version that we serve.

A *form* is one class per message with the fields of all its versions (`forms/`, generated from
kio's schema by `tools/fold_schema.py`; `schema.py` defines the language). For each form and version
a straight-line function is generated at first use and kept (`reading.py`, `writing.py`, through
`compile.py`), so reading a message walks no tables.

    socket -> framing.FrameBuffer -> codec.read_client -> codec.MessageReader -> a form
    a form -> codec.MessageWriter -> list of buffers -> socket

Invariants:

- Untrusted bytes lead to a value or a `WireError`, never to another exception, and to no allocation
  that is not bounded by the bytes received (times a constant) or by `base.limits`.
- `records` are never copied on input, and on output only while they are small.
- Times are integers of milliseconds, error codes integers, ids 16 raw bytes. Nothing here
  interprets them.
- Handlers see requests in one shape, the newest: `shapes.py` raises old requests and lowers new
  responses.
"""
