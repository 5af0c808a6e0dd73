r"""A refunds processor with a plain Kafka client: one transaction holds its output and its offsets.

    settlements --> processor --> refunds-emitted, refund-audit
                              \-> the offsets of the settlements

Whatever dies and when, a reader of committed data sees a refund and its audit row together and
once, and no settlement is forgotten. Kafka provides the transaction; this package shows what a
program must add.

- `rows.py`: the rows: refund_id, amount_paise, merchant; and refund_id, actor, reason
- `processor.py`: the loop, and how it handles each of four kinds of errors
- `ports.py`: what the loop needs from a client library, and the four kinds
- `with_confluent.py`, `with_kafka_python.py`, `with_aiokafka.py`: one adapter per client library

    python -m fencepost_examples.refunds.processor --client confluent --shard 0

The transactional id contains the shard, which stays the same after every restart, so a new instance
fences the old one. An id from a uuid would fence nobody, and two instances could both pay.
"""
