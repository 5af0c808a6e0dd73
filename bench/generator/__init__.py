"""A load generator of our own: many producers, one process, as little work per request as Python allows.

Client libraries do much for their users and cost accordingly: with many producers they, and not the
broker, are what one measures. This generator keeps the broker the bottleneck:

- A request is built once, by the wire room, and sent again and again. What changes (correlation id,
  partition, producer id and epoch, sequence, checksum) is written into its bytes (`frames.py`).
- Of a reply only what decides is read: whose it is and the error codes, at places that are known
  beforehand (`answers.py`). An error is never passed over: one that clients retry
  (CONCURRENT_TRANSACTIONS, while Apache Kafka still writes the markers of the transaction before)
  is sent again after a pause, and counted; any other ends the run with a sentence.
- All connections share one epoll (`engine.py`). What a producer does is a Python generator
  (`scripts.py`) that is resumed with the next reply.

It reports its own share of a processor (`tally.py`), so that a reader sees when it was the limit
after all.

Every producer has its own connection, and its own transactional id where it has one. There is one
broker: partition leaders and coordinators are not looked for.

    python -m bench.generator --bootstrap 127.0.0.1:9092 --mode tv2 --producers 64 --records 1
    --size 1024 --seconds 5
"""
