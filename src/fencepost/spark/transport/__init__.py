"""Moves rows to the only writer of their partition, and from there to the brokers.

There are four routes. `fencepost.spark.sink.jobs.job` chooses one per batch:

    collected.py  the driver collects a small batch and writes it itself
    preserved.py  the task that has read a row writes it, if partitions are preserved
    direct.py     from task to task over sockets, in one barrier stage
    shuffled.py   through Spark's shuffle; works for every plan

Without a transaction (`guarantee="at-least-once"`) every task writes its own rows (`own_rows.py`),
with a producer id of its process (`idempotent_ids.py`).

What they share:

    packing/                 rows into record batches
    meeting/                 what tasks agree on through the driver: addresses, claims, permits
    exchange.py              the sockets between tasks
    slots.py                 brings packed batches to the task that writes them
    delivery.py, delivery_thread.py
                             record batches to brokers: numbering, sealing, acknowledgements
    accounts.py              the driver's check: what went in is what was acknowledged
"""
