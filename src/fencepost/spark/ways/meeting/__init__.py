"""What the tasks of a job agree on through the driver, while it runs.

driver_listener.py  how tasks call the driver
handshake.py        how both sides recognise each other, without sending their secret
rendezvous.py       where the tasks of a barrier stage find each other
permits.py          which try of a task may write, where Spark may run it twice
"""
