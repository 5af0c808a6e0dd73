"""Batches that their topic has to look into: keys on a compacted topic, and a `compression.type` of its own.

Most batches are never opened. Where one must be, it may hold hundreds of thousands of records and
megabytes that a few bytes unpack to. So opening comes in three parts, and whoever owns the loop
decides where each of them runs:

    unpack    decompresses; touches nothing but bytes, and so may run in a thread
    step      looks at some of the records; again and again until it says that there are no more
    pack      compresses in the topic's codec, where that differs; may run in a thread too

What was found is asked for when the batch is appended: a refusal must not come before those that
Kafka tells first.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_DECOMPRESSED_BYTES
from fencepost.base.refusal import Refusal
from fencepost.base.seams import Buffer
from fencepost.log.config import LogConfig
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch
from fencepost.records.builder import reseal
from fencepost.records.compression import Codec, decompress
from fencepost.records.scan import RecordScan

PRODUCER: Final = "producer"
CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""By the words of the topic setting `compression.type`; `producer` keeps what came."""

RECORDS_PER_STEP: Final = 1000
"""One to three milliseconds."""
SHORT_BYTES: Final = 256 * 1024
"""A batch of one step that unpacks to no more than this is opened on the spot."""


def must_open(batch: SealedBatch, config: LogConfig) -> bool:
    """Whether the topic has to look at the records."""
    return config.is_compacted or is_repacked(batch, config)


def is_repacked(batch: SealedBatch, config: LogConfig) -> bool:
    """Whether the topic has another codec than the batch."""
    wanted = config.compression_type
    return wanted != PRODUCER and CODECS[wanted] != batch.codec


class Opening:
    """One batch on its way; see the module's docstring."""

    __slots__ = ("_batch", "_codec", "_payload", "_scan", "refusal", "repacked")

    def __init__(self, batch: SealedBatch, config: LogConfig) -> None:
        self._batch = batch
        self._codec = CODECS[config.compression_type] if is_repacked(batch, config) else None
        self._payload: Buffer | None = None
        self._scan: RecordScan | None = None
        self.refusal: Refusal | None = None
        """Set when the batch does not hold what its header says."""
        self.repacked: SealedBatch | None = None
        """The batch in the topic's codec, where that is another one."""

    @property
    def keyless(self) -> list[int]:
        """The first records without a key, by their place in the batch."""
        return [] if self._scan is None else self._scan.keyless

    def unpack(self, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        batch = self._batch
        try:
            if len(batch.data) != batch.size_bytes:
                raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"{batch!r} is not all there")
            packed = memoryview(batch.data)[HEADER_BYTES:]
            self._payload = decompress(batch.codec, packed, max_bytes)
            self._scan = RecordScan(batch, self._payload)
        except BatchError as problem:
            self.refusal = problem.refusal

    def step(self, count: int = RECORDS_PER_STEP) -> bool:
        """Looks at the next records; True when there is nothing more to look at."""
        if self.refusal is not None or self._scan is None:
            return True
        try:
            return self._scan.step(count)
        except BatchError as problem:
            self.refusal = problem.refusal
            return True

    def pack(self) -> None:
        if self._codec is not None and self.refusal is None and self._payload is not None:
            self.repacked = reseal(self._batch, self._codec, self._payload)
        self._payload = None

    @property
    def record_count(self) -> int:
        return self._batch.record_count

    def open_if_short(self, max_bytes: int = SHORT_BYTES) -> bool:
        """Opens a batch that costs about a millisecond, and says whether it was one."""
        if self._batch.record_count > RECORDS_PER_STEP:
            return False
        self.unpack(max_bytes)
        if self.refusal is not None:  # Damaged, or larger than that: not known yet.
            self.refusal = None
            return False
        self.step()
        self.pack()
        return True

    def open_now(self) -> None:
        """All of it at once."""
        self.unpack()
        while not self.step():
            pass
        self.pack()
