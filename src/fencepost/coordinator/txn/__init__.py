"""The transaction coordinator: the deciding half of two-phase commit.

A transactional id belongs to one partition of `__transaction_state`; the leader of that partition
coordinates the id. Per id there is one record with all facts: its producer, and the state of its
one transaction.

    a request -> decide (pure) -> append the record -> apply it at once -> wait until it is durable
              -> do the effects -> answer

A commit is two records with the markers between them. `PrepareCommit` is the point of no return:
before it the transaction is open and a crash leaves it open (or aborts it); after it the outcome is
fixed, and the next coordinator that loads the log finishes it. Markers may then be written twice,
which is harmless; they are never omitted. After `CompleteCommit` nothing is left to do.

- `states.py`: the eight states, one table.
- `end_table.py`: EndTxn in each state, both protocols.
- `events.py`: events, replies and effects.
- `decide.py`: from an event to a decision, changing nothing.
- `prepare.py`: Prepare, markers, Complete, fences.
- `apply.py`: the state, and its only mutation.
- `reconcile.py`: the repair after a power loss.
- `views.py`: queries.

Rules:

1. The state is the last record of each id and nothing else: fold(log) == fold(compacted log) == the
   live state.
2. An id is `pending` while its last record is not durable or its markers are being written. The
   shell keeps these ids and passes them to `decide`; they are Kafka's pendingState, and empty after
   a restart. A request for a pending id is answered CONCURRENT_TRANSACTIONS, as in Kafka, and
   changes nothing.
3. An epoch that was in a record is never given out again; no client ever holds epoch 32767.
4. Times are only compared to find timeouts and expired ids; a clock that moves backwards breaks
   nothing (KAFKA-8803).
"""
