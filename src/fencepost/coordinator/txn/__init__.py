"""The transaction coordinator: it decides, and partitions hold.

The deciding half of two-phase commit.

Theory of operation ------------------- A transactional id belongs to one partition of
`__transaction_state`; whoever leads that partition coordinates the id. Per id there is one record
that says everything: who its producer is, and where its one transaction stands.

    a request -> decide (pure) -> append the record -> apply it at once -> wait until it is durable
              -> do the effects -> answer

A commit is two records with the markers between them. `PrepareCommit` is the point of no return:
before it the transaction is open and a crash leaves it open (or aborts it); after it the outcome is
fixed, and whoever loads the log next finishes it. Markers may be written twice by that, which does
no harm; they are never left out. After `CompleteCommit` nothing is owed to anybody.

- `states.py`: the eight states, one table.          - `end_table.py`: EndTxn in each state, both protocols.
- `events.py`: what is told and what is said.        - `decide.py`: from one to the other, changing nothing.
- `prepare.py`: Prepare, markers, Complete, fences.  - `apply.py`: the state, and its only mutation.
- `views.py`: what is shown of it.                    - `patterns.py`: filters ids by a pattern.

Rules:

1. The state is the last record of each id and nothing else: fold(log) == fold(compacted log) == the
   live state.
2. An id is `pending` while its last record is not durable or its markers are being written. The
   shell keeps these ids and passes them to `decide`; they are Kafka's pendingState, and empty after
   a restart. A request for a pending id is answered CONCURRENT_TRANSACTIONS, as in Kafka, and
   changes nothing.
3. An epoch, once it was in a record, is never given out again; no client ever holds epoch 32767.
4. Times are only compared where a timeout or an expiry is due; a clock that moves backwards breaks
   nothing (KAFKA-8803).
"""
