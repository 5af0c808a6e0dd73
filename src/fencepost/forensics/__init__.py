"""The forensics room: what happened to a transaction, and what holds readers back.

Theory of operation. Every question is answered in two steps. A function that *looks* asks brokers
over the Kafka protocol, or reads copied log files, and returns plain facts. A function that
*judges* turns facts into findings; it is pure, so every situation can be tested without a broker.

    cli -> looks (client.blocking.Cluster) -> facts -> judges -> findings -> cli.output

Rules:
- Everything works on Apache Kafka as well as on fencepost. What only fencepost tells is optional:
  its absence makes a field unknown, never a failure.
- A `Figure` says how sure it is, where it comes from and whose clock it is (`figures.py`). Brokers
  do not tell their time, so ages compare two clocks and are estimates.
- Absence is not evidence. A list that leaves out what the caller may not see (ListTransactions
  without DESCRIBE) proves nothing about what is missing from it.
- Looking changes nothing. What ends transactions is in `ending.py` alone.
"""
