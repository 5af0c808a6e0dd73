"""`fencepost check`: reads every file of a stopped data directory and changes nothing.

A `Finding` names a file, its problem and what to do. What is not damage (a torn tail that the next
start truncates, a folder that was set aside) is reported as a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from fencepost.base.ids import INTERNAL_TOPICS, TopicPartition
from fencepost.base.seams import Disk
from fencepost.broker.controller.log_check import METADATA_LOG, MetadataLogCheck
from fencepost.broker.storage.cluster_checkpoints import CLUSTER, broker_files
from fencepost.broker.storage.folders import PARTITION_METADATA
from fencepost.broker.storage.identity import FILE_NAME
from fencepost.broker.storage.known_ends import known_ends
from fencepost.broker.storage.layout import FIRST_DIRTY, LOG_STARTS, RECOVERY_POINTS, Layout
from fencepost.log.names import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offsets_with,
)
from fencepost.log.segment.index import SegmentIndex
from fencepost.log.segment.record_check import LISTED, RecordCheck
from fencepost.log.segment.survey import Survey, examine
from fencepost.log.segment.wrong_epochs import EpochRun, find_wrong
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.records.broker_checkpoint import BrokerCheckpoint
from fencepost.records.control import read_marker
from fencepost.records.coordinator_checkpoint import FILE_NAME as CHECKPOINT
from fencepost.records.coordinator_checkpoint import decode_checkpoint
from fencepost.records.index import decode_aborted_txns
from fencepost.records.saved_point import FILE_NAME as SAVED_POINT
from fencepost.records.saved_point import decode_point
from fencepost.records.snapshot import decode_snapshot
from fencepost.records.text_files import (
    EpochEntry,
    decode_epochs,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
)

RESTORE: Final = (
    "restore it from a copy, or accept the loss with `fencepost repair`; until then its readers "
    "get CORRUPT_MESSAGE, and everything else is served"
)
RESTORE_COORDINATOR: Final = (
    "restore it from a copy, or accept the loss with `fencepost repair`; until then its "
    "transactional ids or groups get COORDINATOR_NOT_AVAILABLE, unless a checkpoint covers the "
    "damage, and everything else is served"
)
SKIP: Final = (
    "move the groups that stop there past them (`fencepost group reset`), or remove them with "
    "`fencepost repair`; until then they are served as they are"
)
DELETE: Final = "delete it: it is rebuilt from the log"
CORRECT_EPOCH: Final = (
    "correct it with `fencepost repair`; until then they are served with the right epoch, and "
    "nothing is lost"
)


class Finding(NamedTuple):
    """One problem or note about one file."""

    file: str
    problem: str
    advice: str
    is_damage: bool = True


class DirectoryCheck:
    """The check of one directory, which no broker may be using."""

    def __init__(self, disk: Disk, folder: str, progress: Callable[[str], None]) -> None:
        self._disk = disk
        self._folder = folder
        self._progress = progress
        self._layout = Layout(disk, folder)
        self.partitions = 0
        self.bytes_read = 0

    def run(self) -> Iterator[Finding]:
        """Yields findings, file by file."""
        yield from self._check_files()
        self._layout.load()
        yield from self._check_metadata_log()
        entries = self._disk.list_dir(self._folder)
        for number, entry in enumerate(entries, 1):
            if entry.endswith("-delete"):
                yield self._note(
                    entry,
                    "belongs to a deleted partition",
                    "nothing: the next start removes it",
                )
            elif entry.endswith("-stray"):
                yield self._note(
                    entry, "was set aside: it belongs to no topic", "delete it, or keep it"
                )
            elif self._disk.exists(f"{self._folder}/{entry}/{PARTITION_METADATA}"):
                self._progress(f"{entry} ({number} of {len(entries)})")
                yield from self._check_partition(entry)

    def _note(self, file: str, problem: str, advice: str) -> Finding:
        return Finding(file, problem, advice, is_damage=False)

    def _read(self, file: str) -> bytes | None:
        try:
            data = self._disk.read_file(f"{self._folder}/{file}")
        except FileNotFoundError:
            return None
        self.bytes_read += len(data)
        return data

    def _decode(
        self, file: str, decode: Callable[[bytes], object], advice: str
    ) -> Iterator[Finding]:
        data = self._read(file)
        if data is None:
            return
        try:
            decode(data)
        except (ValueError, KeyError) as problem:
            yield Finding(file, f"cannot be read: {problem}", advice)

    def _check_files(self) -> Iterator[Finding]:
        lost = "restore it: without it the broker does not start"
        if self._read(FILE_NAME) is None:
            yield Finding(FILE_NAME, "is missing", lost)
        yield from self._decode(FILE_NAME, lambda d: decode_properties(d)["cluster.id"], lost)
        for name in (RECOVERY_POINTS, FIRST_DIRTY):
            yield from self._decode(
                name, decode_offsets, "delete it: the next start reads all logs"
            )
        yield from self._decode(
            LOG_STARTS,
            decode_offsets,
            "delete it: records that DeleteRecords removed become readable again",
        )
        yield from self._check_cluster_files()

    def _check_cluster_files(self) -> Iterator[Finding]:
        """The checkpoints of several brokers, if they used the directory last."""
        is_merged = not self._disk.exists(f"{self._folder}/{CLUSTER}")
        for name in ([] if is_merged else [CLUSTER]) + broker_files(self._disk, self._folder):
            if is_merged or not name.endswith(".checkpoint"):
                yield self._note(name, "is a remain of a cluster", "nothing: it is not read")
                continue
            problems = BrokerCheckpoint(self._read(name)).problems
            for problem in problems:
                yield Finding(
                    name,
                    f"cannot be read in full: {problem}",
                    "restore it from a copy, or start without it: the start reads more of the "
                    "logs, and records that DeleteRecords removed may be readable again",
                )
            if not problems:
                yield self._note(
                    name,
                    "has offsets of a cluster that was not stopped cleanly",
                    "nothing: the next start, with one broker or several, uses them",
                )

    def _check_metadata_log(self) -> Iterator[Finding]:
        layout = self._layout
        check = MetadataLogCheck(
            self._disk,
            self._folder,
            recovery_point=layout.recovery_point(METADATA_LOG),
            clean=layout.clean,
            lost_power=layout.lost_power,
        )
        for problem in check.problems():
            yield Finding(
                str(METADATA_LOG),
                problem,
                "restore the folder from a copy: the broker does not start",
            )
        if check.torn_bytes:
            yield self._note(
                str(METADATA_LOG), f"has a torn tail of {check.torn_bytes} bytes", _CUT
            )

    # -- partitions
    # ---------------------------------------------------------------------------------------

    def _check_partition(self, entry: str) -> Iterator[Finding]:
        self.partitions += 1
        names = self._disk.list_dir(f"{self._folder}/{entry}")
        is_metadata = entry == str(METADATA_LOG)
        yield from self._decode(
            f"{entry}/{PARTITION_METADATA}", decode_partition_metadata, "restore it from a copy"
        )
        yield from self._decode(f"{entry}/{LEADER_EPOCHS}", decode_epochs, DELETE)
        epochs = self._leader_epochs(entry)
        for offset in offsets_with(names, SNAPSHOT):
            path = f"{entry}/{file_name(offset, SNAPSHOT)}"
            yield from self._decode(path, decode_snapshot, "delete it: an older one is used")
        for name, decode in _OPTIONAL_FILES:
            yield from self._decode(
                f"{entry}/{name}", partial(_decode_whole, decode), "delete it: the log is read"
            )
        bases = offsets_with(names, LOG)
        end_offset = 0
        yield from self._check_start(entry, bases)
        for base, following in zip(bases, [*bases[1:], None][: len(bases)], strict=True):
            segment = SegmentCheck(self._disk, self._folder, entry, base, following)
            for finding in segment.run(
                is_internal=entry.rpartition("-")[0] in INTERNAL_TOPICS,
                # After a crash the indexes of the active segment are from an earlier stop.
                has_indexes=following is not None or self._layout.clean,
            ):
                if not (is_metadata and finding.file.endswith(LOG)):  # Reported already.
                    yield finding
            for wrong in find_wrong(segment.epochs, segment.end_offset, epochs):
                yield Finding(f"{entry}/{file_name(base, LOG)}", str(wrong), CORRECT_EPOCH)
            self.bytes_read += segment.size_bytes
            end_offset = segment.end_offset
        yield from self._check_end(entry, end_offset)

    def _leader_epochs(self, entry: str) -> list[EpochEntry]:
        """The entries of a partition's file; none if it cannot be read."""
        try:
            return decode_epochs(self._read(f"{entry}/{LEADER_EPOCHS}") or b"")
        except ValueError:
            return []

    def _check_start(self, entry: str, bases: list[int]) -> Iterator[Finding]:
        topic, _, index = entry.rpartition("-")
        known = self._layout.saved_of_folder(TopicPartition(topic, int(index))).log_start_offset
        # Internal topics are only compacted, and compaction never removes the beginning of a log.
        if topic in INTERNAL_TOPICS and bases and bases[0] > known:
            problem = f"begins at offset {bases[0]} instead of {known}"
            yield Finding(entry, problem, RESTORE_COORDINATOR)

    def _check_end(self, entry: str, end_offset: int) -> Iterator[Finding]:
        """Whether the log ends where its last batch was written, as far as other files know."""
        if entry == str(METADATA_LOG):
            return
        topic, _, index = entry.rpartition("-")
        saved = self._layout.saved_of_folder(TopicPartition(topic, int(index)))
        known = [(saved.recovery_point, "was synced up to")]
        if not self._layout.lost_power:  # Else the log may have lost more than they have.
            known += known_ends(self._disk, f"{self._folder}/{entry}")
        offset, says = max(known)
        if end_offset < offset:
            yield Finding(
                entry,
                f"ends at offset {end_offset}, but {says} {offset}",
                "restore it from a copy, or accept the loss with `fencepost repair`",
            )


_CUT: Final = "nothing: the next start truncates it"

_OPTIONAL_FILES: Final[tuple[tuple[str, Callable[[bytes], object]], ...]] = (
    (CHECKPOINT, decode_checkpoint),
    (SAVED_POINT, decode_point),
)
"""Files that save time at a start, and what decodes them."""


def _decode_whole(decode: Callable[[bytes], object], data: bytes) -> None:
    if decode(data) is None:
        raise ValueError("the CRC is wrong")


class SegmentCheck:
    """One segment and the files beside it."""

    def __init__(
        self, disk: Disk, folder: str, entry: str, base: int, following: int | None
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._entry = entry
        self._base = base
        self._following = following
        self._aborted: set[int] = set()
        self._records = RecordCheck()
        self.size_bytes = 0
        self.end_offset = base
        self.epochs: list[EpochRun] = []

    def _name(self, suffix: str) -> str:
        return f"{self._entry}/{file_name(self._base, suffix)}"

    def run(self, *, is_internal: bool, has_indexes: bool) -> Iterator[Finding]:
        """Yields the findings of the segment."""
        name = self._name(LOG)
        file = self._disk.open(f"{self._folder}/{name}")
        try:
            self.size_bytes = file.size()
            found = examine(
                file,
                self.size_bytes,
                self._base,
                self._following,
                self._look,
            )
            self.end_offset = found.next_offset
            self.epochs = found.epochs
            advice = RESTORE_COORDINATOR if is_internal else RESTORE
            for damage in found.damage:
                yield Finding(name, str(damage), advice)
            torn_bytes = self.size_bytes - found.size_bytes
            if torn_bytes:
                problem = (
                    f"has a torn tail of {torn_bytes} bytes after offset {found.next_offset - 1}"
                )
                yield Finding(name, problem, _CUT, is_damage=False)
            unreadable = self._records.found(found.damage)
            advice = RESTORE_COORDINATOR if is_internal else SKIP
            for each in unreadable[:LISTED]:
                yield Finding(name, str(each), advice)
            if len(unreadable) > LISTED:
                problem = f"has {len(unreadable) - LISTED} more batches with unreadable records"
                yield Finding(name, problem, advice)
            if has_indexes:
                yield from self._check_index(file.read, found)
        finally:
            file.close()
        yield from self._check_aborted(found)

    def _look(self, batch: SealedBatch, position: int) -> None:
        self._records.look(batch, position)
        if batch.is_control and batch.record_count:
            with suppress(BatchError):  # Noted above.
                marker = read_marker(batch)
                if marker is not None and not marker.commit:
                    self._aborted.add(batch.base_offset)

    def _check_index(self, read: Callable[[int, int], bytes], found: Survey) -> Iterator[Finding]:
        name = self._name(INDEX)
        try:
            index = SegmentIndex.decode(
                self._disk.read_file(f"{self._folder}/{name}"),
                self._disk.read_file(f"{self._folder}/{self._name(TIME_INDEX)}"),
                self.size_bytes,
            )
        except FileNotFoundError:
            return  # The active segment has none after a crash, and a small log never has one.
        except ValueError as problem:
            yield Finding(name, f"does not match its segment: {problem}", DELETE)
            return
        for offset, position in zip(index.offsets, index.positions, strict=True):
            if position >= found.size_bytes or any(
                damage.position <= position < damage.end for damage in found.damage
            ):
                continue
            try:
                last_offset = read_header(read(position, HEADER_BYTES)).last_offset
            except BatchError:
                last_offset = -1
            if last_offset != offset + self._base:
                text = f"has the wrong position {position} for offset {offset + self._base}"
                yield Finding(name, text, DELETE)
                return
        if index.newest()[0] != found.max_timestamp:
            text = (
                f"has the largest timestamp {index.newest()[0]}; the log has {found.max_timestamp}"
            )
            yield Finding(self._name(TIME_INDEX), text, DELETE)

    def _check_aborted(self, found: Survey) -> Iterator[Finding]:
        name = self._name(TXN_INDEX)
        advice = "restore it from a copy, or start the broker: it is rebuilt from the log when read"
        try:
            aborted = decode_aborted_txns(self._disk.read_file(f"{self._folder}/{name}"))
        except FileNotFoundError:
            return
        except (ValueError, IsADirectoryError, PermissionError) as problem:
            yield Finding(name, f"cannot be read: {problem}", advice)
            return
        for txn in aborted:
            if txn.last_offset not in self._aborted and not found.damage:
                text = f"lists an abort at offset {txn.last_offset}, where there is none"
                yield Finding(name, text, advice)
                return
