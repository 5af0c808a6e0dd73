"""One topic-partition at its leader: the resource half of two-phase commit.

Theory of operation ------------------- The coordinator decides what becomes of a transaction; a
partition holds what the transaction wrote. A `Partition` is a log plus three things that are a
function of that log and of nothing else:

- `producers.py`: for every producer id its epoch, the last five batches and the epoch of the
  coordinator that last wrote a marker. It answers whether a batch is the next one, a repetition, or
  neither.
- `open_txns.py`: the first offset of every open transaction. From it and the high watermark comes
  the last stable offset, which no read_committed reader passes.
- `verification.py`: who asked the coordinator about the first write of a transaction and has not
  appended yet. This alone is not in the log: after a restart the question is asked again.

Rules:

1. Every append is check, then append, then apply, without a pause between them. A failed append is
   not applied.
2. `apply_batch` is the only way that the first two change, at run time and on recovery alike. So
   the state after a crash is the state before it, cut at the last batch that survived.
3. high watermark <= log end; last stable offset <= high watermark. Nothing above them is ever read.
4. A batch stays sealed. Records are looked at only where Kafka must: keys on compacted topics, a
   codec that the topic's config forces.
5. No clock, no randomness, no thread, no socket: `now_ms` is an argument, and the disk is behind
   the log.
"""
