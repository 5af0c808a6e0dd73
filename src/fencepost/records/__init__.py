"""Kafka's formats: record batches, markers, indexes, snapshots and checkpoints.

Everything here is pure: bytes in, values out, and back. Nothing reads a file or a clock.

A *sealed* batch (`batch.py`) is a 61-byte header over opaque bytes: it goes from the socket to the
disk and back as it is. The broker checks the records of a client's batch (`scan.py`), but makes no
objects of them. An *opened* batch (`opened.py`) is a list of records: compaction, the load of a
coordinator and the tools need it.

Rule 1: untrusted record bytes raise `BatchError` and nothing else, whatever they contain.
Rule 2: an untrusted length is compared with the bytes that are left before it is used, and no
        buffer grows past `limits.MAX_DECOMPRESSED_BYTES` in decompression.
Rule 3: numbers stay numbers: times are milliseconds, offsets and producer ids are ints.
"""
