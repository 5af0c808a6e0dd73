"""Twin runs: the same raw requests to Apache Kafka and to fencepost, and the replies compared.

Theory of operation: a script is a Python function that talks to one broker (`talk.Talk`). Each
`ask` is a step with a name, an API, a version and a form. The script runs twice, against a fresh
Apache Kafka and a fresh fencepost with the same settings, and contains no expected replies: Apache
Kafka defines what is right. The replies are recorded in a transcript, and the two transcripts must
be equal, step by step and field by field.

Replies of two healthy brokers are never identical, so a reply is normalised first (`likeness.py`):
producer ids are counted from the first one that the script saw, ids of topics and members are
numbered in order of appearance, times become one word, node ids are mapped, and error messages and
throttle times are left out. Offsets, epochs, sequences, states and error codes stay as they are.

Apache Kafka answers EndTxn before the markers are written, and fencepost after. So a script waits
until a transaction is complete (`Talk.settle`) before it continues; then both are in the same
state.

Where the two differ on purpose, a step says so (`differs=`) with the text of the first column of
the table in docs/compatibility.md. Such a step must differ, and must be in the table: an allowance
that is no longer needed fails.
"""
