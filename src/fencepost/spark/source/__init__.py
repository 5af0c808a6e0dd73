"""The Spark source, `format("fencepost")`: topics as streams and as tables.

option_table.py      the options of Spark's own `kafka` format, under the same names, and ours
options.py           parses and checks them
stream_reader.py     `spark.readStream`: which offsets each micro-batch covers
batch_reader.py      `spark.read`: topics as they are now
positions.py         where partitions begin and end, as the cluster says
ranges.py            offset arithmetic: how much to read, how to split it into tasks
range_reader.py      what a task does: one range of offsets into Arrow
columns.py, compiled_columns.py
                     records into Arrow columns, one by one or in compiled loops
whole_transactions.py, extents.py
                     `wholeTransactions`: batches that split no transaction
open_transaction_watch.py
                     warns when an open transaction stops a reader, and says whose it is
"""
