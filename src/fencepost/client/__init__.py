"""The client room: a sans-IO Kafka client for fencepost and Apache Kafka.

Theory of operation. Client logic is written as *procedures*: generators that yield steps and
receive answers (`steps.py`). A step is "send this request to that endpoint", "wait for these
answers" or "pause". A procedure never touches a socket or a thread, and its clock is an argument.
A driver carries out the steps: `blocking.py` with plain sockets, a simulator in virtual time, a
test with a list of prepared answers.

    caller -> procedure (pump, transactions, reading, groups, admin)
           -> calls.py: locate, send, judge the code, refresh, back off, retry until the deadline
           -> a driver -> conversation.py: versions, login, correlation ids -> bytes

- `reactions.py` is the table of error codes and how to react to each. `failures.py` has the
  exceptions.
- `reaching.py` finds a bootstrap server that answers, for those who cannot wait until a deadline.
- `routes.py` caches brokers, leaders and coordinators. Entries may be stale; error codes from the
  brokers correct them.
- `conversation.py` is one connection: ApiVersions, then SASL if configured, then requests.
- `writer.py` has the rules for writing sealed batches, `pump.py` the procedure that follows them.

Invariants:
- A retried batch has the same bytes as before: the broker tells a retry from a new batch by its
  sequence alone.
- A code that is not in the table is fatal.
- An EndTxn with an unknown effect is reported as neither success nor failure but as
  `UnknownOutcome`.
- No password or private key appears in a repr, a log line or an error.
"""
