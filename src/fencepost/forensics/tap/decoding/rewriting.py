"""Replaces the addresses in a reply, without encoding it again.

Only the host names, the ports, and the sizes around them change: the size of a tagged field (node
endpoints of Produce and Fetch) and of the frame. All other bytes are copied as they are, so fields
that we do not know survive.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.seams import Buffer
from fencepost.forensics.tap.decoding.walk import Spot, TagSize

Translate = Callable[[str, int, int], tuple[str, int]]
"""Host, port and node id of a broker -> host and port under which the client shall reach it."""

HIDDEN_TAG: Final = 127
"""A tag that no message of Kafka has: receivers skip it."""

_SIZE: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")

_Edit = tuple[int, int, bytes]
"""Start, end, and the new bytes between them."""


def rewrite(frame: Buffer, spots: Sequence[Spot], base: int, translate: Translate) -> bytes:
    """Returns a frame (with its size) in which every address is translated.

    The positions of the spots count from `base`.
    """
    edits: list[_Edit] = []
    grown: dict[TagSize, int] = {}
    for spot in spots:
        if not spot.host or spot.port <= 0:
            continue  # No broker: the coordinator is not known yet, for instance.
        host, port = translate(spot.host, spot.port, spot.node_id)
        name = _string(host, spot.compact)
        edits.append((spot.start, spot.end, name))
        port_bytes = struct.pack(">" + spot.port_code, port)
        edits.append((spot.port_start, spot.port_start + len(port_bytes), port_bytes))
        if spot.tag is not None:
            growth = len(name) - (spot.end - spot.start)
            grown[spot.tag] = grown.get(spot.tag, 0) + growth
    edits += [(tag.start, tag.end, varint(tag.size + growth)) for tag, growth in grown.items()]
    return _apply(frame, sorted(edits), base)


def _apply(frame: Buffer, edits: Sequence[_Edit], base: int) -> bytes:
    out = bytearray()
    position = 0
    for start, end, new in edits:
        out += frame[position : base + start]
        out += new
        position = base + end
    out += frame[position:]
    _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
    return bytes(out)


def _string(text: str, compact: bool) -> bytes:
    data = text.encode()
    return (varint(len(data) + 1) if compact else _INT16.pack(len(data))) + data


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
