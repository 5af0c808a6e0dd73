"""Twin runs: the same raw requests to Apache Kafka and to fencepost, and the replies compared.

Theory of operation ------------------- A script is a Python function that talks to one broker
(`talk.Talk`): each `ask` is a step with a name, an API, a version and a form. It runs twice,
against a fresh Apache Kafka and a fresh fencepost with the same settings, and knows nothing of
expected answers: Apache Kafka says what is right. What comes back is written down in a transcript,
and the two transcripts must be equal, step by step and field by field.

Two healthy brokers never answer alike to the bit, so a reply is brought into a common form first
(`likeness.py`): producer ids count from the first one that the script saw, ids of topics and
members are numbered in the order in which they appear, the clock is one word, node ids are mapped,
words for people and throttle times are left out. Offsets, epochs, sequences, states and error codes
stay as they are.

Apache Kafka answers EndTxn before the markers are written, and fencepost after. So a script waits
until a transaction is complete (`Talk.settle`) before it goes on; then both are in the same state.

Where the two differ on purpose a step says so (`differs=`), with the words of the first column of
the table in docs/compatibility.md. Such a step must differ, and must stand in the table: an
allowance that nobody needs any more fails.
"""
