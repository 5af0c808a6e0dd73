"""Rows into one table of PostgreSQL, once: what a sink of any engine needs of the database.

Theory of operation. Many writers copy rows into a *staging* table, each in a session of its own and
marked with the number of its attempt. One transaction then does everything that counts:

    lock     the sink's row in the ledger table; whoever comes second waits here
    decide   from that row, whether these rows are already in the table
    count    the rows of each attempt that is known to have succeeded
    merge    those rows, and no others, from staging into the table
    record   the batch in the ledger's row
    COMMIT

Staging is UNLOGGED: it costs no WAL, and PostgreSQL empties it after a crash without a word. So
nothing is merged unless every attempt has exactly the rows that it reported. Rows of attempts that
were not reported (a task that died after its copy, a speculative copy) stay behind in staging.

The staging table is dropped after the COMMIT, with a limit on waiting: the session of a dead writer
may still hold a lock on it. What is left over is found by its name and dropped at the next batch.

- `types.py`: which values fit which column. `target.py`: the table, as the catalog describes it.
- `copy_text.py`: Arrow batches in the text format of COPY. `staging.py`: the staging table.
- `ledger.py`: the ledger's row; its content belongs to the caller.
"""
