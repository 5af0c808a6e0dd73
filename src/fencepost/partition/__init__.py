"""One topic-partition at its leader: the resource manager of two-phase commit.

Theory of operation.

The coordinator decides whether a transaction commits; a partition holds what the transaction wrote.
A `Partition` is a log plus three parts:

- `producers.py`: for every producer id its epoch, its last five batches, and the epoch of the
  coordinator that last wrote a marker. It tells the next batch from a duplicate and from a gap.
- `open_txns.py`: the first offset of every open transaction. The last stable offset follows from it
  and from the high watermark.
- `verification.py`: producers whose first write of a transaction waits for the coordinator. This
  part is not in the log: after a restart the producer sends the batch again.

The checks of a client's batch are in `admission.py` (the topic's config; `opening.py` reads the
records where that is needed) and `producer_check.py` (the producer). `snapshots.py` keeps the
producers on the disk.

Rules:

1. An append is check, append, apply, without a pause in between. A failed append is not applied.
2. The first two parts change only when a batch is applied, at run time and in recovery alike. So
   the state after a crash is the state before it, cut at the last batch that survived.
3. last stable offset <= high watermark <= log end offset. No fetch reads above its bound.
4. A batch stays sealed. Its records are read only where Kafka reads them: keys on compacted topics,
   and a codec that the topic's config forces.
5. No clock, no randomness, no thread, no socket: `now_ms` is an argument, and the log owns the
   disk.
"""
