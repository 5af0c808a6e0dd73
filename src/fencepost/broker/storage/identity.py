"""The identity of a data directory: Kafka's meta.properties, plus the version of our format.

    version=1
    cluster.id=<22 characters>
    node.id=<number>
    directory.id=<22 characters>
    fencepost.format=1 or 2

The cluster id is drawn when the directory is created, and never changes. A directory is opened only
by the node that created it, and only in a known format: a wrong guess would overwrite data. For the
same reason a broker starts in a directory without meta.properties only if it is empty.

Format 2 is a directory that several brokers have used. Its metadata log names brokers other than
the node, and it may have the checkpoints of a cluster. A release that knows only format 1 would set
aside the folders that another broker leads, so the format never goes back to 1. The node id is that
of the first broker, which is also the id of a single broker in the same directory.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.ids import topic_id_text
from fencepost.base.seams import Disk, Randomness
from fencepost.records.text_files import decode_properties, encode_properties

FILE_NAME: Final = "meta.properties"
FILE_VERSION: Final = "1"
FORMAT_NAME: Final = "fencepost.format"
FORMAT: Final = "1"
CLUSTER_FORMAT: Final = "2"
"""Several brokers have used the directory."""

_LAST_RESERVED_ID: Final = 100
"""Kafka reserves the smallest ids; its metadata log has 1."""


class Identity(NamedTuple):
    """The ids of a data directory."""

    cluster_id: str
    node_id: int
    directory_id: str


def load_identity(disk: Disk, folder: str, node_id: int, randomness: Randomness) -> Identity:
    """Reads meta.properties, or creates it in an empty directory."""
    path = f"{folder}/{FILE_NAME}"
    if disk.exists(path):
        return _read(disk, path, node_id)
    if found := [name for name in disk.list_dir(folder) if not _may_lie_in_a_new_one(name)]:
        raise ConfigError(
            f"{folder} is not a fencepost directory: it has no {FILE_NAME}, and it is not empty "
            f"({found[0]}). Choose an empty or new directory, or restore the file if it was lost."
        )
    identity = Identity(
        topic_id_text(draw_id(randomness)), node_id, topic_id_text(draw_id(randomness))
    )
    disk.write_file(path, _encode(identity), sync=True)
    return identity


def _may_lie_in_a_new_one(name: str) -> bool:
    """Hidden files (such as our lock), a rest of a crashed first start, or a file system's own."""
    return name.startswith(".") or name in (f"{FILE_NAME}.tmp", "lost+found")


def _encode(identity: Identity) -> bytes:
    return encode_properties(
        {
            "version": FILE_VERSION,
            "cluster.id": identity.cluster_id,
            "node.id": str(identity.node_id),
            "directory.id": identity.directory_id,
            FORMAT_NAME: FORMAT,
        }
    )


def _read(disk: Disk, path: str, node_id: int) -> Identity:
    try:
        found = decode_properties(disk.read_file(path))
        identity = Identity(
            found["cluster.id"], int(found["node.id"]), found.get("directory.id", "")
        )
    except (KeyError, ValueError) as problem:
        raise ConfigError(
            f"{path} cannot be read: {problem}. It is damaged, or another program's. "
            "Restore the file, or choose another directory."
        ) from problem
    if FORMAT_NAME not in found:
        raise ConfigError(
            f"{path} was created by Apache Kafka; fencepost opens only its own directories."
        )
    is_known = found[FORMAT_NAME] in (FORMAT, CLUSTER_FORMAT)
    if not is_known or found.get("version") != FILE_VERSION:
        raise ConfigError(
            f"{path} has format {found[FORMAT_NAME]} of another version of fencepost; this version "
            f"reads formats {FORMAT} and {CLUSTER_FORMAT}."
        )
    if identity.node_id != node_id:
        raise ConfigError(
            f"{path} belongs to node {identity.node_id}, but node.id is {node_id}. "
            f"Set node.id={identity.node_id}, or choose another directory."
        )
    return identity


def raise_format(disk: Disk, folder: str) -> None:
    """Marks a directory as one that several brokers have used, before they write to it."""
    path = f"{folder}/{FILE_NAME}"
    found = decode_properties(disk.read_file(path))
    if found[FORMAT_NAME] != CLUSTER_FORMAT:
        found[FORMAT_NAME] = CLUSTER_FORMAT
        disk.write_file(path, encode_properties(found), sync=True)


def draw_id(randomness: Randomness) -> bytes:
    """A random UUID of version 4 whose text does not begin like a command-line option."""
    while True:
        drawn = bytearray(randomness.bytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        found = bytes(drawn)
        if not topic_id_text(found).startswith("-"):
            assert int.from_bytes(found, "big") > _LAST_RESERVED_ID, "a version 4 UUID is larger"
            return found
