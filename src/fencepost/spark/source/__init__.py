"""The Spark source, `format("fencepost")`: topics as streams and as tables.

data_source.py       the format as Spark knows it; registered through `pyspark_fencepost`
options.py           the options of Spark's own `kafka` format, under the same names
stream_reader.py     `spark.readStream`: which offsets each micro-batch covers
batch_reader.py      `spark.read`: topics as they are now
positions.py         where partitions begin and end, asked of the cluster
ranges.py            offset arithmetic: how much to take, how to cut it into tasks
range_reader.py      one range of offsets into Arrow: what a task does
columns.py, compiled_columns.py
                     records into Arrow columns, one by one or in compiled loops
standstill.py        why a reader of committed data waits, and for whose transaction
"""
