"""The cluster's state: brokers, topics, partitions and leaders, settings, producer ids, users.

All of it is a function of one log, `__cluster_metadata-0`, whose records are Kafka's
(`records.metadata_log`). The leader of that partition is the controller. Only the controller
decides; every node may read.

    a request -> decide (pure) -> append its records as one batch -> apply each at once
              -> wait until they are durable -> effects (open, close, reconfigure logs) -> answer

Other brokers receive the records, apply them and carry out the effects that concern them.

- `state.py`: the state and its lookups.
- `events.py`: the controller's inputs, and the decision that has the records.
- `decide.py`: topics and partitions.   - `placement.py`: the replicas of each new partition.
- `leadership.py`: leaders and in-sync replicas: brokers that come and go, elections,
  reassignments, balance.
- `registry.py`: brokers, leader epochs, settings and producer ids.
- `users.py`: the SCRAM credentials of users.
- `resizing.py`: a directory that is served by more or fewer brokers than before.
- `apply.py`: the only mutation.        - `names.py`: the rules for topic names.
- `effects.py`: what records mean for a broker, as data.
- `snapshot.py`: a state as the shortest log that leads to it.

Rules:

1. Only `apply` changes the state, live and at load: fold(log) == the live state, and
   fold(snapshot(state)) == state.
2. Ids are never reused: a topic that is deleted and created again gets a new id, and a block of
   producer ids is in the log before the first of them is handed out.
3. A leader epoch only grows. It grows when the leader changes, also to none and back; and when it
   is set to the same node, after an unclean start, so that clients check whether they read records
   that are gone. The partition epoch grows with every change.
4. The leader of a partition is data, and this process checks that it leads a partition before it
   does anything with it.
5. There is one copy of the data, on a disk that all brokers share. The replicas of a partition are
   the brokers that may lead it, the preferred one first; its in-sync replicas are the active ones,
   never none. So any active replica can lead at once, and nothing is ever copied or lost by a
   change of the leader.
6. A broker is active if it is neither fenced nor in a controlled shutdown. An active replica leads
   whenever there is one; otherwise the leader is -1. The controller fences a broker only when its
   process is gone, so a fenced leader cannot write.

The life of a broker:

    registered, fenced --unfence--> active --controlled shutdown--> stopping --fence--> fenced
                                      |                                                   ^
                                      `--------------------- fence (dead) ----------------'

    A new registration, with a higher epoch, begins again on the left. A single broker registers as
    active, and is never fenced. So do the brokers of a cluster that start together.
"""
