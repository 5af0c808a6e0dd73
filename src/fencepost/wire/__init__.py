"""The wire: bytes to forms and back, for every message and every version that we serve.

Theory of operation. A *form* is one class per message with the fields of all its versions
(`forms/`, made from kio's schema by `tools/fold_schema.py`; the language is in `schema.py`). For a
pair of form and version a straight function is generated at first use and kept (`reading.py`,
`writing.py`, asked for through `compile.py`): no tables are walked while a message is read.

    socket -> framing.FrameBuffer -> codec.read_request_header -> codec.decode_request -> a form
    a form -> codec.encode_response -> list of buffers -> socket

Invariants:
- Bytes of a stranger cause a value or a `WireError`, never another exception, and no allocation
  that is not bounded by the bytes that really came (times a constant) or by `base.limits`.
- `records` are never copied on the way in, and on the way out only while they are small.
- Times are integers of milliseconds, error codes integers, ids 16 raw bytes. Nothing here
  interprets.
- Handlers see one shape of a request, the newest: `shapes.py` raises old requests and lowers new
  responses.
"""
