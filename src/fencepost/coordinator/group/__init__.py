"""Classic consumer groups: who reads what, and how far each has come.

Theory of operation ------------------- A group makes *generations*. Members join; the coordinator
closes the join phase and tells everybody the generation, and the leader who is in it; the leader
assigns and everybody syncs. Whatever changes the members starts the next generation. The
coordinator never looks into what is assigned: protocols and assignments are the clients' bytes.

What the log (one partition of `__consumer_offsets`) holds is the last generation whose assignment
was written, and the offsets. So only EMPTY and STABLE are ever loaded; the states between them, who
waits, and all deadlines live in memory and are lost with the process, and clients join again.

- `states.py`: the five states, as a table. `group.py`: a group, its members, its deadlines.
  `offsets.py`: committed offsets and those that open transactions hold.
- `rebalance.py`: the steps of a rebalance; `join.py`, `sync.py`, `sessions.py`: the events that
  take them.
- `commit.py`, `removal.py`: what is written of offsets; `views.py`: what is read.
- `apply.py`: the only way in which what the log holds changes.

Rules:

1. A decision has records, answers, and a sequel. Records are appended and applied first; then, on
   the state that they made, the sequel is decided: a new group is written before its first member
   is in it, an assignment before anybody hears it. When the append fails nothing was applied, and
   the decision says what follows from that.
2. Functions named `on_` may change the soft state of a group: who waits, who is being waited for,
   deadlines. Those named `decide_` change nothing but a session. Neither touches what the log
   holds.
3. A request that waits is a ticket, a number. Every ticket is answered exactly once: the member
   syncs or leaves, its session ends, the group starts over, the coordinator moves.
4. There is one clock, `now_ms`, and it may jump. `Group.alarm_ms` is never later than the next
   deadline.
5. Of two offsets for one partition the one whose record stands later in the log counts, also when
   it became visible earlier. So the state does not depend on whether the log was compacted before
   it was read.
"""
