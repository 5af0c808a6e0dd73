"""The broker: everything that touches a socket, a timer or a thread, around rooms that touch none.

At the top of the room is what every request passes, and what every service runs on:

    process.py           a broker as a process: settings, lock, signals, loop
    node.py              the single broker: a broker and its controller in one process
    core.py              a broker without its controller: the services, and the server
    runtime.py           clock, disk, timers and durability, as the services get them
    network/             the listener, its connections, and the memory they share
    dispatch.py          frame -> handler -> reply; trace.py and faults/ hook in here
    controller_port.py   the controller as a broker reaches it, here or over a link
    context.py           what a handler may use besides a request's body: the services
    authorization.py     what handlers ask an authorizer, and the operations that replies list
    handlers/            one module per API: check, call a service, reply
    waiting.py           replies that are not ready yet, and the long polls of Fetch
    turns.py             long work in slices, one per turn of the loop
    deadlines.py         many deadlines of the same length with one timer
    housekeeping.py      retention, compaction, expiry and checkpoints, by the clock
    event_log.py         log lines that clients cause, at most so many a second
    log_format.py        the log on standard error: lines for people, or JSON

The services that the handlers call have a folder each:

    partitions/          the partitions that this process leads, and who may write to them
    controller/          the only writer of the metadata log: topics, settings, producer-id blocks
    metadata/            follows the metadata log: its state, and the effects on partitions
    coordinators/        what both coordinators share: which partition, loading, checkpoints
    transactions/        the transaction coordinator on its log, timers and markers
    groups/              the group coordinator on its log and timers
    peers.py             the other brokers of a cluster: requests to them, and from them
    security/            who may do what: the authorizer, and the audit log
    settings/            broker and topic settings: tables, files, changes, how clients see them
    storage/             the data directory: layout, opening partitions, background syncs, repair
    metrics/             the metrics endpoint

Everything that changes state happens in the same order: decide, append, apply, wait until durable,
reply. Nothing else runs between decide and apply, because one event loop owns all of the state.
"""
