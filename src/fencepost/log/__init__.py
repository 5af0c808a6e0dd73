"""A log: an ordered run of segments in one folder, in Kafka's format byte for byte.

    topic-0/00000000000000000000.log            batches, one after the other
            00000000000000000000.index          every few KB: offset -> position
            00000000000000000000.timeindex      every few KB: newest time so far -> offset
            00000000000000000000.txnindex       aborted transactions, only where there are any
            00000000000000004711.log            the next segment; the last one is active: it alone grows
            00000000000000004711.snapshot       producers as of that offset
            leader-epoch-checkpoint, partition.metadata

Theory of operation.
- One writer, no locks: everything is called from the loop that owns the partition. Only
  `PendingSync.run` may be carried to another thread.
- An append is one write of a sealed batch. It moves the log end offset only when all bytes are
  there; a write that failed is cut off again, and until that has worked nothing else is appended.
  So no offset is ever used twice, and nobody reads half a batch.
- The indexes of the active segment live in memory. They are written when it is sealed and when the
  log is closed; after a crash they are made again by the scan that has to look for a torn tail
  anyway.
- What lies below the recovery point was synced, with its indexes, its snapshot, its leader epochs
  and the names of its files; a crash can harm only what lies above. The recovery point moves with
  every sync, or, where nobody waits for syncs, when a sealed segment has been flushed behind
  everybody's back (`prepare_flush`). Nothing is synced in the way of an append. A clean open reads
  no batch but those behind the last index entry.
- Bytes that fail their check are a torn tail, which is cut off, or damage, which is kept:
  `damage.py` tells them apart. A reader of a damaged batch gets an error, all others go around it.
- A disk call that fails once leaves memory right: an aborted transaction that could not be indexed
  is kept and written later, a segment that could not be removed is removed later, a roll that
  failed is taken back. A sync that fails is a SyncError, after which nobody may go on.
- Sealed segments never change. Compaction writes new files beside them and swaps them in; the names
  (.cleaned, .swap) say how far it got (`recovery.py`).
- A segment ends where the next one begins. Inside a segment offsets may jump, because compaction
  takes records out; between two segments a jump means that a crash took a tail and left a later
  file.
- A disk that fails in the middle of a swap leaves files and memory apart: such a log raises
  StorageError until the swap is finished, which every use tries.
"""

from __future__ import annotations

from fencepost.log.config import LogConfig
from fencepost.log.log import Log
from fencepost.log.open_segments import OpenSegments
from fencepost.log.segment import LogSlice

__all__ = ["Log", "LogConfig", "LogSlice", "OpenSegments"]
