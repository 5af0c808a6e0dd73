"""Moves rows to the only writer of their partition, and from there to the brokers.

row_writer.py  chooses one of three routes for each DataFrame:
collected.py   the driver collects a small batch and writes it itself
direct.py      from task to task over sockets (`exchange.py`), in one barrier stage
shuffled.py    through Spark's shuffle

They share `packing/` (rows into record batches), `limits.py` (how large they may be), `stage.py`
(Spark's settings for a stage, and its shuffle), `meeting.py` (how tasks and driver find each
other), `permits.py` (which try of a task may write), `delivery.py` (record batches to brokers), and
`accounts.py` (the driver's check: what went in is what was acknowledged).
"""
