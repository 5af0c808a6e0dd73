"""A consumer whose position is a row of the same database transaction as what it did.

Theory of operation. The database decides. A row per group, topic and partition says which offset
comes next, and the transaction that applies a batch also moves the rows of its partitions. So a
batch and its position are committed together or not at all, and Kafka's own committed offsets,
which are reported for lag tools, are never read.

Rule 1: a partition is claimed before it is read. A claim is a transaction that raises the row's
        epoch and names the new owner. What the row says after that is where reading begins. Until
        then its former owner may move it, so a row is compared with a log that was asked later.
Rule 2: a batch moves a row only from the offset at which its records begin, and only if epoch and
        owner are still those of its claim. One row that does not move rolls back the whole batch.
        So a process that was suspended, cut off, or overtaken by a rebalance applies nothing.
Rule 3: the loser asks Kafka before it claims again. Two processes may claim a partition in the
        wrong order: the old owner, suspended before its claim, fences the new one. No claim is
        made unless the group coordinator accepts an offset commit from this member, in its
        generation. The old owner is refused, the new one claims again, and both are at rest.
Rule 4: what is unknown is looked up. If the answer to a COMMIT is lost, the row is read under its
        lock, which waits for the end of the transaction in question.
Rule 5: the transaction that moves a row is the one that was given to the block. Statements of the
        block may end it and begin another one, so it is marked at its start (`SET LOCAL`), and the
        mark is asked for before a row moves.
Rule 6: a position belongs to a topic id. A topic that was deleted and created again has another
        one, which is noticed at the claim and at every batch (librdkafka reads on without notice).

Read in this order: `rule.py`, where reading begins and when it must not; `positions.py`, the table;
`member.py`, the group member over confluent-kafka; `consumer.py`, which puts them together.
"""
