"""Opens batches for topics that must read them: compacted ones, and those that set a codec.

Most batches are never opened. One that must be may hold hundreds of thousands of records, and a few
bytes may unpack to megabytes. So opening has three parts, and the broker decides where each runs:

    unpack    decompresses; touches only bytes, so it may run in a thread
    step      reads some of the records; is called until it returns True
    pack      compresses with the topic's codec, if that differs; may run in a thread too

The append uses the result: Kafka's earlier checks must come first.
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
"""By the value of the topic setting `compression.type`; `producer` keeps the batch as it is."""

RECORDS_PER_STEP: Final = 1000
"""One to three milliseconds."""
SHORT_BYTES: Final = 256 * 1024
"""A batch of one step that unpacks to no more than this is opened at once."""


def must_open(batch: SealedBatch, config: LogConfig) -> bool:
    """Whether the topic must read the records."""
    return config.is_compacted or is_repacked(batch, config)


def is_repacked(batch: SealedBatch, config: LogConfig) -> bool:
    """Whether the topic sets another codec than the batch has."""
    wanted = config.compression_type
    return wanted != PRODUCER and CODECS[wanted] != batch.codec


class Opening:
    """One batch that is being opened; see the module's docstring."""

    __slots__ = ("_batch", "_codec", "_payload", "_scan", "refusal", "repacked")

    def __init__(self, batch: SealedBatch, config: LogConfig) -> None:
        self._batch = batch
        self._codec = CODECS[config.compression_type] if is_repacked(batch, config) else None
        self._payload: Buffer | None = None
        self._scan: RecordScan | None = None
        self.refusal: Refusal | None = None
        """Set when the batch does not hold what its header says."""
        self.repacked: SealedBatch | None = None
        """The batch in the topic's codec, if that differs."""

    @property
    def keyless(self) -> list[int]:
        """The first records without a key, by their index in the batch."""
        return [] if self._scan is None else self._scan.keyless

    def unpack(self, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        """Decompresses the batch."""
        batch = self._batch
        try:
            if len(batch.data) != batch.size_bytes:
                raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"{batch!r} is incomplete")
            packed = memoryview(batch.data)[HEADER_BYTES:]
            self._payload = decompress(batch.codec, packed, max_bytes)
            self._scan = RecordScan(batch, self._payload)
        except BatchError as problem:
            self.refusal = problem.refusal

    def step(self, count: int = RECORDS_PER_STEP) -> bool:
        """Reads the next records; True when there are no more."""
        if self.refusal is not None or self._scan is None:
            return True
        try:
            return self._scan.step(count)
        except BatchError as problem:
            self.refusal = problem.refusal
            return True

    def pack(self) -> None:
        """Compresses the batch with the topic's codec, if that differs."""
        if self._codec is not None and self.refusal is None and self._payload is not None:
            self.repacked = reseal(self._batch, self._codec, self._payload)
        self._payload = None

    @property
    def record_count(self) -> int:
        """The number of records by the header."""
        return self._batch.record_count

    def open_if_short(self, max_bytes: int = SHORT_BYTES) -> bool:
        """Opens a batch that costs about a millisecond; False for a longer one."""
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
        """Opens the whole batch at once."""
        self.unpack()
        while not self.step():
            pass
        self.pack()
