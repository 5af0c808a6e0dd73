"""The client room: speaking Kafka's protocol to fencepost and to Apache Kafka alike, without any I/O of its own.

Theory of operation. What a client does is written as *procedures*: generators that yield steps and
are given answers (`steps.py`). A step says "send this request to that endpoint", "wait for these
answers" or "pause"; a procedure never sees a socket, a thread or a clock that is not an argument.
Whoever drives it decides what a step costs: `blocking.py` with plain sockets, a simulator in
virtual time, a test with a list of prepared answers.

    caller -> procedure (writing, transactions, reading, groups, admin)
           -> calls.py: find the place, send, judge the code, refresh, back off, again, until the deadline
           -> a driver -> conversation.py: versions, login, correlation ids -> bytes

- `reactions.py` is the one table of what to do about an error code, `failures.py` what is raised.
- `routes.py` is our picture of the cluster: brokers, leaders, coordinators. It is always a guess,
  and the brokers correct it by error codes.
- `conversation.py` is one connection: ApiVersions first, then SASL where it is asked for, then
  requests.
- `writer.py` holds the rules of a writer of sealed batches; `writing.py` the procedure that follows
  them.

Invariants:
- A batch that was sent once is sent again with the same bytes or not at all: the broker tells a
  retry from a new batch by its sequence alone.
- A code that is not in the table is fatal.
- An EndTxn whose effect we do not know is never reported as success or as failure: it is
  `UnknownOutcome`.
- No password or private key appears in a repr, a log line or an error.
"""
