"""The bytes of Kafka: record batches, markers, indexes, snapshots and checkpoints.

Everything here is pure: bytes in, values out, and back. Nothing reads a file or a clock.

A batch has two lives. *Sealed* (`batch.py`) it is a 61-byte header over bytes that nobody looks
into: that is how it travels from the socket to the disk and back. *Opened* (`opened.py`) it is a
list of records: only compaction, the coordinators at load and the tools need that, and they pay for
it.

Rule 1: bytes of strangers raise `BatchError` and nothing else, whatever they contain.
Rule 2: a length that a stranger wrote is compared with the bytes that are there before it is believed,
        and nothing is decompressed into a buffer that could grow past `limits.MAX_DECOMPRESSED_BYTES`.
Rule 3: numbers stay numbers. Times are milliseconds, offsets are ints, ids of producers are ints.
"""
