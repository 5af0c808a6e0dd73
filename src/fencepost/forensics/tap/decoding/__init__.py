"""What a connection says, without I/O: bytes and the time in, bytes and lines out.

conversation.py  one connection: requests and the replies to them
requests.py, replies.py
                 the two directions
exchange.py      a request and its reply, and the fields that a line shows
walk.py          steps through a message field by field, as its bytes arrive
rewriting.py     the addresses in a reply, replaced by the tap's own
"""
