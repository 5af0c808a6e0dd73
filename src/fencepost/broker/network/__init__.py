"""The network side of a broker.

server.py      the listeners, and the order in which connections are served
connection.py  one connection: frames in, replies out, in order
tls_filter.py  TLS between a socket and its connection
presence.py    whether a client is connected, for those who remember it
memory.py      the memory budget that all connections share
limits.py      how many connections there may be, and how fast they may come
"""
