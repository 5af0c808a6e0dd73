"""Writes with `format("fencepost")`: streams, declarative pipelines and batch DataFrames.

    route(df, ...)                       rows become record batches, each at its only writer
    .writeStream.format("fencepost")     one transaction per micro-batch, with a ledger entry
    .write.format("fencepost")           one transaction; repeatable with txnAppId and txnVersion

`TransactionalSink` runs its own Spark job and can repeat it. A data source cannot: Spark plans the
write, runs it, and then asks for a commit or an abort, each in another process. So this route takes
fewer liberties: one attempt per batch, and everything that a later step needs travels with the plan
and the tasks' messages.

    route.py         packs rows and ends the plan in a barrier stage
    loops.py         whether the query reads what it writes
    narrow_plans.py  whether a stream can do without a shuffle
    steps.py         the last step of the plan: drain or deliver, and report
    option_table.py, options.py
                     the options of the writers
    checkpoint.py    what the files of a query's checkpoint say about the batch
    plan.py          before the tasks: checks, the fence, the ledger, the decision
    task.py          one task of the writer: hands the identity to its step, and reports
    commit.py        after the tasks: counts, sequences, the ledger entry, EndTxn; or the abort
    lent_identity.py the identity of an unfinished batch, for an abort without reports
    stream_writer.py, batch_writer.py
                     the two writers that Spark calls
    save_modes.py    what a routed DataFrame says to other modes than append
    versions.py      txnAppId and txnVersion: what to do with a batch write
"""
