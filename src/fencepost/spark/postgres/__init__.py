"""Rows of a streaming query into a table of PostgreSQL, every batch once.

Theory of operation. The database decides: its one transaction moves the rows of a batch and records
the batch (`outside/table/`). So there is nothing to fence and nothing to undo, and every failure
has the same answer: begin again, and let the ledger say whether the batch is in the table.

    read     the ledger's row without a lock: most repeated or strange batches end here
    stage    the staging table of this attempt is created; what older ones left was dropped
    copy     each task copies its rows in a session of its own, and reports (attempt, rows)
    merge    under the lock of the ledger's row: decide again, compare the counts, move the rows of
             the attempts that reported, record the batch, COMMIT
    drop     the staging table

What may happen, and why each row is in the table once:

- *A task dies and is repeated, or Spark starts a second copy of it (speculation).* Spark passes on
  one result per task. The rows of the other attempts stay in staging.
- *PostgreSQL crashes*: staging is empty. The counts differ, and the attempt begins again.
- *The driver dies before the COMMIT*: Spark repeats the batch. *After it*: the ledger has the
  batch. Its plan runs again for the state of the query, and nothing is written.
- *The answer to the COMMIT is lost*: the attempt begins again, and its merge waits for the lock
  that the transaction in question holds. Then the row is the answer.
- *Two drivers*: the second one waits for the lock, and decides from what the first has committed.
- *A new checkpoint, a restored database, an edited checkpoint*: the rule of the Kafka sink's ledger
  (`spark/ledger/rule.py`) decides, with the sentences of `sentences.py`.

- `sink.py`: `PostgresSink`, the function for foreachBatch, and the rules for calling it.
- `batch.py`: the attempts of one batch. `copying.py`: what tasks do. `columns.py`: types of Spark.
"""
