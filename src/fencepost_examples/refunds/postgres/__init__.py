"""Refunds between databases: requested in PostgreSQL, decided on Spark, paid in PostgreSQL.

    refund_request + outbox --relay--> settlements --Spark--> refund-audit, refunds-emitted
                                                        refunds-emitted --Spark--> refund_payment

Three transactions carry a refund from table to table, and each hands over to the next one:

1. A service writes the request and its event, a row of the outbox, in one transaction of the
   database. `fencepost outbox relay` brings committed rows to Kafka, each once.
2. The query of `refunds.spark` decides: one Kafka transaction per micro-batch.
3. A second query pays with `PostgresSink`: one transaction of the database per micro-batch. The
   table has no key, so a payment that is made twice would be there twice.

- `tables.py`: the tables
- `service.py`: a service that is asked for refunds
- `pipeline.py`: both queries
- `audit.py`: tables and topics compared row by row, with `fencepost.spark.audit`

`fencepost demo --postgres` runs all of it while it kills driver, executors, broker, relay and
PostgreSQL. The connection string is in FENCEPOST_POSTGRES_DSN, where `ps` does not show it.
"""
