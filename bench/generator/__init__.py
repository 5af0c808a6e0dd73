"""A load generator: many producers in one process, with little work per request.

With many producers, a client library would be the bottleneck. With this generator the broker is:

- The wire room builds a request once. The changing fields (correlation id, partition, producer id
  and epoch, sequence, checksum) are written into its bytes (`frames.py`).
- Of a reply only the correlation id and the error codes are read, at known positions
  (`answers.py`). No error is ignored: one that clients retry (CONCURRENT_TRANSACTIONS, while
  Apache Kafka still writes the markers of the previous transaction) is retried after a pause, and
  counted; any other ends the run with a message.
- All connections share one epoll (`engine.py`). A producer is a Python generator (`scripts.py`)
  that is resumed with the next reply.

It reports its own share of a processor (`tally.py`), to show when it was the bottleneck after all.

Every producer has its own connection and, in transactions, its own transactional id. With several
bootstrap addresses, the coordinators and the leaders are looked up once (`routes.py`), and a
producer has a connection for each broker that it needs; leaders must not move during a run.

    python -m bench.generator --bootstrap 127.0.0.1:9092 --mode tv2 --producers 64 --records 1
    --size 1024 --seconds 5
"""
