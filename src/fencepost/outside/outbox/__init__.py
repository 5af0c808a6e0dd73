"""The outbox: rows that a transaction of PostgreSQL leaves behind, exactly once in Kafka.

Theory of operation. An application writes its change and an outbox row in one transaction, so
either both exist or neither. The relay reads the rows from a source, in the order of their commits,
and writes them to Kafka, many in one transaction (a chunk) together with its position there:

    log_source.py   \
                      relay.py -> rows.py -> outlet.py -> Kafka
    table_source.py /    |
                         +-> database.py: the row of the chunk

    rules.py         what is skipped, when a chunk ends, what a start accepts; tables, and pure
    source.py        what the relay needs of a source
    log_source.py    mode wal: the database's log (logical decoding), with
    replication.py     the connection that streams it
    pgoutput.py        its messages, decoded; pure
    table_source.py  mode table: queries of a table that numbers its rows, with
    numbering.py       the triggers that do so when a transaction commits
    rows.py          from a row to a record; pure
    setup.py         what `init` creates
    database.py      what a start checks, and the row of the chunk
    positions.py     the topic of positions
    outlet.py        the transactional producer
    refused.py       rows that no topic accepts, and their dead letters
    relay.py         puts it together
    metrics.py       what Prometheus gets

Why not `SELECT ... WHERE id > last`: a sequence number is given before the commit, so a row may
appear after a higher one was read, and is lost. Reading below the oldest running transaction loses
none, but breaks the order of a key. The log has the order of the commits, and so have numbers that
are given at COMMIT under a lock.

Invariants:
- The position is committed with the rows, and alone decides what is sent again. The slot may be
  anywhere before it.
- The slot is told an LSN only when everything before it is in Kafka, or was no row of ours, and
  only what is stored: the end of the position, or `confirmed` of the row in the database. So a
  start knows how far the slot may be, and refuses one that is further.
- The database has committed the number and cursor of a chunk before Kafka is asked to commit it,
  and with that all that the relay has read is on the disk of the database.
- A start changes nothing before its checks are done. With a database that is not the relay's it
  fences no other relay.
"""
