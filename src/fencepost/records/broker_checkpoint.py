"""The checkpoint of one broker of a cluster: `broker-<id>.checkpoint` and `cluster.checkpoint`.

Kafka's directory checkpoints have one offset per partition name. In a cluster each broker saves the
partitions that it leads in its own file, so an entry also needs the leader epoch (the newest
entry counts) and the topic id (a new topic of the same name must not inherit the offsets). All
integers are big-endian:

    magic            4 bytes, "FPBC"
    version          int16, 1
    topics           int32, number of blocks
    crc              uint32, CRC-32C of the ten bytes above
    a block per topic:
        length       int32, of the block after its CRC
        crc          uint32, CRC-32C of the block after it
        topic id     16 bytes
        name length  int16
        name         UTF-8
        entries      of 33 bytes each, up to the end of the block:
            partition            int32
            leader epoch         int32
            recovery point       int64
            log start offset     int64
            first dirty offset   int64
            flags                1 byte; 1: closed cleanly and synced by the leader of that epoch

Each block has its own CRC, so that damage costs the entries of one topic and no others. A block is
decoded when the first of its entries is asked for: a broker that takes over a few partitions does
not decode 20,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

_MAGIC: Final = b"FPBC"
_VERSION: Final = 1
_HEADER: Final = Struct(">4shi")
_CRC: Final = Struct(">I")
_BLOCK: Final = Struct(">iI")
_TOPIC: Final = Struct(">16sh")
_ENTRY: Final = Struct(">iiqqqB")
_CLEAN: Final = 1


class PartitionEntry(NamedTuple):
    """The offsets of one log, saved by the leader of one epoch."""

    leader_epoch: int
    recovery_point: int
    log_start_offset: int
    first_dirty_offset: int
    is_clean: bool
    """Whether that leader closed the log cleanly, with all of it synced."""


class TopicEntries(NamedTuple):
    """The entries of one topic, by partition."""

    name: str
    partitions: Mapping[int, PartitionEntry]


def encode_topic(topic_id: bytes, topic: TopicEntries) -> bytes:
    """The block of one topic."""
    name = topic.name.encode("utf-8")
    pack = _ENTRY.pack
    body = b"".join(
        (
            _TOPIC.pack(topic_id, len(name)),
            name,
            *[
                pack(index, epoch, point, start, dirty, _CLEAN if is_clean else 0)
                for index, (epoch, point, start, dirty, is_clean) in topic.partitions.items()
            ],
        )
    )
    return _BLOCK.pack(len(body), crc32c(body)) + body


def encode_broker_checkpoint(blocks: Iterable[bytes]) -> bytes:
    """A file of the blocks that `encode_topic` has returned."""
    parts = list(blocks)
    header = _HEADER.pack(_MAGIC, _VERSION, len(parts))
    return b"".join((header, _CRC.pack(crc32c(header)), *parts))


class BrokerCheckpoint:
    """A decoded file; `problems` says what is damaged, and the rest can be used."""

    __slots__ = ("_bodies", "_decoded", "is_readable", "problems")

    def __init__(self, data: bytes | None = None) -> None:
        """Without data: the file does not exist."""
        self._bodies: dict[bytes, bytes] = {}
        self._decoded: dict[bytes, TopicEntries] = {}
        self.problems: list[str] = []
        self.is_readable = False
        """Whether the file is there and its header is not damaged."""
        if data is not None:
            self._read_blocks(data)

    def _read_blocks(self, data: bytes) -> None:
        start = _HEADER.size + _CRC.size
        if len(data) < start or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(
            data[: _HEADER.size]
        ):
            self.problems.append("its header is damaged")
            return
        magic, version, count = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            self.problems.append(f"it has version {version}, of another fencepost version")
            return
        self.is_readable = True
        position = start
        for number in range(count):
            if position + _BLOCK.size > len(data):
                self.problems.append(f"it ends after {number} of {count} topics")
                return
            length, crc = _BLOCK.unpack_from(data, position)
            body = data[position + _BLOCK.size : position + _BLOCK.size + max(0, length)]
            position += _BLOCK.size + max(0, length)
            if length < _TOPIC.size or len(body) < length or crc32c(body) != crc:
                # If the length is wrong, the next blocks fail too: no wrong entry is used.
                self.problems.append(f"topic {number + 1} of {count} is damaged")
            else:
                self._bodies[body[:16]] = body

    def topic(self, topic_id: bytes) -> TopicEntries | None:
        """The entries of a topic."""
        found = self._decoded.get(topic_id)
        if found is None and (body := self._bodies.get(topic_id)) is not None:
            found = self._decoded[topic_id] = _decode_topic(body)
        return found

    def entry(self, topic_id: bytes, partition: int) -> PartitionEntry | None:
        """The entry of a partition."""
        found = self.topic(topic_id)
        return None if found is None else found.partitions.get(partition)

    def topics(self) -> Iterator[tuple[bytes, TopicEntries]]:
        """All topics, with their ids."""
        for topic_id in self._bodies:
            found = self.topic(topic_id)
            assert found is not None, "every block can be decoded"
            yield topic_id, found


def _decode_topic(body: bytes) -> TopicEntries:
    length = _TOPIC.unpack_from(body)[1]
    first = _TOPIC.size + length
    # No bytes follow the last whole entry: the CRC matches what this module wrote.
    end = first + (len(body) - first) // _ENTRY.size * _ENTRY.size
    return TopicEntries(
        body[_TOPIC.size : first].decode("utf-8", "replace"),
        {
            index: PartitionEntry(epoch, point, start, dirty, flags & _CLEAN != 0)
            for index, epoch, point, start, dirty, flags in _ENTRY.iter_unpack(body[first:end])
        },
    )


def newest(entries: Iterable[PartitionEntry | None]) -> PartitionEntry | None:
    """The entry with the highest leader epoch; of several, the last; None without any.

    Its log start offset is the highest of all: a log never starts earlier again, so a damaged or
    outdated entry cannot bring back records that DeleteRecords has removed.
    """
    best: PartitionEntry | None = None
    start = 0
    for entry in entries:
        if entry is not None:
            start = max(start, entry.log_start_offset)
            if best is None or entry.leader_epoch >= best.leader_epoch:
                best = entry
    return None if best is None else best._replace(log_start_offset=start)
