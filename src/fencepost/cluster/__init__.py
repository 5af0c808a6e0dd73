"""Several broker processes over one data directory; decision 0016 has the design and its reasons.

The parent is the controller: it starts, watches, kills and reaps the brokers, owns the metadata
log, and serves no clients. The brokers follow the metadata log and do everything else.

The parent:

    serve.py             `fencepost serve --brokers N`: arguments, lock, first processes
    addresses.py         the settings and addresses of each broker
    parent_process.py    builds the parent on the system's clock and disk
    parent.py            the parent: processes, links, commands
    supervision.py       when a broker process is started, killed, restarted; pure
    processes.py         a broker process, as its parent starts and signals it
    controller_node.py   the controller: the metadata log, and requests that only it serves
    remote_followers.py  how far each broker has carried out each batch of the metadata log
    control.py           the control socket, for operators and tests

A broker:

    broker_process.py    the process: from its link to its end
    broker.py            a broker whose controller is another process
    following.py         batches of the metadata log: apply, release, open
    standstill.py        notices that the process stood still
    controls.py          faults for tests
    owners.py            which broker processes are alive, by the kernel's word

Between them:

    link.py              messages and open files between two processes, over a socket pair
    messages.py          the messages between the parent and a broker
    peers.py             requests between brokers
"""
