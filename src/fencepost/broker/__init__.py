"""The broker: everything that touches a socket, a timer or a thread, around rooms that touch none.

    process.py      settings, lock, signals, loop     (or testing/embedded.py, inside somebody's program)
    node.py         the composition root: one broker from its parts and the world
    server.py       connections: frames in, replies out, in order, bounded
    dispatch.py     frame -> handler -> reply; trace and faults
    handlers/       one module per API: check, call, reply
    shard.py        the one writer: partitions, durability, waking of long polls
    topics.py, groups.py, transactions.py
                    services: run the decisions of a coordinator against its log, keep the timers, park the replies
    markers.py      the end of a transaction, written to its partitions
    layout.py       what lies in the data directory beside the logs
    housekeeping.py retention, compaction, expiry, checkpoints

Order of everything that changes state: decide, append, apply, wait until durable, reply. Between decide and apply nothing
else runs, because one loop owns all of it.
"""
