"""The Spark sink: one Kafka transaction per micro-batch, over all executors, topics and partitions.

sink.py          `TransactionalSink`: calls, the start of a run, the decision about each batch
batch_writer.py  writes one batch: attempts, the commit, a commit in doubt
at_least_once.py the sink without a transaction
run_state.py     what the driver keeps during a run
receipts.py      the outcomes of the last batches, for the user and for `progress/`
settings.py      the options of a sink
checks.py        refuses, before the first batch of a run, what would break the guarantee
calls.py         one call per batch: refuses a second call, notices a skipped batch
parts.py         the DataFrames of one batch and their topics
micro_batch.py   the batch and its query, read from Spark's engine
connect_batch.py, checkpoint.py
                 the same on Spark Connect, read from the files of the checkpoint
counts.py        keeps Spark's row counts right when the sink runs a plan several times
origins.py       whether the query reads from the sink's own cluster
limits.py        how large a batch each topic accepts
preserving.py    what `preserve_partitioning` needs of a query
producer.py      the driver's producer: fence, lend, commit or abort
job.py           one attempt to write: chooses a route of `transport/` and collects its reports
job_failures.py  whatever a job raised, in one sentence
one_sentence.py  what a user sees first when a call fails
topic_creation.py
                 create_topics=, for trying things out
workers_python.py
                 which Python the tasks run with
ledger/          which micro-batch is committed, recorded by the transaction that committed it
"""
