"""The broker: everything that touches a socket, a timer or a thread, around rooms that touch none.

At the top of the room is what every request passes:

    process.py           a broker as a process: settings, lock, signals, loop
    node.py              the composition root: one broker, built from its parts
    server.py            the listening socket; connections take turns and share memory
    connection.py        one client: frames in, replies out, in order, with bounded memory
    dispatch.py          frame -> handler -> reply; the trace and injected faults hook in here
    handlers/            one module per API: check, call a service, reply
    waiting.py           replies that are not ready yet, and the long polls of Fetch
    local_partitions.py  the partitions that this process leads: registry, syncs, waking of long polls
    turns.py             long work in slices, one per turn of the loop
    housekeeping.py      retention, compaction, expiry and checkpoints, when nobody asks

The services that the handlers call have a folder each:

    controller/          topics, partitions, settings and producer ids: the metadata log
    transactions/        the transaction coordinator on its log, timers and markers
    groups/              the group coordinator on its log and timers
    settings/            broker and topic settings: tables, files, changes, how clients see them
    storage/             the data directory: lock, identity, layout, descriptors, background syncs

Everything that changes state happens in the same order: decide, append, apply, wait until durable,
reply. Nothing else runs between decide and apply, because one event loop owns all of the state.
"""
