"""Refunds: a pipeline that must neither pay twice nor forget to pay.

    settlements --Spark--> refunds-emitted, refund-audit --loader--> Parquet

Every settlement is decided once: the audit topic gets one row for it, and the refund topic one if it is approved. Both
rows, and the offsets of the settlements they were made from, are in one Kafka transaction per micro-batch. So whatever
is killed at whatever moment, a reader of committed data sees a refund and its audit row together, and once.

- `settlements.py`: what a settlement is, the merchants' rules, and a generator of both
- `pipeline.py`: the Spark query, stateless or with a limit per merchant and day
- `loader.py`: both topics into Parquet, as a warehouse would
- `audit.py`: the questions that an auditor would ask, answered on Spark
- `demo.py`: all of it, while driver, executors and broker are killed
"""
