"""Refunds on Spark: a pipeline that must not pay twice, and must not forget to pay.

    settlements --Spark--> refunds-emitted, refund-audit --loader--> Parquet

The pipeline decides every settlement once. The audit topic gets one row for it, and the refund
topic one more if it is approved. Both rows and the offsets of their settlements are in one Kafka
transaction per micro-batch, so a reader of committed data sees a refund and its audit row together
and once, whatever is killed and when.

- `settlements.py`: settlements, the merchants' rules, a generator of both, and the topic names
- `fill.py`: creates the topics and writes settlements
- `pipeline.py`: the Spark query; `daily_limit.py`: its stateful variant
- `at_least_once.py`: the sink without transactions, for comparison
- `loader.py`: loads the topics into Parquet, as a warehouse would
- `audit.py`: an auditor's questions, answered on Spark
- `session.py`: a Spark session for one machine

`fencepost demo` runs all of it while it kills driver, executors, broker and loader.
"""
