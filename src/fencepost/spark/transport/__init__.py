"""Moves rows to the only writer of their partition, and from there to the brokers.

There are four routes. `fencepost.spark.sink.job` chooses one per batch:

    collected.py  the driver collects a small batch and writes it itself
    preserved.py  the task that has read a row writes it, if partitions are preserved
    direct.py     from task to task over sockets, in one barrier stage
    shuffled.py   through Spark's shuffle; works for every plan

Without a transaction (`guarantee="at-least-once"`) every task writes its own rows (`own_rows.py`),
with a producer id of its process (`idempotent_ids.py`).

What they share:

    rows.py                  the sink's columns
    placement.py             the partition of a row, as Kafka's own producer chooses it
    packing.py, packing_by_record.py, packing_by_column.py
                             rows into record batches
    regions.py               memory for the batches of a task
    exchange.py, rendezvous.py
                             the sockets between tasks, and how the tasks find each other
    claims.py                one writer per partition on the preserved route
    permits.py               one writer per task where Spark may run a task twice
    driver_listener.py, handshake.py
                             how tasks call the driver, and how both recognise each other
    delivery.py, delivery_thread.py
                             record batches to brokers: numbering, sealing, acknowledgements
    accounts.py              the driver's check: what went in is what was acknowledged
"""
