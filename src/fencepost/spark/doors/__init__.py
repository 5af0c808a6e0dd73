"""The ways in: what Spark calls, as steps of one transaction.

foreach_batch.py  `TransactionalSink`; `calls.py` and `run.py` keep its calls and runs, `parts.py`
                  reads the argument of `sink.write`, `checks.py` refuses before the first batch
stream_format.py  `writeStream.format("fencepost")`
batch_write.py    `write.format("fencepost")`; `commit.py` has what both formats share
route.py          the last step before a format; `trailer.py` and `routed_task.py` see to it that it
                  is the last, and write; `loops.py` refuses a query that reads what it writes
"""
