"""Classic consumer groups: membership, assignments and committed offsets.

A group advances in *generations*. Members join; the coordinator ends the join phase and sends
everybody the generation, and the leader the list of members; the leader assigns and everybody
syncs. Every change of membership starts the next generation. The coordinator never interprets
assignments: protocols and assignments are opaque bytes of the clients.

The log (one partition of `__consumer_offsets`) holds the last generation whose assignment was
written, and the offsets. So only EMPTY and STABLE are ever loaded. The states between them, the
waiting requests and all deadlines live in memory. They are lost with the process, and clients join
again.

- `lifecycle.py`: the five states, as a table. `group.py`: a group, its members, its deadlines.
  `offsets.py`: committed offsets and those of open transactions. `coordinator_state.py`: the
  groups and offsets of one partition.
- `rebalance.py`: the steps of a rebalance; `join.py`, `sync.py`, `sessions.py`: the events that
  cause them.
- `commit.py`, `removal.py`: records that write and delete offsets; `views.py`: queries.
- `decide.py`: the events that follow an append, by type.
- `apply.py`: the only code that changes state that the log holds.

Rules:

1. A decision has records, answers and a sequel. The broker appends and applies the records, then
   decides the sequel on the resulting state: a new group is written before its first member joins,
   an assignment before anybody receives it. If the append fails, nothing was applied, and the
   decision says what follows.
2. Functions named `on_` may change the soft state of a group: waiting requests, awaited members,
   deadlines. Those named `decide_` change nothing but a session. Neither changes state that the
   log holds.
3. A waiting request is a ticket, a number. Every ticket is answered exactly once: when the member
   syncs or leaves, its session ends, the group rebalances, or the coordinator moves.
4. There is one clock, `now_ms`, and it may jump. `Group.alarm_ms` is never later than the next
   deadline. A new state has no time before its record is written (`stamped` in `apply.py`), with
   that of the broker, by which offsets expire.
5. Of two offsets for one partition, the one whose record is later in the log wins, even if it
   became visible earlier. So the state does not depend on whether the log was compacted before it
   was read.
"""
