r"""A refunds processor: settlements in; refunds, their audit rows and the source offsets out, in one transaction.

    settlements --> processor --> refunds-emitted, refund-audit
                              \-> the offsets of the settlements

Whatever dies at whatever moment, a reader of committed data sees a refund and its audit row
together and once, and no settlement is forgotten. The transaction is Kafka's; what a program must
add to it is here.

- `refunds.py`: what is read and written: refund_id, amount_paise, merchant; refund_id, actor,
  reason
- `processor.py`: the loop, and what it does about each of four kinds of errors
- `ports.py`: what the loop needs of a client library, and the four kinds
- `with_confluent.py`, `with_kafka_python.py`, `with_aiokafka.py`: three client libraries

    python -m fencepost.examples.refunds.processor --client confluent --shard 0

The transactional id comes from the shard, which is the same after every restart: a new instance
fences the old one. With an id from a uuid nobody would be fenced, and two instances could both pay.
"""
