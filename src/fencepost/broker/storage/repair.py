"""`fencepost repair`: replaces the damaged batches of one partition, so that the rest is readable.

Theory of operation. The broker is stopped, and the operator has accepted the loss of unreadable
records. Each damaged range is replaced by an empty batch that covers the same offsets, as
compaction leaves them: readers skip it, and no offset is used twice. If only the fields outside the
CRC are damaged (offset, length, magic, leader epoch), they are corrected and nothing is lost.
Missing files become empty batches too, and so do batches whose records cannot be read
(`log/segment/record_check.py`).

The damaged file is kept as `.log.damaged`. The repaired file replaces the original with one rename.
A repair that dies has repaired some files and left the others; a second one does the rest.

A transaction coordinator must learn that its log lost records (`LOSS`): the state of an id may be
outdated or missing. The next start aborts every open transaction of that partition and gives each
id a new producer id (`transactions/reconciliation.py`), so that older producers are fenced. If a
checkpoint covers the lost records, nothing is lost. A group coordinator must learn it as well:
offsets whose marker is lost would stay pending for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.base.failures import ConfigError
from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.base.seams import Disk, File
from fencepost.broker.storage.folders import PARTITION_METADATA
from fencepost.broker.storage.known_ends import known_ends
from fencepost.broker.storage.layout import Layout
from fencepost.log.durability import sync_names
from fencepost.log.names import INDEX, LEADER_EPOCHS, LOG, TIME_INDEX, file_name, offsets_with
from fencepost.log.recovery import TEMPORARY, tidy_folder
from fencepost.log.segment.damage import Damage
from fencepost.log.segment.record_check import RecordCheck
from fencepost.log.segment.survey import SCAN_BYTES, examine
from fencepost.log.segment.wrong_epochs import (
    EpochRun,
    WrongEpoch,
    find_wrong,
    rising,
    with_right_epochs,
)
from fencepost.records.batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    PLACE_FIELDS,
    SEALED_FIELDS,
)
from fencepost.records.builder import empty_batch
from fencepost.records.coordinator_checkpoint import FILE_NAME, decode_checkpoint
from fencepost.records.saved_point import FILE_NAME as SAVED_POINT
from fencepost.records.text_files import EpochEntry, decode_epochs

LOSS: Final = "loss-accepted"
"""A file in the folder of a coordinator's log, removed by the start that handles the loss."""
DAMAGED: Final = ".damaged"
REPAIRED: Final = ".repaired"


class Repaired(NamedTuple):
    """One damaged range, and whether its records are lost."""

    file: str
    first_offset: int
    end_offset: int
    is_lost: bool


class _Plan(NamedTuple):
    """What is wrong with one segment."""

    base: int
    damage: list[Damage]
    """In the order of the file, with the batches whose records cannot be read."""
    unreadable: frozenset[Damage]
    """Those of them whose bytes are as they were written."""
    epochs: list[EpochRun]
    end_offset: int


class Repair:
    """One pass over one partition of a stopped directory."""

    def __init__(self, disk: Disk, folder: str, name: TopicPartition) -> None:
        if name.topic == CLUSTER_METADATA_TOPIC:
            raise ConfigError(
                "The metadata log cannot be repaired: with a part of it, the broker would lose "
                f"topics. Restore {name} from a copy."
            )
        self._disk = disk
        self._name = name
        self._folder: Final = f"{folder}/{name}"
        if not disk.exists(f"{self._folder}/{PARTITION_METADATA}"):
            raise ConfigError(f"{folder} has no partition {name}.")
        layout = Layout(disk, folder)
        layout.load()
        saved = layout.saved_of_folder(name)
        self._known_start = saved.log_start_offset
        ends = [saved.recovery_point]
        if not layout.lost_power:
            ends += [end for end, _ in known_ends(disk, self._folder)]
        self._known_end = max(ends)

    def run(self) -> list[Repaired]:
        """Repairs the partition; after an error the file that was being repaired is unchanged."""
        tidy_folder(self._disk, self._folder)
        bases = offsets_with(self._disk.list_dir(self._folder), LOG)
        plans = [
            self._plan(base, after) for base, after in zip(bases, [*bases[1:], None], strict=False)
        ]
        runs = [each for plan in plans for each in plan.damage]
        if not bases or (self._name.topic in INTERNAL_TOPICS and bases[0] > self._known_start):
            # Compaction never removes the beginning of a log.
            end = bases[0] if bases else max(self._known_start, self._known_end)
            first = Damage(0, 0, self._known_start, end)
            if end > self._known_start:
                plans.insert(0, _Plan(self._known_start, [first], frozenset(), [], end))
                runs.insert(0, first)
        self._note_loss(runs)
        all_epochs = list(chain.from_iterable(plan.epochs for plan in plans))
        end_offset = plans[-1].end_offset if plans else 0
        epochs = [EpochEntry(*run) for run in rising(all_epochs, end_offset)]
        return list(chain.from_iterable(self._rewrite(plan, epochs) for plan in plans))

    def _known_epochs(self) -> list[EpochEntry]:
        """The file of leader epochs; nothing if it cannot be read."""
        try:
            return decode_epochs(self._disk.read_file(f"{self._folder}/{LEADER_EPOCHS}"))
        except (FileNotFoundError, ValueError):
            return []

    def _plan(self, base: int, following: int | None) -> _Plan:
        file = self._disk.open(self._path(base))
        records = RecordCheck()
        try:
            size = file.size()
            found = examine(file, size, base, following, records.look)
        finally:
            file.close()
        unreadable = frozenset(each.place for each in records.found(found.damage))
        damage = sorted([*found.damage, *unreadable])
        if following is None and found.next_offset < self._known_end:
            damage.append(Damage(found.size_bytes, size, found.next_offset, self._known_end))
        return _Plan(base, damage, unreadable, found.epochs, found.next_offset)

    def _path(self, base: int, suffix: str = LOG) -> str:
        return f"{self._folder}/{file_name(base, suffix)}"

    def _note_loss(self, runs: list[Damage]) -> None:
        """Writes `LOSS` before the first file is replaced: a repaired log looks complete."""
        if self._name.topic not in INTERNAL_TOPICS or not runs:
            return
        saved = 0
        path = f"{self._folder}/{FILE_NAME}"
        if self._name.topic == TRANSACTION_STATE_TOPIC and self._disk.exists(path):
            checkpoint = decode_checkpoint(self._disk.read_file(path))
            saved = 0 if checkpoint is None else checkpoint[0]
        if any(each.end_offset > saved for each in runs):
            self._disk.write_file(f"{self._folder}/{LOSS}", b"", sync=True)

    # -- one segment
    # --------------------------------------------------------------------------------------

    def _rewrite(self, plan: _Plan, epochs: Sequence[EpochEntry]) -> Iterator[Repaired]:
        """Replaces a segment, if anything in it is wrong; `epochs` are those of the batches."""
        path = self._path(plan.base)
        wrong = find_wrong(plan.epochs, plan.end_offset, self._known_epochs())
        if not plan.damage and not wrong:
            return
        for each in wrong:
            yield Repaired(path, each.first_offset, each.end_offset, is_lost=False)
        source = self._disk.open(path) if self._disk.exists(path) else None
        try:
            if source is not None:
                self._keep(source, path)
            self._disk.remove(path + REPAIRED)
            target = self._disk.open(path + REPAIRED, create=True)
            try:
                position = 0
                for damage in plan.damage:
                    _copy(source, position, damage.position, target, wrong)
                    mended = None
                    if source is not None and damage not in plan.unreadable:
                        mended = _mend(source, damage)
                    epoch = _epoch_at(epochs, damage.first_offset)
                    filler = empty_batch(damage.first_offset, damage.end_offset, epoch)
                    target.append((mended or filler,))
                    position = damage.end
                    yield Repaired(path, damage.first_offset, damage.end_offset, mended is None)
                _copy(source, position, 0 if source is None else source.size(), target, wrong)
                target.sync()
            except OSError:
                self._drop(path + REPAIRED)
                raise
            finally:
                target.close()
        finally:
            if source is not None:
                source.close()
        # They have positions in the old file, and are rebuilt when they are needed.
        self._disk.remove(self._path(plan.base, INDEX))
        self._disk.remove(self._path(plan.base, TIME_INDEX))
        self._disk.remove(f"{self._folder}/{SAVED_POINT}")
        self._disk.rename(path + REPAIRED, path)
        sync_names(self._disk, self._folder)

    def _keep(self, source: File, path: str) -> None:
        """Keeps a copy of the damaged file, from which more might be recovered by hand."""
        number, kept = 1, path + DAMAGED
        while self._disk.exists(kept):
            number += 1
            kept = f"{path}{DAMAGED}.{number}"
        self._disk.remove(kept + TEMPORARY)
        copy = self._disk.open(kept + TEMPORARY, create=True)
        try:
            _copy(source, 0, source.size(), copy, ())
            copy.sync()
        except OSError:
            self._drop(kept + TEMPORARY)
            raise
        finally:
            copy.close()
        self._disk.rename(kept + TEMPORARY, kept)
        sync_names(self._disk, self._folder)

    def _drop(self, path: str) -> None:
        """Removes a new file that could not be written; the old one stays."""
        with contextlib.suppress(OSError):
            self._disk.remove(path)


def _epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    """The leader epoch of the last batch before an offset: epochs must not decrease in a log."""
    return max((entry.epoch for entry in epochs if entry.start_offset < offset), default=0)


def _copy(
    source: File | None, start: int, end: int, target: File, wrong: Sequence[WrongEpoch]
) -> None:
    """Copies bytes; with `wrong` whole batches, whose leader epochs are corrected."""
    while source is not None and start < end:
        count = min(SCAN_BYTES, end - start)
        if wrong:
            count = _whole_batches(source, start, end)
        chunk = source.read(start, count)
        target.append((with_right_epochs(chunk, wrong) if wrong else chunk,))
        start += count


def _whole_batches(source: File, start: int, end: int) -> int:
    """The size of the batches at a position, up to about a chunk; torn bytes count as one."""
    chunk = source.read(start, min(SCAN_BYTES, end - start))
    size = 0
    while size + HEADER_BYTES <= len(chunk):
        length = PLACE_FIELDS.unpack_from(chunk, size)[1] + LOG_OVERHEAD_BYTES
        if length < HEADER_BYTES or (size and size + length > len(chunk)):
            break
        size += length
    return min(size or len(chunk), end - start)


def _mend(source: File, damage: Damage) -> bytes | None:
    """The batch with corrected fields, if all that its CRC covers is intact; else None."""
    data = bytearray(source.read(damage.position, damage.end - damage.position))
    if len(data) < HEADER_BYTES:
        return None
    _, _, epoch, _, crc = PLACE_FIELDS.unpack_from(data)
    delta = SEALED_FIELDS.unpack_from(data, CRC_START)[1]
    if delta + 1 != damage.end_offset - damage.first_offset:
        return None
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        return None
    PLACE_FIELDS.pack_into(
        data, 0, damage.first_offset, len(data) - LOG_OVERHEAD_BYTES, epoch, MAGIC, crc
    )
    return bytes(data)
