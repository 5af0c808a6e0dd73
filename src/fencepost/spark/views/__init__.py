"""Views of a log for forensics: `spark.read.format("fencepost").option("view", ...)`.

schemas.py         the views and their columns
options.py         parses and checks the options
data_reader.py     plans the tasks of a view, and runs one
log_folders.py     finds partitions and segments in copied log folders
partition_logs.py  the batches of a partition, from a broker or from a folder, behind one interface
record_rows.py     `records`: every record, and what became of it
transaction_rows.py
                   `transactions`: every transaction of a partition, from its first record to its
                   marker
internal_rows.py   `transaction_state` and `offsets`: the internal topics, decoded
producer_rows.py   `producers`: what each partition knows of its producers

Theory of operation. A task covers a *span*: a part of one partition, by default a segment of a
folder or a whole partition of a broker. What became of a record is decided by a marker, which may
be behind the span. So a task reads the headers of its span first, and on behind its end until
the markers of all transactions that are open there have been found, or the log ends. Then it reads
the span again and emits rows. Nothing is read by the driver, and no task depends on another.

A transaction belongs to the span of its first record. What was open at the start of a span is in
the producer snapshot that Kafka writes for every segment; where that is missing, the headers of the
segments before it are read.

The folders are read as plain files by the executors: the same path must exist on each of them. A
log that is being written ends where its last complete batch ends. Damage before that stops the
query with the file and the position.
"""
