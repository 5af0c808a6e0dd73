"""Refunds: a pipeline that must neither pay twice nor forget to pay.

    settlements --Spark--> refunds-emitted, refund-audit --loader--> Parquet

Every settlement is decided once: the audit topic gets one row for it, and the refund topic one more
if it is approved. Both rows, and the offsets of the settlements they were made from, are in one
Kafka transaction per micro-batch. So whatever is killed at whatever moment, a reader of committed
data sees a refund and its audit row together, and once.

- `settlements.py`: what a settlement is, the merchants' rules, a generator of both, and the names
  of the topics
- `fill.py`: makes the topics and writes settlements
- `pipeline.py`: the Spark query; `daily_limit.py`: its stateful variant
- `at_least_once.py`: the sink without transactions, for comparison
- `loader.py`: the topics into Parquet, as a warehouse would
- `audit.py`: the questions that an auditor would ask, answered on Spark
- `session.py`: a Spark session for one machine

`fencepost demo` runs all of it while driver, executors, broker and loader are killed.
"""
