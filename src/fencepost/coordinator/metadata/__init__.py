"""The cluster's state: brokers, topics, partitions and their leaders, settings, producer ids.

All of it is a function of one log, `__cluster_metadata-0`, whose records are Kafka's
(`records.metadata_log`). The leader of that partition is the controller. Only the controller
decides; every node may read.

    a request -> decide (pure) -> append its records as one batch -> apply each at once
              -> wait until they are durable -> effects (open, close, reconfigure logs) -> answer

- `state.py`: the state and its lookups.
- `events.py`: the controller's inputs, and the decision that has the records.
- `decide.py`: topics and partitions.   - `placement.py`: the broker for each partition.
- `registry.py`: brokers, leaders, settings and producer ids.
- `apply.py`: the only mutation.        - `names.py`: the rules for topic names.
- `effects.py`: what records mean for a broker, as data.
- `snapshot.py`: a state as the shortest log that leads to it.

Rules:

1. Only `apply` changes the state, live and at load: fold(log) == the live state, and
   fold(snapshot(state)) == state.
2. Ids are never reused: a topic that is deleted and created again gets a new id, and a block of
   producer ids is in the log before the first of them is handed out.
3. A leader epoch only grows. It grows whenever a leader is set, even to the same node: after an
   unclean start, so that clients check whether they read records that are gone; and when a
   partition moves.
4. The leader of a partition is data. Nothing here assumes a single node, and this process checks
   that it leads a partition before it does anything with it.
5. There is one copy of each partition: replicas and in-sync replicas are its leader.
"""
