"""Several broker processes over one data directory; decision 0016 has the design and its reasons.

The parent is the controller: it starts, watches, kills and reaps the brokers, owns the metadata
log, and serves no clients. The brokers follow the metadata log and do everything else.

parent/           the parent process
broker/           a broker process
link.py           messages and open files between two processes, over a socket pair
messages.py       the messages between the parent and a broker
peers.py          requests between brokers
"""
