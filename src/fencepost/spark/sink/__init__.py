"""The Spark sink: one Kafka transaction per micro-batch, over all executors, topics and partitions.

sink.py          `TransactionalSink`: calls, the start of a run, the decision about each batch
batch_writer.py  writes one batch: attempts, the commit, a commit in doubt
at_least_once.py the sink without a transaction
run_state.py     what the driver keeps during a run
receipts.py      the outcomes of the last batches, for the user and for `progress/`
settings.py      the options of a sink
checks.py        refuses, before the first batch of a run, what would break the guarantee
start_check.py   says at the start of a query what its next batch will be refused for
calls.py         one call per batch: refuses a second call, notices a skipped batch
limits.py        how large a batch each topic accepts
producer.py      the driver's producer: fence, lend, commit or abort
one_sentence.py  what a user sees first when a call fails
topic_creation.py
                 create_topics=, for trying things out
batch/           what the sink knows of the batch: query, offsets, DataFrames
jobs/            the Spark job that writes it: route, hosts, counts, failures
ledger/          which micro-batch is committed, recorded by the transaction that committed it
"""
