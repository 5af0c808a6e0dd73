"""The broker: everything that touches a socket, a timer or a thread, around rooms that touch none.

At the top of the room is what every request passes:

    process.py           a broker as a process: settings, lock, signals, loop
    node.py              the single broker: a broker and its controller in one process
    core.py              a broker without its controller: the services, and the server
    partition_host.py    the data directory and the open partitions of a process
    runtime.py           clock, disk, timers and durability, as the services get them
    server.py            the listener, and the order in which connections are served
    connection.py        one connection: frames in, replies out, in order
    memory.py            the memory budget that all connections share
    dispatch.py          frame -> handler -> reply; trace.py and faults.py hook in here
    context.py           what a handler may use besides a request's body: the services
    authorization.py     the authorizer, and the operations that replies list
    handlers/            one module per API: check, call a service, reply
    waiting.py           replies that are not ready yet, and the long polls of Fetch
    turns.py             long work in slices, one per turn of the loop
    batch_opener.py      large batches for compacted topics, opened in slices
    local_partitions.py  the partitions that this process leads: registry, syncs, long polls
    coordinators.py      the two coordinators, by the internal topics that are their logs
    log_loader.py        the log of a coordinator, read over several turns
    checkpoint.py        the state of a coordinator beside its log, so that a load reads less
    deadlines.py         many deadlines of the same length with one timer
    peers.py             the other brokers of a cluster, as services reach them
    peer_requests.py     serves what other brokers send
    housekeeping.py      retention, compaction, expiry and checkpoints, by the clock

The services that the handlers call have a folder each:

    controller/          the only writer of the metadata log: topics, settings, producer-id blocks
    metadata/            follows the metadata log: its state, and the effects on partitions
    transactions/        the transaction coordinator on its log, timers and markers
    groups/              the group coordinator on its log and timers
    settings/            broker and topic settings: tables, files, changes, how clients see them
    storage/             the data directory: layout, opening partitions, background syncs, repair

Everything that changes state happens in the same order: decide, append, apply, wait until durable,
reply. Nothing else runs between decide and apply, because one event loop owns all of the state.
"""
