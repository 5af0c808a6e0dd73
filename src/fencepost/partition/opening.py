"""Opens the batches of clients: checks their records before they are written.

A batch whose records cannot be read stops its readers for good, so it is refused, and so is one
that clients read differently. The check reads lengths, counts and deltas (`records/scan.py`); no
record becomes an object. Compacted topics also need to know which records have no key, and topics
that set a codec need the decompressed bytes.

A batch may hold hundreds of thousands of records, and a few bytes may unpack to megabytes. So
opening has three parts, and the broker decides where each runs:

    unpack    decompresses; touches only bytes, so it may run in a thread
    step      checks some of the records; is called until it returns True
    pack      compresses with the topic's codec, if that differs; may run in a thread too

`unpack_short` and `pack_short` do the same for batches up to `SHORT_BYTES`. The append uses the
result: the verification of a transaction comes first.
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
from fencepost.records.compression import Codec, TooLargeError, decompress_produced
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
"""About a millisecond interpreted, and a fiftieth of that compiled."""
SHORT_BYTES: Final = 1024 * 1024
"""What one request may decompress and compress at once: one to two milliseconds. The usual batches
are smaller: clients count 1 MB (librdkafka) or 16 KB (Java) before compression."""


def must_open(batch: SealedBatch, config: LogConfig) -> bool:
    """Whether the topic must read the records, even if `record.validation.enable` is off."""
    return config.is_compacted or is_repacked(batch, config)


def is_repacked(batch: SealedBatch, config: LogConfig) -> bool:
    """Whether the topic sets another codec than the batch has."""
    wanted = config.compression_type
    return wanted != PRODUCER and CODECS[wanted] != batch.codec


class Opening:
    """One batch that is being opened; see the module's docstring."""

    __slots__ = ("_batch", "_codec", "_scan", "refusal", "repacked")

    def __init__(self, batch: SealedBatch, config: LogConfig) -> None:
        self._batch = batch
        self._codec = CODECS[config.compression_type] if is_repacked(batch, config) else None
        self._scan: RecordScan | None = None
        self.refusal: Refusal | None = None
        """Set when the batch does not hold what its header says."""
        self.repacked: SealedBatch | None = None
        """The batch in the topic's codec, if that differs."""

    @property
    def record_count(self) -> int:
        """The number of records by the header."""
        return self._batch.record_count

    @property
    def keyless(self) -> list[int]:
        """The first records without a key, by their index in the batch."""
        return [] if self._scan is None else self._scan.keyless

    @property
    def oldest_ms(self) -> int:
        """The oldest timestamp of the records."""
        assert self._scan is not None, "the batch is open"
        return self._scan.oldest_ms

    @property
    def newest_ms(self) -> int:
        """The newest timestamp of the records."""
        assert self._scan is not None, "the batch is open"
        return self._scan.newest_ms

    @property
    def is_unpacked(self) -> bool:
        """Whether nothing is left to decompress."""
        return self._scan is not None or self.refusal is not None

    @property
    def must_pack(self) -> bool:
        """Whether the records have to be compressed with the topic's codec."""
        return self._codec is not None and self.refusal is None

    def unpack(self) -> None:
        """Decompresses the batch."""
        try:
            self._begin(MAX_DECOMPRESSED_BYTES, None)
        except BatchError as problem:
            self.refusal = problem.refusal

    @property
    def unpacked_bytes(self) -> int:
        """What had to be decompressed."""
        return self._scan.size_bytes if self._scan is not None and self._batch.codec else 0

    def unpack_short(self, max_bytes: int, scratch: bytearray) -> bool:
        """Decompresses a batch of at most `max_bytes`, into `scratch`; False for any other."""
        try:
            self._begin(max_bytes, scratch)
        except TooLargeError:
            return False
        except BatchError as problem:
            self.refusal = problem.refusal
        return True

    def _begin(self, max_bytes: int, scratch: bytearray | None) -> None:
        batch = self._batch
        data = batch.data
        if len(data) != batch.size_bytes:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"{batch!r} is incomplete")
        payload: Buffer = memoryview(data)[HEADER_BYTES:]
        codec = batch.codec
        if codec:
            payload = decompress_produced(codec, payload, max_bytes, scratch)
        self._scan = RecordScan(batch, payload)

    def step(self, count: int = RECORDS_PER_STEP) -> bool:
        """Checks the next records; True when there are no more."""
        if self.refusal is not None or self._scan is None:
            return True
        try:
            return self._scan.step(count)
        except BatchError as problem:
            self.refusal = problem.refusal
            return True

    def pack(self) -> None:
        """Compresses the batch with the topic's codec, if that differs; frees the memory."""
        if self._scan is None:
            return
        if self._codec is not None and self.refusal is None:
            self.repacked = reseal(self._batch, self._codec, self._scan.payload)
        self._scan.payload = b""

    def pack_short(self, max_bytes: int) -> bool:
        """Compresses a batch of at most `max_bytes`; False for any other."""
        if self._scan is not None and self.must_pack and self._scan.size_bytes > max_bytes:
            return False
        self.pack()
        return True

    def detach(self) -> None:
        """Copies what `unpack_short` has left in the scratch buffer: the check goes on later."""
        if self._scan is not None and self._batch.codec:
            self._scan.payload = bytes(self._scan.payload)

    def open_now(self) -> None:
        """Opens the whole batch at once."""
        self.unpack()
        while not self.step():
            pass
        self.pack()
