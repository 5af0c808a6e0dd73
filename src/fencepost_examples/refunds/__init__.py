"""The refunds example: `spark/` on Spark, `processor/` with plain Kafka clients. See README.md."""
