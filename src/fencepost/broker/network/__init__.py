"""The network side of a broker.

server.py      the listener, and the order in which connections are served
connection.py  one connection: frames in, replies out, in order
memory.py      the memory budget that all connections share
"""
