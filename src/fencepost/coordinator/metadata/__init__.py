"""The cluster's own state: brokers, topics, partitions and who leads them, settings, producer ids.

Theory of operation ------------------- Everything here is a function of one log,
`__cluster_metadata-0`, whose records are Kafka's (`records.metadata_log`). Whoever leads that
partition is the controller; it alone decides, and everybody may read.

    a request -> decide (pure) -> append its records as one batch -> apply each at once
              -> wait until they are durable -> do the effects (open, close, reconfigure logs) -> answer

- `state.py`: what is known, and how it is looked up.
- `events.py`: what the controller is told, the effects, and the decision that joins them to records.
- `decide.py`: topics and partitions.   - `placement.py`: which broker takes a partition.
- `registry.py`: brokers, leaders, settings and producer ids.
- `apply.py`: the only mutation.        - `names.py`: which topic names are legal.
- `snapshot.py`: a state as the shortest log that leads to it.

Rules:

1. `apply` is the only way in which the state changes, live and at load alike: fold(log) == the live
   state, and fold(snapshot(state)) == state.
2. Ids are never given out twice: a topic that is deleted and made again has another id, and a block
   of producer ids is in the log before the first of them is handed out.
3. A leader epoch only grows. It grows when a leader is named, the same one as before or another:
   after an unclean start, so that clients look whether they read something that is gone; and when a
   partition moves.
4. Which node leads a partition is data. Nothing here assumes that there is one node, and everything
   that this process does with a partition asks first whether it leads it.
5. One copy of each partition: replicas and in-sync replicas are its leader.
"""
