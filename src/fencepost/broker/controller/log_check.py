"""Checks the metadata log at every start, before anything in the data directory changes.

The metadata log defines which topics exist. A broker that started with a part of it would set the
folders of the other topics aside, raise leader epochs and allow their names to be used again. So
the whole log is read first, and any damage refuses the start. A torn tail is not damage: it is an
append that a crash interrupted and that was never acknowledged. A power loss may also take the
end of a segment that was just sealed, and leave the next one; recovery removes the next one then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.failures import CorruptError, WireError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from fencepost.broker.storage.folders import PARTITION_METADATA
from fencepost.log.names import LOG, file_name, offsets_with
from fencepost.log.segment.damage import Expected
from fencepost.log.segment.survey import EXAMINED_INDEX_INTERVAL_BYTES, MAX_RELATIVE_OFFSET, survey
from fencepost.records.batch import BatchError
from fencepost.records.metadata_checkpoint import checkpoint_offset, decode_checkpoint

if TYPE_CHECKING:
    from fencepost.base.seams import Disk
    from fencepost.broker.storage.layout import Layout

METADATA_LOG: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


class MetadataLogCheck:
    """One pass over the metadata log of a data directory, without changes."""

    def __init__(
        self, disk: Disk, data_folder: str, *, recovery_point: int, clean: bool, lost_power: bool
    ) -> None:
        self._disk = disk
        self._data_folder = data_folder
        self._folder: Final = f"{data_folder}/{METADATA_LOG}"
        self._recovery_point = recovery_point
        self._clean = clean
        self._lost_power = lost_power
        self.torn_bytes = 0
        """Bytes after the last complete batch, left by a crash."""

    def problems(self) -> list[str]:
        """Lists what is wrong; empty for a log that is intact, or does not exist yet."""
        if not self._disk.exists(self._folder):
            return self._absent()
        names = self._disk.list_dir(self._folder)
        bases = offsets_with(names, LOG)
        if not bases:
            return self._absent()
        found: list[str] = []
        newest = self._newest_checkpoint(names, found)
        end_offset = bases[0]
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            if base != end_offset and self._may_be_lost(end_offset):
                break  # Recovery ends the log here.
            if base != end_offset:
                found.append(f"records {end_offset} to {base - 1} are missing")
            if following is not None and following <= newest:
                end_offset = following  # The checkpoint replaces it; it was not deleted yet.
            else:
                end_offset = self._read_segment(base, following, found)
        if newest < bases[0]:
            found.append(
                f"records {newest} to {bases[0] - 1} are missing: neither the log nor a "
                "checkpoint has them"
            )
        elif newest > end_offset:
            found.append(f"it ends at {end_offset}, before its checkpoint at {newest}")
        if end_offset < self._recovery_point:
            found.append(f"it ends at {end_offset}, but was on disk up to {self._recovery_point}")
        return found

    def _may_be_lost(self, offset: int) -> bool:
        """Whether a power loss can have taken the records from an offset on."""
        return self._lost_power and not self._clean and offset >= self._recovery_point

    def _absent(self) -> list[str]:
        if self._recovery_point > 0:
            return [f"it is missing, but was on disk up to {self._recovery_point}"]
        folders = (
            entry
            for entry in self._disk.list_dir(self._data_folder)
            if not entry.endswith(("-stray", "-delete"))
        )
        owned = sum(
            self._disk.exists(f"{self._data_folder}/{entry}/{PARTITION_METADATA}")
            for entry in folders
            if entry != str(METADATA_LOG)
        )
        return [f"it is missing, but there are {owned} partitions"] if owned else []

    def _read_segment(self, base: int, following: int | None, found: list[str]) -> int:
        """Returns the offset after the segment."""
        name = file_name(base, LOG)
        file = self._disk.open(f"{self._folder}/{name}")
        try:
            size = file.size()
            expected = Expected(
                size, base + MAX_RELATIVE_OFFSET, following, self._recovery_point, self._lost_power
            )
            seen = survey(file, size, base, EXAMINED_INDEX_INTERVAL_BYTES, expected=expected)
        finally:
            file.close()
        found += [f"{name}: {damage}" for damage in seen.damage]
        torn_bytes = size - seen.size_bytes
        is_tail = not self._clean and following is None
        if torn_bytes and not (is_tail or self._may_be_lost(seen.next_offset)):
            found.append(
                f"{name}: {torn_bytes} bytes after record {seen.next_offset - 1} are not a record"
            )
        elif torn_bytes:
            self.torn_bytes = torn_bytes
        return seen.next_offset

    def _newest_checkpoint(self, names: list[str], found: list[str]) -> int:
        """The offset of the newest checkpoint; 0 without one."""
        offsets = {
            offset: name for name in names if (offset := checkpoint_offset(name)) is not None
        }
        if not offsets:
            return 0
        newest = max(offsets)
        try:
            for _ in decode_checkpoint(self._disk.read_file(f"{self._folder}/{offsets[newest]}")):
                pass
        except (BatchError, WireError) as problem:
            found.append(f"{offsets[newest]}: {problem}")
        return newest


def refuse_damaged_metadata(disk: Disk, layout: Layout) -> None:
    """Raises CorruptError if the metadata log is damaged; changes nothing."""
    check = MetadataLogCheck(
        disk,
        layout.folder,
        recovery_point=layout.recovery_point(METADATA_LOG),
        clean=layout.clean,
        lost_power=layout.lost_power,
    )
    problems = check.problems()
    if problems:
        raise CorruptError(
            f"The metadata log in {layout.folder} is damaged: {'; '.join(problems)}. Nothing "
            f"was changed. Restore {METADATA_LOG} from a backup; "
            f"`fencepost check {layout.folder}` shows details."
        )
