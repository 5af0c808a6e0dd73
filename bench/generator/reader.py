"""A consumer that reads only the headers of batches."""

from __future__ import annotations

import struct
import time
from typing import Final, cast

from bench.generator.answers import RefusedError
from bench.generator.engine import Connection, Engine, Script
from bench.generator.frames import CLIENT_ID
from bench.generator.job import Job
from fencepost.base.errors import ErrorCode
from fencepost.base.seams import Buffer
from fencepost.records.batch import HEADER_BYTES, read_header
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_response, encode_request
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData

VERSION: Final = 12
"""The last version with topic names."""
MAX_BYTES: Final = 1024 * 1024
"""Clients' default for max.partition.fetch.bytes."""
_SOME_OFFSET: Final = 0x5AFE5AFE5AFE5AFE
_pack_offset = struct.Struct(">q").pack_into


class Reader:
    """Reads one partition from beginning to end, again and again until the run is over."""

    def __init__(self, job: Job, engine: Engine, connection: Connection, number: int) -> None:
        self._engine = engine
        self._connection = connection
        self._committed = job.isolation == "read_committed"
        self._frame = _request(job, number % job.partitions)
        self._offset_at = self._frame.index(_SOME_OFFSET.to_bytes(8, "big"))

    def script(self) -> Script:
        position = 0
        while not self._engine.is_over:
            _pack_offset(self._frame, self._offset_at, position)
            sent_at = time.perf_counter()
            self._connection.send(self._frame)
            reply = yield None
            assert reply is not None
            self._engine.tally.request_seconds.append(time.perf_counter() - sent_at)
            partition = _partition_in(reply)
            next_position = self._count(cast(Buffer, partition.records or b""), position)
            end = partition.last_stable_offset if self._committed else partition.high_watermark
            if next_position == position < end:
                raise RefusedError(f"Fetch returned nothing at offset {position} of {end}")
            position = 0 if next_position >= end else next_position

    def _count(self, records: Buffer, position: int) -> int:
        """Counts the batches; returns the next offset. The last batch may be incomplete."""
        data = memoryview(records)
        tally = self._engine.tally
        tally.requests += 1
        tally.value_bytes += len(data)
        start = 0
        while len(data) - start >= HEADER_BYTES:
            batch = read_header(data, start)
            if start + batch.size_bytes > len(data):
                break
            tally.records += 0 if batch.is_control else batch.record_count
            position = batch.next_offset
            start += batch.size_bytes
        return position


def _request(job: Job, partition: int) -> bytearray:
    wanted = FetchPartition(
        partition=partition, fetch_offset=_SOME_OFFSET, partition_max_bytes=MAX_BYTES
    )
    form = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=MAX_BYTES,
        isolation_level=1 if job.isolation == "read_committed" else 0,
        topics=[FetchTopic(topic=job.topic, partitions=[wanted])],
    )
    return bytearray(b"".join(encode_request(ApiKey.FETCH, VERSION, 0, CLIENT_ID, form)))


def _partition_in(reply: bytes) -> PartitionData:
    _, form = decode_response(ApiKey.FETCH, VERSION, memoryview(reply)[4:])
    code = form.error_code or form.responses[0].partitions[0].error_code
    if code:
        raise RefusedError(f"Fetch was refused: {ErrorCode(code).name} ({code})")
    partition: PartitionData = form.responses[0].partitions[0]
    return partition
