"""Several broker processes over one data directory; decision 0016 has the design and its reasons.

The parent is the controller: it starts, watches, kills and reaps the brokers, and owns the metadata
log. Nothing here is wired to `fencepost serve` yet: these are the parts that need no broker.

supervision.py  when a broker process is started, killed, restarted; pure
link.py         messages and open files between two processes, over a socket pair
peers.py        requests between brokers, over links
owners.py       which broker processes are alive, by the kernel's word
"""
