"""A log: an ordered run of segments in one folder, in Kafka's format byte for byte.

    topic-0/00000000000000000000.log            batches, one after the other
            00000000000000000000.index          every few KB: offset -> position
            00000000000000000000.timeindex      every few KB: newest time so far -> offset
            00000000000000000000.txnindex       aborted transactions, only where there are any
            00000000000000004711.log            the next segment; only the last one, active, grows
            00000000000000004711.snapshot       producers as of that offset
            leader-epoch-checkpoint, partition.metadata

Where to look:

    log.py           append, roll and read; everything else passes through it
    roll.py          when a batch begins a new segment
    segment_list.py  which segment has an offset
    segment/         one segment: its file, its indexes, its reads, its damage
    scan.py          batches and records from an offset to the end
    times.py         offsets by timestamp
    durability.py    what must be synced, and the recovery point
    retention.py     which segments are too old, and their removal
    compaction.py    a round of compaction; cleaning.py decides what it keeps of each batch
    swap.py          how a compacted segment replaces others
    opening.py       builds a log from its folder
    recovery.py      which segments a crash has left, and where they end
    epochs.py        leader epochs
    snapshots.py     the files with the producers
    config.py        the settings of a topic; names.py: the names of the files

Theory of operation.
- One writer, no locks: the loop that owns the partition makes all calls. Only `PendingSync.run` may
  run in another thread.
- An append is one write of a sealed batch. The log end offset moves when all bytes are written. A
  write that failed is cut off again before the next append. So no offset is used twice, and no
  reader gets half a batch.
- The index of the active segment is in memory. It is written when the segment is sealed and, unless
  the whole log is small, when the log is closed. After a crash, the scan that looks for a torn tail
  rebuilds it.
- Everything below the recovery point was synced: batches, indexes, snapshots, leader epochs and
  file names. A crash can harm only what is above. The recovery point moves with every sync, and
  when a sealed segment has been flushed in the background (`prepare_flush`). An append never waits
  for a sync. A clean open reads the first header of the active segment and the headers after its
  last index entry; all of it if it is small.
- Bytes that fail their check are a torn tail, which is cut off, or damage, which is kept
  (`segment/damage.py`). A reader of a damaged batch gets an error; other readers skip it.
- Memory stays right when a disk call fails once: an aborted transaction that could not be indexed
  is written later, a segment that could not be removed is removed later, a failed roll is undone. A
  failed sync is a SyncError, after which the broker must stop.
- Sealed segments never change. Compaction writes new files beside them and swaps them in; the names
  (.cleaned, .swap) show how far it got.
- A segment ends where the next one begins. Offsets may jump inside a segment, because compaction
  removes records. A jump between two segments means that a crash lost a tail and kept a later file,
  or that bytes were damaged.

What a step that fails leaves behind. Each of these is a state of the log, and every operation that
begins looks at it:

    failed     left behind                         the next operation
    ---------  ----------------------------------  -----------------------------------------------
    append     bytes after the end of the active   append, roll and clean close cut them off first;
               segment (`_is_torn`)                reads never reach them
    roll       a file with the name of the next    append, roll and clean close remove it first
               segment (`_leftover`)
    removal    files of segments that have left    the next removal deletes them; after a kill they
               the log (`Removal`)                 are segments again, and are removed again
    swap,      `.log.swap` beside the old          reads and appends go on; compaction and removals
    promised   segments (`swap.py`)                withdraw it first (`end_swap`)
    swap,      some old files and some new ones    nothing runs before it is finished
    begun                                          (`check_usable`)
    abort      an aborted transaction that its     readers get it from memory; roll, sync and clean
               index lacks (`AbortedIndex`)        close write it
    snapshot,  a `.tmp` file; the old file counts  a later one replaces it, the next open removes it
    epochs
    sync       unknown: SyncError                  none: the process ends
    close      no mark of a clean stop             the next open recovers the log
    open       nothing that matters                every step may be repeated
"""

from __future__ import annotations

from fencepost.log.config import LogConfig
from fencepost.log.log import Log
from fencepost.log.opening import open_log, unborn_log
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.reading import LogSlice

__all__ = ["Log", "LogConfig", "LogSlice", "OpenSegments", "open_log", "unborn_log"]
