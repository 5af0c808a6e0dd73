"""A topic's `compression.type`: the one case in which the broker opens a client's batch to change it.

With `producer`, Kafka's default, a batch keeps the codec that it came with and nobody looks inside.
"""

from __future__ import annotations

from typing import Final

from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec
from fencepost.records.opened import open_batch

PRODUCER: Final = "producer"

CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""By the words of the topic setting."""


def recompress(batch: SealedBatch, compression_type: str) -> SealedBatch:
    """The batch in the topic's codec, with everything else as it was; BatchError if it cannot be opened."""
    codec = CODECS[compression_type]
    if batch.codec == codec:
        return batch
    data = build_batch(
        open_batch(batch),
        timestamp_ms=batch.base_timestamp,
        codec=codec,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
    )
    return read_header(memoryview(data))
