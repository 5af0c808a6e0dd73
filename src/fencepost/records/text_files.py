"""Kafka's small text files: checkpoints, `partition.metadata` and `meta.properties`.

A checkpoint is a version, a count and that many lines. `leader-epoch-checkpoint` has lines of
"epoch startOffset"; `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint` and their
like have "topic partition offset". Unreadable content raises ValueError; the caller adds the file's
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fencepost.base.ids import TopicId, TopicPartition, parse_topic_id, topic_id_text

_VERSION: Final = 0


class EpochEntry(NamedTuple):
    """A leader epoch and its first offset."""

    epoch: int
    start_offset: int


def _encode_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode("utf-8")


def _decode_lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8").splitlines()
    if not lines:
        return []  # As in Kafka: the file was created and never written.
    if int(lines[0]) != _VERSION:
        raise ValueError(f"a checkpoint of version {lines[0]}")
    if len(lines) < 2:
        return []
    if int(lines[1]) != len(lines) - 2:
        raise ValueError(f"a checkpoint of {lines[1]} lines has {len(lines) - 2}")
    return lines[2:]


def encode_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The content of `leader-epoch-checkpoint`."""
    return _encode_lines([f"{entry.epoch} {entry.start_offset}" for entry in entries])


def decode_epochs(data: bytes) -> list[EpochEntry]:
    """The entries of `leader-epoch-checkpoint`."""
    entries: list[EpochEntry] = []
    for line in _decode_lines(data):
        epoch, start_offset = line.split()
        entries.append(EpochEntry(int(epoch), int(start_offset)))
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The content of a checkpoint with one offset per partition."""
    return _encode_lines(
        [f"{name.topic} {name.partition} {offset}" for name, offset in sorted(offsets.items())]
    )


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint."""
    offsets: dict[TopicPartition, int] = {}
    for line in _decode_lines(data):
        topic, partition, offset = line.split()
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """The content of `partition.metadata`; Kafka ends it without a newline."""
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> TopicId:
    """The topic id in `partition.metadata`."""
    fields = dict(_split_line(line, ":") for line in data.decode("utf-8").splitlines())
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("not a partition.metadata file of version 0")
    return parse_topic_id(fields["topic_id"])


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The content of `meta.properties`, without the date that Java writes above it."""
    return "".join(f"{name}={value}\n" for name, value in properties.items()).encode("utf-8")


def decode_properties(data: bytes) -> dict[str, str]:
    """The lines name=value of `meta.properties`; comments and empty lines are skipped."""
    lines = (line.strip() for line in data.decode("utf-8").splitlines())
    return dict(_split_line(line, "=") for line in lines if line and line[0] not in "#!")


def _split_line(line: str, separator: str) -> tuple[str, str]:
    name, found, value = line.partition(separator)
    if not found:
        raise ValueError(f"{line!r} has no {separator!r}")
    return name.strip(), value.strip()
