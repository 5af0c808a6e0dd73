"""The Spark sink: one Kafka transaction per micro-batch, over all executors, topics and partitions.

sink.py         `TransactionalSink`: the life of one micro-batch from its call to its commit
settings.py     the options of a sink
checks.py       what would break the promise, refused before the first batch of a run
calls.py        one call per batch: refuses a second call, notices a skipped batch
parts.py        the DataFrames of one batch and the topics they go to
micro_batch.py  which batch of which query this is, as Spark's engine knows it
origins.py      whether the query reads from the sink's own cluster
limits.py       how large a batch each topic accepts
producer.py     the driver's producer: fence, begin, commit or abort
job.py          one attempt to write: chooses a route of `transport/` and collects its reports
ledger/         which micro-batch is committed, recorded by the transaction that committed it
"""
