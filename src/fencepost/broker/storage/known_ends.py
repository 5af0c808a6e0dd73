"""Where a log once ended, as the files beside it know.

A log that lacks whole batches at its end passes every check of its bytes. But snapshots, the saved
point, the checkpoint of a coordinator and the offset index were written at offsets that the log had
reached. After a power loss that proves nothing: the log may have lost more than they have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fencepost.base.seams import Disk
from fencepost.log.names import INDEX, SNAPSHOT, file_name, offsets_with
from fencepost.records import coordinator_checkpoint, saved_point
from fencepost.records.index import decode_offset_index


def known_ends(disk: Disk, folder: str) -> Iterator[tuple[int, str]]:
    """Offsets that the log of a folder has reached, and the files that say so."""
    names = disk.list_dir(folder)
    for offset in offsets_with(names, SNAPSHOT):
        yield offset, f"{file_name(offset, SNAPSHOT)} was written at"
    if saved_point.FILE_NAME in names:
        point = saved_point.decode_point(disk.read_file(f"{folder}/{saved_point.FILE_NAME}"))
        if point is not None:
            yield point.segment.offset, f"{saved_point.FILE_NAME} was written at"
    name = coordinator_checkpoint.FILE_NAME
    if name in names:
        checkpoint = coordinator_checkpoint.decode_checkpoint(disk.read_file(f"{folder}/{name}"))
        if checkpoint is not None:
            yield checkpoint[0], f"{name} was written at"
    for base in offsets_with(names, INDEX)[-1:]:
        name = file_name(base, INDEX)
        with contextlib.suppress(ValueError):
            offsets, _ = decode_offset_index(disk.read_file(f"{folder}/{name}"))
            if offsets:
                yield base + offsets[-1] + 1, f"{name} goes up to"
